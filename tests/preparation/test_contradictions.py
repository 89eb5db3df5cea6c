"""Articles that are clicked and skipped at once, and articles whose text changes from file to file."""

import pyarrow as pa
import pytest

from speedyfeed.cli.prepare import print_summary, summary
from speedyfeed.data.tables import IMPRESSIONS
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.contradictions import resolve
from speedyfeed.preparation.prepare import prepare


def impressions(*rows):
    values = [
        {"impression_id": "1", "user_id": "U1", "time": 0, "history": [], "clicked": clicked.split()}
        | {"skipped": skipped.split(), "candidates": None if shown is None else shown.split()}
        for clicked, skipped, shown in rows
    ]
    return pa.RecordBatch.from_pylist(values, schema=IMPRESSIONS)


ROWS = [
    ("N3", "N1 N3", "N1 N3 N3"),
    ("N4 N3", "N4 N4", None),
    ("N1", "N3", "N3 N1"),  # of another row N3 is the click
    ("", "", "N3 N3"),  # unlabelled, and to be ranked as listed
    ("N1 N1", "N2 N2", None),  # twice, but not both
]


def test_what_is_clicked_and_skipped_is_clicked_once():
    resolved, count = resolve(impressions(*ROWS))
    assert count == 2
    assert resolved["clicked"].to_pylist() == [["N3"], ["N4", "N3"], ["N1"], [], ["N1", "N1"]]
    assert resolved["skipped"].to_pylist() == [["N1"], [], ["N3"], [], ["N2", "N2"]]
    assert resolved["candidates"].to_pylist() == [["N1", "N3"], None, ["N3", "N1"], ["N3", "N3"], None]
    assert resolved.schema == IMPRESSIONS
    resolved.validate(full=True)


def test_a_part_of_a_batch_is_resolved_alike():
    part, count = resolve(impressions(*reversed(ROWS)).slice(3))
    assert (count, part["skipped"].to_pylist()) == (2, [[], ["N1"]])


def test_impressions_without_contradictions_are_left_as_they_are():
    batch = impressions(*ROWS[2:])
    assert resolve(batch)[0] is batch


@pytest.mark.parametrize("split", ["train", "dev"])
def test_contradictions_are_counted_and_no_click_is_its_own_negative(mind_logs, tmp_path, capsys, split):
    file = mind_logs / split / "behaviors.tsv"
    file.write_text(file.read_text().replace("N5-", "N5-0 N5-1 N5-").replace("N2-1", "N2-1 N2-0"))
    store = prepare(mind_logs, tmp_path / "store", PrepareConfig(validation=0)).store
    count = {"train": 4, "dev": 1}[split]
    assert summary(store)["clicked_and_skipped"] == store.manifest.counts.clicked_and_skipped == count
    print_summary(store)
    assert f"both clicked and skipped in one impression: {count}; clicked, once" in capsys.readouterr().out
    train = store.train
    pools = [[] if pool < 0 else train.pools[pool].tolist() for pool in train.click_pools]
    assert all(click not in pool for click, pool in zip(train.clicks.values.tolist(), pools, strict=True))
    dev = store.impressions("dev")
    assert [shown.tolist() for shown in dev.candidates] == [[3, 5, 0], [3, 1], [1, 3]]
    assert dev.labels.tolist() == [0, 1, 0, 1, 0, 0, 1]


def test_the_newest_text_of_an_article_is_used_and_the_change_counted(mind_logs, tmp_path, capsys):
    file = mind_logs / "dev" / "news.tsv"
    file.write_text(file.read_text().replace("Cup final moved to Sunday", "Cup final moved to Monday"))
    store = prepare(mind_logs, tmp_path / "store", PrepareConfig(validation=0)).store
    titles = store.load_titles()
    assert titles["news_id"].to_pylist() == ["N1", "N2", "N3", "N4", "N5"]  # numbered as if nothing had changed
    assert titles["title"].to_pylist()[4] == "Cup final moved to Monday"
    counts = store.manifest.counts.news
    assert (counts.read, counts.kept, counts.repeated, counts.changed) == (8, 5, 3, 1)
    assert summary(store)["changed_news"] == 1
    print_summary(store)
    assert "articles whose text changed: 1; the text of the last row is used" in capsys.readouterr().out
