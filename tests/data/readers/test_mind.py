from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.data.readers import mind
from speedyfeed.data.readers.text import Lines, split_lists
from speedyfeed.errors import InputError

NEWS = (
    'N1\tsports\tgolf\tA "quoted title\tAn abstract\thttps://x/1\t[]\t[]\nN2\tnews\tworld\tTitle two\t\t\t[]\t[]\n'
)
BEHAVIORS = (
    "1\tU1\t11/11/2019 9:05:58 AM\tN8 N5\tN1-0 N2-1 N3-0\n"
    "2\tU2\t11/12/2019 12:00:00 PM\t\tN-2-1\n"
    "3\tU1\t01/02/2020 12:30:09 AM\tN8\tN1 N2\n"
)


@pytest.fixture
def log(tmp_path):
    """Writes a split with one good row to a line, or with what is given instead."""

    def write(split="train", news=NEWS, behaviors=BEHAVIORS):
        folder = tmp_path / "logs" / split
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "news.tsv").write_text(news)
        (folder / "behaviors.tsv").write_text(behaviors)
        return tmp_path / "logs"

    return write


def test_news_keep_their_text_as_it_is(log, news_rows):
    (split,) = mind.open_splits(log())
    assert [list(row.values()) for row in news_rows(split)] == [
        ["N1", "sports", "golf", 'A "quoted title', "An abstract", ""],
        ["N2", "news", "world", "Title two", "", ""],
    ]


def test_impressions_labelled_and_unlabelled(log, impression_rows):
    (split,) = mind.open_splits(log())
    assert [list(row.values()) for row in impression_rows(split)] == [
        ["1", "U1", datetime(2019, 11, 11, 9, 5, 58), ["N2"], ["N1", "N3"], ["N8", "N5"], ["N1", "N2", "N3"]],
        ["2", "U2", datetime(2019, 11, 12, 12), ["N-2"], [], [], ["N-2"]],
        ["3", "U1", datetime(2020, 1, 2, 0, 30, 9), [], [], ["N8"], ["N1", "N2"]],
    ]


def test_splits_come_in_order_under_their_own_names(log):
    for name in ("validation", "test", "train"):
        folder = log(name)
    splits = mind.open_splits(folder)
    assert [split.name for split in splits] == ["train", "dev", "test"]
    assert splits[1].files == (folder / "validation" / "news.tsv", folder / "validation" / "behaviors.tsv")


@pytest.mark.parametrize(("folder", "name"), [("train", "train"), ("valid", "dev"), ("MINDlarge_test", "test")])
def test_a_folder_without_splits_is_one_split(log, folder, name):
    path = log(folder) / folder
    assert mind.recognises(path)
    assert [split.name for split in mind.open_splits(path)] == [name]


def test_a_validation_split_beside_dev_is_its_own_split(log):
    for name in ("validation", "dev", "train"):
        folder = log(name)
    splits = mind.open_splits(folder)
    assert [split.name for split in splits] == ["train", "valid", "dev"]
    assert splits[1].files[0] == folder / "validation" / "news.tsv"


def test_folders_as_the_dataset_ships_are_splits_where_no_others_are(log):
    for name in ("MINDsmall_train", "MINDsmall_dev", "old_test_copy"):
        folder = log(name)
    assert [split.name for split in mind.open_splits(folder)] == ["train", "dev"]
    assert mind.open_splits(folder)[0].files[0].parent.name == "MINDsmall_train"
    log("MINDlarge_dev")
    with pytest.raises(InputError, match="found MINDlarge_dev/ and MINDsmall_dev/, expected one dev split"):
        mind.open_splits(folder)
    log("train")
    assert [split.name for split in mind.open_splits(folder)] == ["train"]


@pytest.mark.parametrize("dev", [(), ("dev",)])
def test_two_folders_for_one_split_are_an_error(log, dev):
    for name in (*dev, "valid"):
        log(name)
    expected = "valid" if dev else "dev"
    with pytest.raises(
        InputError, match=f"found valid/ and validation/, expected one {expected} split; remove one"
    ):
        mind.open_splits(log("validation"))


@pytest.mark.parametrize("name", ["news.tsv", "behaviors.tsv"])
def test_a_missing_file_is_an_error(log, name):
    folder = log()
    (folder / "train" / name).unlink()
    with pytest.raises(
        InputError, match=rf"train/{name}: found no such file, expected train/ and dev/ .*; add the file"
    ):
        mind.open_splits(folder)


