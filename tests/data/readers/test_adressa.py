import gzip
import json
from datetime import datetime

import pytest

from speedyfeed.data.readers import adressa
from speedyfeed.errors import InputError

SECONDS = 1483225200
TIME = datetime(2016, 12, 31, 23)


def event(user, id=None, **rest):
    """An event as Adressa has it, with fields we do not read; without an id it is a front page."""
    seen = {"userId": user, "time": SECONDS, "activeTime": 12, "profile": [{"item": "0", "groups": []}], **rest}
    return json.dumps(seen if id is None else {**seen, "id": id}, ensure_ascii=False)


FIRST = [
    event("cx:7", "a1", title="Snø i natt", category1="nyheter|vær|snø", canonicalUrl="http://x"),
    event("cx:7"),
    event("cx:8", "a2"),
    event("cx:8", "a1", title="Snø i natt, igjen", category="annet"),
]
LAST = [event("cx:7", "a2", title="Ishockey", category="sport"), event("cx:9", "a1", title="Mye snø")]


@pytest.fixture
def log(tmp_path):
    def write(*days):
        for day, lines in enumerate(days, start=20170101):
            (tmp_path / f"{day}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path

    return write


def test_the_last_day_is_dev(log):
    folder = log(FIRST, FIRST, LAST)
    (folder / "README.txt").touch()
    assert adressa.recognises(folder)
    train, dev = adressa.open_splits(folder)
    assert (train.name, dev.name) == ("train", "dev")
    assert [file.name for file in dev.files] == ["20170101", "20170102", "20170103"]


def test_days_may_be_compressed(log, impression_rows):
    folder = log(FIRST, LAST)
    expected = [impression_rows(split) for split in adressa.open_splits(folder)]
    for day in list(folder.iterdir()):
        (folder / f"{day.name}.gz").write_bytes(gzip.compress(day.read_bytes()))
        day.unlink()
    assert [impression_rows(split) for split in adressa.open_splits(folder)] == expected


def test_an_event_with_a_news_id_is_one_click(log, impression_rows):
    train, dev = adressa.open_splits(log(FIRST, LAST))
    assert [list(row.values()) for row in impression_rows(train)] == [
        ["1", "cx:7", TIME, ["a1"], [], [], None],
        ["2", "cx:8", TIME, ["a2"], [], [], None],
        ["3", "cx:8", TIME, ["a1"], [], [], None],
    ]
    assert [list(row.values()) for row in impression_rows(dev)] == [
        ["1", "cx:7", TIME, ["a2"], [], [], None],
        ["2", "cx:9", TIME, ["a1"], [], [], None],
    ]


def test_both_splits_have_the_first_title_of_every_news(log, news_rows):
    train, dev = adressa.open_splits(log(FIRST, LAST))
    expected = [
        ["a1", "nyheter", "vær|snø", "Snø i natt", "", ""],
        ["a2", "sport", "", "Ishockey", "", ""],
    ]
    assert [list(row.values()) for row in news_rows(train)] == expected
    assert news_rows(dev) == news_rows(train)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{broken", "no event ("),
        ("[1, 2]", "no event ("),
        ("", "no event ("),
        (event("cx:7") + event("cx:8"), "no event (2 objects)"),
        (event("cx:7", "a1", time="yesterday"), "no event ("),
        (event("cx:7", "a1", time=1.5), "no event ("),
        (event(None, "a1"), "an event with an id but no userId or no time"),
        (event("cx:7", "a1", time=None), "an event with an id but no userId or no time"),
    ],
)
def test_a_broken_event_names_its_line(log, impression_rows, line, found):
    train, _ = adressa.open_splits(log([*FIRST, line, *FIRST], LAST))
    with pytest.raises(InputError) as error:
        impression_rows(train)
    assert f"20170101:5: found {found}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("time", [-1, SECONDS * 1000, 2**62])
def test_times_in_another_unit_are_refused(log, impression_rows, time):
    train, _ = adressa.open_splits(log([event("cx:7", "a1"), event("cx:8", "a1", time=time)], LAST))
    with pytest.raises(InputError, match=rf"20170101:2: found time {time}, expected whole seconds since 1970"):
        impression_rows(train)


def test_one_day_is_too_few(log):
    with pytest.raises(InputError, match="found fewer than two days, expected two or more files of JSON events"):
        adressa.open_splits(log(FIRST))
