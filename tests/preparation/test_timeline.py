"""Timelines, pools, candidates and histories of a log checked by eye, on both engines."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.data.tables import IMPRESSIONS
from speedyfeed.preparation import timeline
from speedyfeed.preparation.config import EngineConfig
from speedyfeed.preparation.engine import open_engine


def impression(row, user, minute, clicked, skipped, history, candidates=None):
    return {
        "row": row,
        "impression_id": str(row),
        "user_id": user,
        "time": minute * 60_000_000,
        "clicked": clicked.split(),
        "skipped": skipped.split(),
        "history": history.split(),
        "candidates": None if candidates is None else candidates.split(),
    }


ROWS = [
    impression(0, "U2", 9, "3 x", "1 y", "8 x 5"),
    impression(1, "U1", 3, "", "", "", candidates="2 x 1"),
    impression(2, "U2", 1, "4", "2", "8 x 5", candidates="2 4"),
    impression(3, "U2", 9, "1", "", "8 x 5"),
    impression(4, "U3", 5, "", "1 2", "5"),
    impression(5, "U3", 7, "2", "", ""),  # a log that keeps no history here
]


@pytest.fixture
def tables(tmp_path, engine_name):
    schema = pa.schema([("row", pa.int64()), *IMPRESSIONS])
    pq.write_table(pa.Table.from_pylist(ROWS, schema=schema), tmp_path / "impressions.parquet")
    ids = {"news_id": list("123458"), "news": [1, 2, 3, 4, 5, 8]}
    pq.write_table(
        pa.table(ids, schema=pa.schema([("news_id", pa.string()), ("news", pa.int64())])), tmp_path / "ids.parquet"
    )
    with open_engine(EngineConfig(engine=engine_name, memory=1), tmp_path) as engine:
        impressions = engine.open(tmp_path / "impressions.parquet")
        known = engine.open(tmp_path / "ids.parquet")
        past = engine.save(timeline.clicks(impressions, known), "past")
        expressions = {
            "clicks": timeline.clicks(impressions, known).select("user_id", "row", "news"),
            "pools": timeline.pools(impressions, known),
            "candidates": timeline.candidates(impressions, known),
            "users": timeline.users(impressions).order_by("row").select("user"),
            "histories": timeline.histories(timeline.users(impressions), known, past),
            "references": timeline.count_references(impressions, "history", known),
        }
        yield {
            name: [tuple(row.values()) for batch in engine.read(expression, name) for row in batch.to_pylist()]
            for name, expression in expressions.items()
        }


def test_the_log_becomes_timelines_pools_and_candidates(tables):
    # Histories first, then clicks by time; equal times in the order of the log; news without text left out.
    u2 = [(-1, 8), (-1, 5), (2, 4), (0, 3), (3, 1)]
    assert tables["clicks"] == [("U2", row, news) for row, news in u2] + [("U3", -1, 5), ("U3", 5, 2)]
    assert tables["pools"] == [(0, 1), (2, 2)]  # row 4 has no click: it is no pool
    assert tables["candidates"] == [
        (0, 3, 1), (0, 0, 1), (0, 1, 0), (0, 0, 0),  # not listed: clicked, then skipped; 0 has no text
        (1, 2, -1), (1, 0, -1), (1, 1, -1),  # unlabelled
        (2, 2, 0), (2, 4, 1),  # as listed
        (3, 1, 1),
        (4, 1, 0), (4, 2, 0),
        (5, 2, 1),
    ]  # fmt: skip
    assert tables["users"] == [(0,), (1,), (0,), (0,), (4,), (5,)]
    assert tables["histories"] == [(0, 8), (0, 5), (4, 5), (5, 5), (5, 2)]
    assert tables["references"] == [(10, 7)]
