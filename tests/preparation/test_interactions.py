"""A log of interactions as a store: its counts, its notes, and its identity."""

from types import SimpleNamespace

import pytest

from speedyfeed import finished_run
from speedyfeed.cli.prepare import print_summary, summary
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig, TextConfig
from speedyfeed.preparation.prepare import prepare, prepare_split
from speedyfeed.preparation.text import TextRules
from tests.cli.test_main import fails

ITEMS = "page,title\nN1,Cats sleep\nN2,Dogs run\nN3,Birds sing\n"
CLICKS = ["U7,N1", "U7,N2", "U8,N1", "U7,N9", "U7,N3", "U8,N3", "U8,N2", "U9,N2", "U9,N2"]
COLUMNS = {"columns": "item=page"}


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    rows = [f"{click},{1769900000 + 60 * min(minute, 7)}" for minute, click in enumerate(CLICKS)]
    (folder / "items.csv").write_text(ITEMS)
    (folder / "interactions.csv").write_text("\n".join(["user_id,item_id,ts", *rows]) + "\n")
    return folder


def make(logs, path, **settings):
    return prepare(logs, path, PrepareConfig(refine="none", fields=("title",), **settings)).store


def test_the_last_clicks_become_a_store(logs, tmp_path, capsys):
    store = make(logs, tmp_path / "store", split="last", **COLUMNS)
    assert store.splits == ("train", "valid", "test")
    assert store.load_users()["user_id"].to_pylist() == ["U7", "U8", "U9"]
    assert [clicks.tolist() for clicks in store.train.clicks] == [[1, 2], [1], [2]]
    assert not store.train.has_negatives
    assert ((store.train.click_times - 1769900000_000000) // 60_000_000).tolist() == [0, 1, 2, 7]
    valid, test = store.impressions("valid"), store.impressions("test")
    assert [shown.tolist() for shown in valid.candidates] == [[0], [3]]  # N9 has no text
    assert [valid.histories[user].tolist() for user in valid.users] == [[1, 2], [1]]
    assert [shown.tolist() for shown in test.candidates] == [[3], [2]]
    assert [test.histories[user].tolist() for user in test.users] == [[1, 2], [1, 3]]
    assert store.manifest.counts.news.read == store.num_news == 3
    assert store.manifest.counts.splits["test"].dropped["history_clicks_without_text"] == 1
    store.verify()

    print_summary(open_store(store.path))
    printed = capsys.readouterr().out
    assert "validation: a split of the log" in printed
    assert (
        "split last: each user's last click on a new article is test, the one before it valid; 1 of 3" in printed
    )
    assert "interactions.csv: 1 row with user, item and time of an earlier row, left out" in printed
    assert len(summary(store)["notes"]) == 4


def test_a_split_by_time_has_no_test(logs, tmp_path):
    store = make(logs, tmp_path / "store", validation=0, dev_from="2026-01-31T22:57:20", **COLUMNS)
    assert store.splits == ("train", "dev")
    dev = store.impressions("dev")
    assert [shown.tolist() for shown in dev.candidates] == [[3], [3], [2], [2]]
    assert [dev.histories[user].tolist() for user in dev.users] == [[1, 2], [1], [1, 3], []]


def test_columns_and_split_are_part_of_the_identity(logs, tmp_path):
    make(logs, tmp_path / "store", split="last", **COLUMNS)
    make(logs, tmp_path / "store", split="last", **COLUMNS)
    with pytest.raises(InputError, match="was prepared with split 'last', asked for 'time'"):
        make(logs, tmp_path / "store", **COLUMNS)
    with pytest.raises(InputError, match=r"with columns .item=page., asked for .item=page,title=title."):
        make(logs, tmp_path / "store", split="last", columns="item=page,title=title")


def test_other_formats_take_no_options(mind_logs, tmp_path):
    with pytest.raises(InputError, match="format mind, expected interactions for --tables"):
        prepare(mind_logs, tmp_path / "store", PrepareConfig(split="last"))
    settings = prepare(mind_logs, tmp_path / "store", PrepareConfig()).store.manifest.settings
    assert (settings.columns, settings.split, settings.dev_from) == ("", None, None)


def test_all_clicks_of_a_later_log_are_the_split_to_rank(logs, tmp_path):
    settings = make(logs, tmp_path / "store", split="last", **COLUMNS).manifest.settings
    rules = TextRules(config=TextConfig(refine="none", fields=("title",)))
    store = prepare_split(logs, tmp_path / "ranked", rules, options=settings.reader_options)
    assert store.splits == ("test",)
    test = store.impressions("test")
    assert [int(shown[0]) for shown in test.candidates] == [1, 2, 0, 3, 1, 3, 2, 2]  # N9 has no text
    assert [test.histories[user].tolist() for user in test.users][:4] == [[], [1], [1, 2], [1, 2]]
    assert store.manifest.counts.notes[0].startswith("all 8 clicks of interactions.csv, 2026-01-31 22:53:20 to ")


def test_the_log_that_a_run_learned_from_is_not_ranked_whole(logs, tmp_path, monkeypatch):
    own = make(logs, tmp_path / "store", split="last", **COLUMNS)
    rules = TextRules(config=TextConfig(refine="none", fields=("title",)))
    same = prepare_split(logs, tmp_path / "same", rules, options=own.manifest.settings.reader_options)
    monkeypatch.setattr(finished_run, "training_store", lambda path: own)
    finished = SimpleNamespace(path=tmp_path / "run")
    with pytest.raises(
        InputError, match=r"found the log that .* was trained on, expected a later one; leave it out"
    ):
        finished_run._refuse_training_log(finished, same, logs)
    with (logs / "interactions.csv").open("a") as file:
        file.write("U9,N1,1769900900\n")
    later = prepare_split(logs, tmp_path / "later", rules, options=own.manifest.settings.reader_options)
    finished_run._refuse_training_log(finished, later, logs)


BROKEN = {
    "a missing column": ("interactions.csv", "user_id", "who", "interactions.csv: found no user column"),
    "two candidates for a column": ("items.csv", "page,title", "page,title,headline", "items.csv: found columns"),
    "mixed time formats": ("interactions.csv", "1769900060", "2026-01-31", "interactions.csv:3: found time"),
    "a time in the future": ("interactions.csv", "1769900000", "7769900000", "interactions.csv:2: found time"),
    "a time of 1970": ("interactions.csv", "1769900000", "0", "interactions.csv:2: found time '0' before 1990"),
    "a negative time": ("interactions.csv", "1769900000", "-7", "interactions.csv:2: found time '-7' before 1990"),
    "an empty id": ("interactions.csv", "U8,N1", "U8,", "interactions.csv:4: found an empty item_id"),
    "an open quote": ("items.csv", "Dogs", '"Dogs', "items.csv:3: found a quote that is not closed"),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_table_is_one_line_exit_code_2_and_nothing_written(mistake, logs, tmp_path, capsys):
    name, before, after, message = BROKEN[mistake]
    file = logs / name
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    line = fails(capsys, "prepare", logs, tmp_path / "out" / "store", "--columns", "item=page")
    assert message in line
    assert "expected" in line
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
