"""Adressa: JSON events, one per line, one file per day named by its date (`20170101`); the last day is dev.

    {"userId": "cx:7", "time": 1483225200, "id": "a1", "title": "Snø i natt", "category1": "nyheter|vær"}

There are no impressions: an event with a news id is one click, with nothing skipped. An event without one is a
visit to a front page and is left out. Titles come from the events of all days, the first of an id is used; there
is no abstract and no body.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from speedyfeed.data.readers.text import Lines, read_lines
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError

FILES = "two or more files of JSON events named by their day, as 20170101, 20170101.json or 20170101.gz"

EARLIEST = 631_152_000
"""Seconds since 1970 of 1990-01-01: earlier times are of a wrong unit."""
SECONDS_PER_DAY = 86_400

_DAY = re.compile(r"\d{8}(\.jsonl?)?(\.gz)?")
_EVENT = pa.schema(
    {
        "userId": pa.string(),
        "time": pa.int64(),
        "id": pa.string(),
        "title": pa.string(),
        "category": pa.string(),
        "category1": pa.string(),
    }
)
_PARSING = pj.ParseOptions(explicit_schema=_EVENT, unexpected_field_behavior="ignore")
_CATEGORIES = r"(?s)^(?P<category>[^|]*)\|?(?P<subcategory>.*)$"


def recognises(folder: Path) -> bool:
    return bool(_find_days(folder))


def open_splits(folder: Path) -> tuple[Split, ...]:
    days = _find_days(folder)
    if len(days) < 2:
        raise InputError(
            f"{folder}: found fewer than two days, expected {FILES}; add the days before dev, the last"
        )
    return tuple(
        # Both splits read the titles of all days: a headline changed overnight must not make two texts of one id.
        Split(name=name, files=days, news=partial(_read_news, days), impressions=partial(_read_clicks, part))
        for name, part in (("train", days[:-1]), ("dev", days[-1:]))
    )


def _find_days(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.iterdir() if _DAY.fullmatch(path.name) and path.is_file()))


def _read_news(days: tuple[Path, ...]) -> Iterator[pa.RecordBatch]:
    seen: set[str] = set()
    for day in days:
        for events in _read_events(day):
            rows, titles = [], events["title"].to_pylist()
            for row, news_id in enumerate(events["id"].to_pylist()):
                if titles[row] and news_id not in seen:
                    seen.add(news_id)
                    rows.append(row)
            if rows:
                yield _news(events.take(pa.array(rows)))


def _news(events: pa.RecordBatch) -> pa.RecordBatch:
    categories = pc.coalesce(events["category1"], events["category"], pa.scalar(""))
    category, subcategory = pc.extract_regex(categories, _CATEGORIES).flatten()
    empty = pa.repeat("", len(events))
    columns = [events["id"], category, subcategory, events["title"], empty, empty]
    return pa.record_batch(columns, schema=NEWS)


def _read_clicks(days: tuple[Path, ...]) -> Iterator[pa.RecordBatch]:
    num_clicks = 0
    for day in days:
        for events in _read_events(day):
            offsets = np.arange(len(events) + 1, dtype=np.int32)
            nothing = pa.repeat(pa.scalar([], IMPRESSIONS.field("skipped").type), len(events))
            yield pa.record_batch(
                [
                    pa.array(num_clicks + np.arange(1, len(events) + 1)).cast(pa.string()),
                    events["userId"],
                    events["time"].cast(pa.timestamp("s")).cast(pa.timestamp("us")),
                    pa.ListArray.from_arrays(pa.array(offsets), events["id"]),
                    nothing,
                    nothing,
                    pa.nulls(len(events), IMPRESSIONS.field("candidates").type),
                ],
                schema=IMPRESSIONS,
            )
            num_clicks += len(events)


def _read_events(path: Path) -> Iterator[pa.RecordBatch]:
    """Events with a news id, each with a user and a time."""
    for lines in read_lines(path):
        events = _parse(lines)
        has_id = pc.greater(pc.binary_length(events["id"]), 0).fill_null(False)
        has_rest = pc.and_(events["userId"].is_valid(), events["time"].is_valid())
        lines.check(
            pc.or_(has_rest, pc.invert(has_id)),
            lambda _: "an event with an id but no userId or no time",
            "both",
            "add them or remove the line",
        )
        _check_times(lines, events["time"], has_id)
        yield events.filter(has_id)


def _check_times(lines: Lines, times: pa.Int64Array, has_id: pa.BooleanArray) -> None:
    """Refuse events with an id before 1990 or after tomorrow."""
    latest = int(time.time()) + SECONDS_PER_DAY
    is_sound = pc.and_(pc.greater_equal(times, EARLIEST), pc.less_equal(times, latest))
    lines.check(
        pc.or_(is_sound.fill_null(True), pc.invert(has_id)),
        lambda row: f"time {times[row]}",
        "whole seconds since 1970, from 1990 to now",
        "correct or remove the line",
    )


def _parse(lines: Lines) -> pa.RecordBatch:
    with suppress(pa.ArrowInvalid):
        events = _parse_json(lines.text)
        if len(events) == len(lines.text):
            return events
    errors = [_find_error(line) for line in lines.text]
    lines.check(
        pa.array([error is None for error in errors]),
        lambda row: f"no event ({errors[row]})",
        "one JSON object with time in whole seconds and userId, id, title and category as strings",
        "correct or remove the line",
    )
    raise AssertionError(f"{lines.path}: events that parse one by one, but not together")


def _parse_json(texts: pa.StringArray) -> pa.RecordBatch:
    joined = "\n".join(texts.to_pylist()).encode()
    options = pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    table = pj.read_json(pa.BufferReader(joined), options, _PARSING)
    return pa.record_batch([table[name].combine_chunks() for name in _EVENT.names], schema=_EVENT)


def _find_error(line: pa.StringScalar) -> str | None:
    """Error of the parser for a single line, or None."""
    try:
        num_events = len(_parse_json(pa.array([line])))
    except pa.ArrowInvalid as error:
        return str(error).split(" in row ")[0]
    return None if num_events == 1 else f"{num_events} objects"
