"""Acknowledged writes survive kill -9; one process at a time; the latest entry of an article counts."""

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from speedyfeed.errors import InputError
from speedyfeed.serving.journal import Journal, News

WRITER = """
import sys
from pathlib import Path
import numpy as np
from speedyfeed.serving.journal import Journal, News

journal = Journal(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 1_000_000):
    news = [News(news_id=f"N{number}-{part}", title=f"title {number}") for part in range(3)]
    journal.write(news, "m", np.full((3, 4), number, np.float32))
    if number % 5 == 0:
        journal.remove(f"N{number}-0")
    print(number, flush=True)
"""


def news(news_id, title="a title"):
    return News(news_id=news_id, title=title)


def everything(journal):
    entries = []
    while more := journal.read(entries[-1].seq if entries else 0, limit=100):
        entries += more
    return entries


def test_a_journal_that_cannot_be_opened_is_named_and_its_folder_not_claimed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise sqlite3.OperationalError("unable to open database file")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", refuse)  # as the system does without permission, but for root
        with pytest.raises(InputError, match=r"journal\.sqlite: cannot be written \(unable to open"):
            Journal(tmp_path)
    Journal(tmp_path).close()


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path)
    yield journal
    journal.close()


def test_nothing_acknowledged_is_lost_by_kill_9_at_any_moment(tmp_path):
    random_ = random.Random(4)
    acknowledged = -1
    for _ in range(20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(acknowledged + 1)], stdout=subprocess.PIPE, text=True
        )
        first = writer.stdout.readline()
        time.sleep(random_.uniform(0, 0.02))
        writer.kill()
        lines = [first, *writer.stdout.read().splitlines(keepends=True)]
        writer.wait()
        printed = [int(line) for line in lines if line.endswith("\n")]
        assert printed, "the writer died before it wrote anything"
        acknowledged = printed[-1]
        journal = Journal(tmp_path)
        entries = {entry.news_id: entry for entry in everything(journal)}
        journal.close()
        for number in range(acknowledged + 1):
            for part in range(3):
                entry = entries[f"N{number}-{part}"]
                if number % 5 == 0 and part == 0:
                    assert entry.news is None
                else:
                    assert entry.news.title == f"title {number}"
                    assert entry.embedding.tolist() == [number] * 4
    assert acknowledged >= 20


def test_a_second_process_cannot_have_the_journal(journal, tmp_path):
    journal.write([news("N1")], "m", np.zeros((1, 4), np.float32))
    second = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert second.stdout == ""
    assert "another process serves from it" in second.stderr
    assert len(everything(journal)) == 1


def test_a_closed_journal_can_be_opened_again(journal, tmp_path):
    journal.write([news("N1")], "m", np.ones((1, 4), np.float32))
    journal.close()
    again = Journal(tmp_path)
    (entry,) = everything(again)
    again.close()
    assert entry.news == news("N1")
    assert entry.model == "m"


def test_the_latest_entry_of_an_article_counts_and_comes_last(journal):
    rows = np.zeros((2, 4), np.float32)
    journal.write([news("N1"), news("N2")], "m", rows)
    last = journal.write([news("N1", "another")], "m", rows[:1])
    assert [(entry.news_id, entry.news.title) for entry in everything(journal)] == [
        ("N2", "a title"),
        ("N1", "another"),
    ]
    assert everything(journal)[-1].seq == last
    journal.remove("N2")
    assert [entry.news_id for entry in journal.read(last)] == ["N2"]
    assert journal.read(last)[0].news is None


def test_a_removed_number_is_never_given_again(journal):
    rows = np.zeros((1, 4), np.float32)
    first = journal.write([news("N1")], "m", rows)
    assert journal.write([news("N1")], "m", rows) > first
    assert journal.remove("N1") > first + 1


def test_another_models_embeddings_leave_the_entries_as_they_are(journal):
    journal.write([news("N1"), news("N2")], "old", np.zeros((2, 4), np.float32))
    before = everything(journal)
    journal.update_embeddings([before[1].seq], "new", np.ones((1, 2), np.float32))
    after = everything(journal)
    assert [entry.seq for entry in after] == [entry.seq for entry in before]
    assert [entry.model for entry in after] == ["old", "new"]
    assert after[1].embedding.tolist() == [1, 1]


def test_a_file_that_is_no_journal_is_the_users_mistake(tmp_path):
    (tmp_path / "journal.sqlite").write_bytes(b"no database at all " * 100)
    with pytest.raises(InputError, match="not a journal"):
        Journal(tmp_path)


DAMAGES = {
    "a title": "update entries set news = replace(news, 'a title', 'a tifle')",
    "an embedding": "update entries set embedding = zeroblob(16) where embedding is not null",
    "a removal": "update entries set news_id = 'N3' where news is null",
    "feedback": "update feedback set feedback = replace(feedback, 'N1', 'N5')",
    "a rule": "update rules set rule = replace(rule, 'ban', 'bam')",
}


def change(folder, statement):
    """Change a closed journal behind its back."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as file:
        assert file.execute(statement).rowcount
        file.commit()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_row_is_named(journal, tmp_path, damage):
    journal.write([news("N1")], "old", np.zeros((1, 4), np.float32))
    journal.update_embeddings([1], "m", np.ones((1, 4), np.float32))
    journal.remove("N2")
    journal.write_feedback({"actions": {"N1": "click"}})
    journal.write_rule("r", {"kind": "ban"})
    journal.close()
    Journal(tmp_path).close()
    change(tmp_path, damage)
    with pytest.raises(InputError, match=r"journal.sqlite: is damaged, row \d of .* changed; put it back"):
        Journal(tmp_path)


def test_a_damaged_page_is_named(journal, tmp_path):
    journal.write([news(f"N{number}") for number in range(300)], "m", np.zeros((300, 4), np.float32))
    journal.close()
    content = bytearray((tmp_path / "journal.sqlite").read_bytes())
    content[-4096:-3584] = bytes(512)
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(InputError, match=r"journal\.sqlite: (is damaged|not a journal)"):
        Journal(tmp_path)


def test_a_journal_that_is_gone_is_missed(journal, tmp_path):
    journal.close()
    (tmp_path / "graphs-1").mkdir()
    Journal(tmp_path).close()
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(InputError, match=r"journal\.sqlite: is missing or empty"):
        Journal(tmp_path)
    assert not (tmp_path / "journal.sqlite").exists()
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(InputError, match=r"journal\.sqlite: is missing or empty"):
        Journal(tmp_path)
    (tmp_path / "journal.sqlite").unlink()
    (tmp_path / "journal.sqlite").mkdir()
    with pytest.raises(InputError, match=r"journal\.sqlite: is a folder"):
        Journal(tmp_path)


def test_rows_of_an_earlier_version_have_no_checksums(journal, tmp_path):
    journal.write([news("N1")], "m", np.zeros((1, 4), np.float32))
    journal.close()
    for table in ("entries", "feedback", "rules"):
        change(tmp_path, f"alter table {table} drop column checksum")
    again = Journal(tmp_path)
    again.write([news("N2")], "m", np.ones((1, 4), np.float32))
    assert [one.news_id for one in everything(again)] == ["N1", "N2"]
    again.close()
