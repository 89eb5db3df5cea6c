"""Full texts are read back one by one, and the store knows when its articles were first shown."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from speedyfeed.data.bodies import Bodies, write_bodies
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare


def batches(*groups):
    return [pa.record_batch([pa.array(group, pa.string())], ["body"]) for group in groups]


def test_texts_are_read_in_any_order(tmp_path):
    write_bodies(batches(["one", "two", ""], ["four"], ["five", "six"]), tmp_path / "bodies.parquet", per_group=4)
    bodies = Bodies(tmp_path / "bodies.parquet")
    assert len(bodies) == 6
    assert pq.ParquetFile(tmp_path / "bodies.parquet").num_row_groups == 2  # whatever the batches were
    assert [bodies[row] for row in (5, 0, 3, 2, 1, 4)] == ["six", "one", "four", "", "two", "five"]


def test_no_file_is_written_where_no_article_has_a_text(tmp_path):
    write_bodies(batches(["", ""], [""]), tmp_path / "bodies.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_store_keeps_texts_and_the_time_an_article_was_first_shown(tmp_path):
    (tmp_path / "logs" / "train").mkdir(parents=True)
    times = [datetime(2026, 1, 1, hour) for hour in (9, 8, 12)]
    news = pa.table(
        {"news_id": ["A", "B", "C", "D"], "title": ["a", "b", "c", "d"], "body": ["x. y.", "", "z", "w"]}
    )
    impressions = pa.table(
        {
            "impression_id": ["1", "2", "3"],
            "user_id": ["U", "V", "U"],
            "time": pa.array(times, pa.timestamp("us")),
            "clicked": [["A"], ["B"], ["A"]],
            "skipped": [["B"], [], ["C"]],
            "history": [["D"], [], ["D"]],
        }
    )
    pq.write_table(news, tmp_path / "logs" / "train" / "news.parquet")
    pq.write_table(impressions, tmp_path / "logs" / "train" / "impressions.parquet")
    store = prepare(tmp_path / "logs", tmp_path / "store", PrepareConfig(fields=("title",))).store
    ids = store.load_titles()["news_id"].to_pylist()
    shown = dict(zip(ids, store.load_first_shown(), strict=True))
    nine, eight, twelve = (int((time - datetime(1970, 1, 1)).total_seconds()) for time in times)
    assert shown == {"A": nine, "B": eight, "C": twelve, "D": None}
    bodies = Bodies(store.bodies)
    assert {news_id: bodies[row] for row, news_id in enumerate(ids)} == {"A": "x. y.", "B": "", "C": "z", "D": "w"}