def row(time="11/11/2019 9:05:58 AM", shown="N1-1 N2-0"):
    return f"7\tU7\t{time}\tN8\t{shown}\n"


@pytest.mark.parametrize(
    "time",
    [
        "2019-11-11 09:05:58",
        "13/01/2019 9:05:58 AM",
        "2/29/2019 9:05:58 AM",
        "11/11/2019 13:05:58 PM",
        "11/11/2019 0:05:58 AM",
        "11/11/2019 9:60:58 AM",
        "11/11/2019 9:05:58",
        "11/11/19 9:05:58 AM",
        " 11/11/2019 9:05:58 AM",
        "",
    ],
)
def test_an_unreadable_time_names_its_line(log, impression_rows, time):
    (split,) = mind.open_splits(log(behaviors=row() + row(time=time) + row()))
    with pytest.raises(InputError, match=rf"behaviors\.tsv:2: found time '{time}', expected month/day/year"):
        impression_rows(split)


@pytest.mark.parametrize(
    ("shown", "bad"),
    [("N1-1 N2-2", "N2-2"), ("N1-2", "N1-2"), ("N1-1 N2", "N2"), ("N1-0 N2-x N3-1", "N2-x"), ("N1-1 N2-", "N2-")],
)
def test_a_label_other_than_0_or_1_names_its_line(log, impression_rows, shown, bad):
    (split,) = mind.open_splits(log(behaviors=row(shown="N1 N2") + row() + row(shown=shown) + row(shown="N1 N2")))
    with pytest.raises(
        InputError, match=rf"behaviors\.tsv:3: found candidate '{bad}', expected the label -0 or -1"
    ):
        impression_rows(split)


def test_a_wrong_number_of_columns_names_its_line(log, impression_rows, news_rows):
    (split,) = mind.open_splits(log(news=NEWS + "N3\tnews\n", behaviors=row() + "8\tU7\n"))
    with pytest.raises(InputError, match=r"news\.tsv:3: found 2 columns separated by tab, expected 8 "):
        news_rows(split)
    with pytest.raises(InputError, match=r"behaviors\.tsv:2: found 2 columns separated by tab, expected 5 "):
        impression_rows(split)


def lines(texts):
    return Lines(path=Path("behaviors.tsv"), numbers=np.arange(len(texts)) + 1, text=pa.array(texts))


@given(st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), min_size=1), st.booleans())
def test_times_are_what_the_calendar_says(times, padded):
    times = [time - timedelta(microseconds=time.microsecond) for time in times]
    texts = [f"{time:%m/%d/%Y %I:%M:%S %p}" for time in times]
    if not padded:
        texts = [f"{t.month}/{t.day}/{t:%Y} {(t.hour - 1) % 12 + 1}:{t:%M:%S %p}" for t in times]
    assert mind._parse_times(lines(texts), pa.array(texts)).to_pylist() == times


def split_labels_slowly(shown):
    """Clicked, skipped and candidates of one row, or None where the row is broken."""
    tokens = shown.split()
    labels = [token[-1] if token[-2:-1] == "-" and token[-1].isdigit() else None for token in tokens]
    if all(label is None for label in labels):
        return [], [], tokens
    if not set(labels) <= {"0", "1"}:
        return None
    ids = [token[:-2] for token in tokens]
    clicked = [id for id, label in zip(ids, labels, strict=True) if label == "1"]
    skipped = [id for id, label in zip(ids, labels, strict=True) if label == "0"]
    return clicked, skipped, ids


TOKENS = st.builds(
    "".join, st.tuples(st.sampled_from(["N1", "N-2", "é-é"]), st.sampled_from(["-0", "-1", "-2", ""]))
)
SHOWN = st.one_of(
    st.lists(TOKENS, max_size=4),
    st.lists(TOKENS.map(lambda token: token.rstrip("-012") + "-1"), max_size=4),
    st.lists(TOKENS.map(lambda token: token.rstrip("-012") + "N"), max_size=4),
).map(" ".join)


@given(st.lists(SHOWN, min_size=1, max_size=8))
def test_labels_are_what_a_plain_loop_says(rows):
    expected = [split_labels_slowly(row) for row in rows]
    shown = split_lists(pa.array(rows), " ")
    if None in expected:
        with pytest.raises(InputError, match=rf"^behaviors\.tsv:{expected.index(None) + 1}: "):
            mind._split_labels(lines(rows), shown)
    else:
        columns = mind._split_labels(lines(rows), shown)
        assert [
            tuple(lists) for lists in zip(*(column.to_pylist() for column in columns), strict=True)
        ] == expected
