"""Frames as a store: the arrays are those that the same log as files gives."""

import filecmp

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest

import speedyfeed
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.frames import to_arrow

NEWS = {"item_id": ["N1", "N2", "N3", "N4"], "title": ["Cats sleep", "Dogs run", "Birds sing", "Fish swim"]}
CLICKS = {
    "user_id": [7, 7, 8, 7, 8, 9, 9, 8],
    "item_id": ["N1", "N2", "N1", "N3", "N3", "N2", "N4", "N4"],
    "time": [f"2026-01-31T09:0{minute}:00" for minute in range(8)],
}
CONFIG = PrepareConfig(refine="none", fields=("title",), split="last")


def arrays(store):
    """Files of a store but the manifest, which names its inputs."""
    return sorted(name for name in store.manifest.files)


@pytest.fixture(scope="module")
def from_csv(tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    pcsv.write_csv(pa.table(NEWS), logs / "items.csv")
    pcsv.write_csv(pa.table(CLICKS), logs / "interactions.csv")
    return speedyfeed.prepare(logs, logs / "store", CONFIG)


def as_pandas(table, **changes):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(table).astype(changes).set_index(pandas.Index(range(5, 5 + len(table["item_id"]))))


def as_polars(table, **changes):
    return pytest.importorskip("polars").DataFrame(table)


def as_relation(table, **changes):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(pa.table(table))


@pytest.mark.parametrize("make", [as_pandas, as_polars, as_relation, lambda table, **_: pa.table(table)])
def test_frames_give_the_store_that_the_csv_gives(make, from_csv, tmp_path):
    clicks = make(CLICKS, time="datetime64[ns]")
    store = speedyfeed.prepare(make(NEWS), clicks, tmp_path / "store", CONFIG)
    assert arrays(store) == arrays(from_csv)
    assert len(arrays(store)) > 20
    for name in arrays(store):
        assert filecmp.cmp(store.path / name, from_csv.path / name, shallow=False), name
    assert store.splits == ("train", "valid", "test")


def test_impressions_are_the_train_split(tmp_path):
    news = pa.table(NEWS).rename_columns(["news_id", "title"])
    times = pa.array(range(0, 4_000_000, 1_000_000), pa.timestamp("us"))
    shown = {"impression_id": [1, 2, 3, 4], "user_id": ["U7", "U7", "U8", "U8"], "time": times}
    lists = {"clicked": [["N1"], ["N2"], ["N3"], ["N1"]], "skipped": [["N2", "N3"], ["N4"], ["N1"], ["N4"]]}
    config = PrepareConfig(refine="none", fields=("title",), validation=0)
    store = speedyfeed.prepare(news, pa.table(shown | lists), tmp_path / "store", config)
    assert (store.splits, store.manifest.settings.format) == (("train",), "parquet")
    assert [clicks.tolist() for clicks in store.train.clicks] == [[1, 2], [3, 1]]


def test_what_is_no_frame_is_refused():
    with pytest.raises(InputError, match="news: found int, expected a frame of pandas"):
        to_arrow(7, "news")


def test_a_pandas_column_of_mixed_ids_is_named():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(
        InputError, match=r"news: found a column that Arrow cannot take .*column item_id .*convert"
    ):
        to_arrow(pandas.DataFrame({"item_id": [1, "N2"], "title": ["Snow", "Ice"]}), "news")


def test_a_column_of_labels_is_not_one_of_impressions(tmp_path):
    labels = CLICKS | {
        "clicked": [1, 1, 1, 0, 1, 1, 1, 1],
        "user_id": [7] * 8,
        "item_id": ["N1", "N2", "N3", "N4"] * 2,
    }
    store = speedyfeed.prepare(pa.table(NEWS), pa.table(labels), tmp_path / "store", CONFIG)
    assert store.manifest.settings.format == "interactions"
    assert any("shown, not clicked: 1 row left out" in note for note in store.manifest.counts.notes)
