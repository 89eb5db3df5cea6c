from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.data.readers import parquet
from speedyfeed.errors import InputError

TIME = datetime(2019, 11, 11, 9, 5, 58)
NEWS = {
    "news_id": pa.array(["N1", "N2"]),
    "category": pa.array(["sports", "news"]),
    "subcategory": pa.array(["golf", "world"]),
    "title": pa.array(["One", "Two"]),
    "abstract": pa.array(["First.", ""]),
    "body": pa.array(["A body.", "Another."]),
}
IMPRESSIONS = {
    "impression_id": pa.array(["1", "2"]),
    "user_id": pa.array(["U1", "U2"]),
    "time": pa.array([TIME, TIME]),
    "clicked": pa.array([["N1"], []], pa.list_(pa.string())),
    "skipped": pa.array([["N2"], []], pa.list_(pa.string())),
    "history": pa.array([["N8"], []], pa.list_(pa.string())),
    "candidates": pa.array([["N2", "N1"], None], pa.list_(pa.string())),
}


@pytest.fixture
def log(tmp_path):
    """Writes a train split; a column given by name replaces the good one, None leaves it out."""

    def write(**columns):
        (tmp_path / "train").mkdir()
        for table, good in (("news", NEWS), ("impressions", IMPRESSIONS)):
            kept = {name: columns.get(name, column) for name, column in good.items()}
            kept = {name: column for name, column in kept.items() if column is not None}
            pq.write_table(pa.table(kept), tmp_path / "train" / f"{table}.parquet")
        return tmp_path

    return write


def plain(columns):
    return pa.table(columns).to_pylist()


def test_canonical_tables_come_back_as_they_are(log, news_rows, impression_rows):
    (split,) = parquet.open_splits(log())
    assert news_rows(split) == plain(NEWS)
    assert impression_rows(split) == plain(IMPRESSIONS)


def test_part_files_are_read_in_name_order(log, tmp_path, news_rows, impression_rows):
    folder = log() / "train"
    for table in ("news", "impressions"):
        rows = pq.read_table(folder / f"{table}.parquet")
        (folder / f"{table}.parquet").unlink()
        (folder / table).mkdir()
        for part in (1, 0):
            pq.write_table(rows.slice(part, 1), folder / table / f"part-{part}.parquet")
    assert parquet.recognises(tmp_path)
    (split,) = parquet.open_splits(tmp_path)
    assert len(split.files) == 4
    assert news_rows(split) == plain(NEWS)
    assert impression_rows(split) == plain(IMPRESSIONS)


def test_absent_and_null_text_is_empty(log, news_rows, impression_rows):
    absent = dict.fromkeys(("category", "subcategory", "body", "history", "candidates"))
    (split,) = parquet.open_splits(log(abstract=pa.array([None, "Second."]), **absent))
    assert [list(row.values()) for row in news_rows(split)] == [
        ["N1", "", "", "One", "", ""],
        ["N2", "", "", "Two", "Second.", ""],
    ]
    assert [(row["history"], row["candidates"]) for row in impression_rows(split)] == [([], None)] * 2


def test_other_widths_of_the_same_types_are_cast(log, news_rows, impression_rows):
    (split,) = parquet.open_splits(
        log(
            news_id=pa.array([1, 2]),
            category=pa.array(["sports", "news"]).dictionary_encode(),
            title=pa.array(["One", "Two"], pa.large_string()),
            user_id=pa.array([7, 8], pa.uint32()),
            time=pa.array([date(2019, 11, 11), date(2019, 11, 12)]),
            clicked=pa.array([[1], []], pa.large_list(pa.int32())),
            skipped=pa.array([[2], []], pa.list_view(pa.int64())),
            history=pa.array([[], []], pa.list_(pa.null())),
            candidates=pa.array([["2", "1"], None], pa.large_list_view(pa.large_string())),
        )
    )
    assert [row["news_id"] for row in news_rows(split)] == ["1", "2"]
    assert [row["category"] for row in news_rows(split)] == ["sports", "news"]
    assert [list(row.values()) for row in impression_rows(split)] == [
        ["1", "7", datetime(2019, 11, 11), ["1"], ["2"], [], ["2", "1"]],
        ["2", "8", datetime(2019, 11, 12), [], [], [], None],
    ]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_of_any_unit_and_zone_become_plain_microseconds(log, impression_rows, zone):
    (split,) = parquet.open_splits(log(time=pa.array([TIME, TIME], pa.timestamp("ns", zone))))
    assert [row["time"] for row in impression_rows(split)] == [TIME, TIME]


def test_a_missing_column_is_an_error(log, news_rows, impression_rows):
    (split,) = parquet.open_splits(log(user_id=None, title=None))
    with pytest.raises(InputError, match=r"news\.parquet: found columns .*, expected title among them; "):
        news_rows(split)
    with pytest.raises(InputError, match=r"impressions\.parquet: found columns .*, expected user_id among them; "):
        impression_rows(split)


@pytest.mark.parametrize(
    ("column", "values", "found"),
    [
        ("time", pa.array(["yesterday", "today"]), "string"),
        ("time", pa.array([1, 2]), "int64"),
        ("user_id", pa.array([1.0, 2.0]), "double"),
        ("clicked", pa.array(["N1", "N2"]), "string"),
        ("skipped", pa.array([[1.5], []]), "list<element: double>"),
    ],
)
def test_a_wrong_type_is_an_error(log, impression_rows, column, values, found):
    (split,) = parquet.open_splits(log(**{column: values}))
    with pytest.raises(InputError, match=rf"\.parquet: found column {column} of type {found}, expected "):
        impression_rows(split)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user_id", pa.array(["U1", None])),
        ("time", pa.array([TIME, None])),
        ("clicked", pa.array([["N1"], None])),
        ("history", pa.array([[], [None]], pa.list_(pa.string()))),
    ],
)
def test_a_null_where_a_value_must_be_names_its_row(log, impression_rows, column, values):
    (split,) = parquet.open_splits(log(**{column: values}))
    with pytest.raises(InputError, match=rf"\.parquet: found null in column {column}, row 2, expected a value; "):
        impression_rows(split)


def test_a_table_without_rows_is_an_error(log, news_rows):
    folder = log()
    pq.write_table(pa.table(NEWS).slice(0, 0), folder / "train" / "news.parquet")
    (split,) = parquet.open_splits(folder)
    with pytest.raises(InputError, match=r"news\.parquet: found no rows, expected at least one; "):
        news_rows(split)


@pytest.mark.parametrize("content", [b"", b"news_id,title\n"])
def test_a_file_that_is_not_parquet_is_an_error(log, news_rows, content):
    folder = log()
    (folder / "train" / "news.parquet").write_bytes(content)
    (split,) = parquet.open_splits(folder)
    with pytest.raises(InputError, match=r"news\.parquet: found .*, expected a whole Parquet file; "):
        news_rows(split)


def test_a_missing_table_is_an_error(log):
    folder = log()
    (folder / "train" / "news.parquet").unlink()
    with pytest.raises(InputError, match=r"news\.parquet: found no such file"):
        parquet.open_splits(folder)
