from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.data.readers import ebnerd
from speedyfeed.errors import InputError

TIME = datetime(2023, 5, 21, 21, 6, 50)
IDS = pa.list_(pa.int32())
ARTICLES = {
    "article_id": pa.array([101, 102], pa.int32()),
    "title": pa.array(["Ishockey", "Vejret"]),
    "subtitle": pa.array(["Danmark vandt.", None]),
    "body": pa.array(["En lang tekst.", "Regn."]),
    "category_str": pa.array(["sport", "nyheder"]),
    "subcategory": pa.array([[196, 271], []], pa.list_(pa.int16())),
}
BEHAVIORS = {
    "impression_id": pa.array([1, 2, 3], pa.uint32()),
    "user_id": pa.array([7, 9, 7], pa.uint32()),
    "impression_time": pa.array([TIME] * 3),
    "article_ids_inview": pa.array([[103, 101, 102], [101], [102, 103]], IDS),
    "article_ids_clicked": pa.array([[101], [], [102, 103]], IDS),
}
HISTORY = {
    "user_id": pa.array([8, 7], pa.uint32()),
    "article_id_fixed": pa.array([[102], [104, 101]], IDS),
}


@pytest.fixture
def log(tmp_path):
    def write(split, behaviors=BEHAVIORS, history=HISTORY):
        (tmp_path / split).mkdir()
        pq.write_table(pa.table(ARTICLES), tmp_path / "articles.parquet")
        pq.write_table(pa.table(behaviors), tmp_path / split / "behaviors.parquet")
        pq.write_table(pa.table(history), tmp_path / split / "history.parquet")
        return tmp_path

    return write


def test_articles_become_news(log, news_rows):
    (split,) = ebnerd.open_splits(log("train"))
    assert [list(row.values()) for row in news_rows(split)] == [
        ["101", "sport", "196 271", "Ishockey", "Danmark vandt.", "En lang tekst."],
        ["102", "nyheder", "", "Vejret", "", "Regn."],
    ]


def test_behaviors_meet_the_history_of_their_user(log, impression_rows):
    (split,) = ebnerd.open_splits(log("validation"))
    assert split.name == "dev"
    assert [list(row.values()) for row in impression_rows(split)] == [
        ["1", "7", TIME, ["101"], ["103", "102"], ["104", "101"], ["103", "101", "102"]],
        ["2", "9", TIME, [], ["101"], [], ["101"]],
        ["3", "7", TIME, ["102", "103"], [], ["104", "101"], ["102", "103"]],
    ]


def test_a_test_split_without_clicks_is_unlabelled(log, impression_rows):
    hidden = {name: column for name, column in BEHAVIORS.items() if name != "article_ids_clicked"}
    (split,) = ebnerd.open_splits(log("test", behaviors=hidden))
    rows = impression_rows(split)
    assert [(row["clicked"], row["skipped"]) for row in rows] == [([], [])] * 3
    assert rows[0]["candidates"] == ["103", "101", "102"]


@given(st.lists(st.tuples(st.lists(st.integers(0, 4)), st.none() | st.lists(st.integers(0, 4)))))
def test_skipped_is_what_a_plain_loop_says(rows):
    shown, clicked = (pa.array([row[i] for row in rows], IDS) for i in (0, 1))
    expected = [[] if row[1] is None else [id_ for id_ in row[0] if id_ not in row[1]] for row in rows]
    assert ebnerd._skipped(shown, clicked).to_pylist() == expected


@given(st.sets(st.integers(0, 9), min_size=1), st.lists(st.integers(-1, 10)))
def test_users_are_found_where_they_are(users, wanted):
    users = sorted(users)
    positions = ebnerd._positions(np.array(users), pa.array(wanted, pa.int64()))
    assert positions.to_pylist() == [users.index(user) if user in users else None for user in wanted]


@pytest.mark.parametrize("name", ["articles.parquet", "train/behaviors.parquet", "train/history.parquet"])
def test_a_missing_file_is_an_error(log, name):
    folder = log("train")
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: found no such file"):
        ebnerd.open_splits(folder)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("user_id", pa.array(["a", "b", "c"]), "found column user_id of type string, expected int64"),
        ("user_id", pa.array([1, None, 2]), "found null in column user_id, row 2"),
        (
            "article_ids_inview",
            pa.array([[1 << 40], [], []]),
            "found column article_ids_inview with Integer value",
        ),
        ("impression_time", None, "expected impression_time among them"),
    ],
)
def test_broken_behaviors_are_an_error(log, impression_rows, column, values, message):
    behaviors = {name: column for name, column in (BEHAVIORS | {column: values}).items() if column is not None}
    (split,) = ebnerd.open_splits(log("train", behaviors=behaviors))
    with pytest.raises(InputError, match=rf"behaviors\.parquet: .*{message}"):
        impression_rows(split)
