"""The files of SpeedyRec, the paper's own code: `DocFeatures.tsv` and numbered `ProtoBuf_*.tsv`, which are text.

    train  U7 <tab> N3;N5&N1;N2|N4&N6           one line per user: clicked & skipped of each impression
    dev    U7 <tab> N3;N5 <tab> N4 <tab> N6     one line per impression: history, clicked, skipped
    test   U7 <tab> N3;N5 <tab> N4              one line per user and day: history, clicked
           N1 <tab> N4 <tab> N6                 all articles of the day, among which clicks are searched

The files have neither impression ids nor times. Impressions are numbered, and each is placed one second after the
one before, which preserves their order and puts dev after train. Days of test are days from 2030 on. The articles
of a day are one impression of its own without labels, so that they are the pool of the day.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.readers.folders import require_file
from speedyfeed.data.readers.msnews import read_news
from speedyfeed.data.readers.text import Lines, read_lines, split_lists
from speedyfeed.data.tables import IMPRESSIONS, Split
from speedyfeed.errors import InputError

FILES = (
    "DocFeatures.tsv (or one in traindata/ and in testdata/), traindata/ProtoBuf_*.tsv and "
    "testdata/impressions/ProtoBuf_*.tsv (and testdata/daily_recall/)"
)

_FOLDERS = {
    "train": ("traindata", "."),
    "dev": ("testdata/impressions", "testdata", "impressions"),
    "test": ("testdata/daily_recall", "daily_recall"),
}
"""Folders where the files of a split may be; the first that has any is used. Dev has labels."""

_NEWS_FOLDERS = {"train": ("traindata", ".", "testdata")} | dict.fromkeys(
    ("dev", "test"), ("testdata", ".", "traindata")
)
"""Folders where the articles of a split may be; the first that has them is used."""

_START = {"train": datetime(1970, 1, 1), "dev": datetime(2000, 1, 1), "test": datetime(2030, 1, 1)}


def recognises(folder: Path) -> bool:
    return any((folder / name / "DocFeatures.tsv").is_file() for name in _NEWS_FOLDERS["train"])


def open_splits(folder: Path) -> tuple[Split, ...]:
    parts = {name: _find_parts(folder, name) for name in _FOLDERS}
    if not any(parts.values()):
        raise InputError(f"{folder}: found no ProtoBuf_*.tsv, expected {FILES}; add the click logs")
    return tuple(_open_split(folder, name, paths) for name, paths in parts.items() if paths)


def _open_split(folder: Path, name: str, paths: tuple[Path, ...]) -> Split:
    files = [folder / part / "DocFeatures.tsv" for part in _NEWS_FOLDERS[name]]
    news = next((file for file in files if file.is_file()), None) or require_file(files[0], FILES)
    read = _read_days if name == "test" else partial(_read_impressions, split=name)
    return Split(
        name=name,
        files=(news, *paths),
        news=partial(read_news, news),
        impressions=partial(read, paths),
        has_times=False,
    )


def _find_parts(folder: Path, split: str) -> tuple[Path, ...]:
    """Files of a split, ordered by their numbers: 2 comes before 10."""
    names = ("daily_news_*.tsv", "history_positive_*.tsv") if split == "test" else ("ProtoBuf_*.tsv",)
    for subfolder in _FOLDERS[split]:
        found = [
            sorted((folder / subfolder).glob(name), key=lambda path: (len(path.name), path.name)) for name in names
        ]
        if paths := [path for part in found for path in part]:
            return tuple(paths)
    return ()


def _read_impressions(paths: tuple[Path, ...], split: str) -> Iterator[pa.RecordBatch]:
    parse = _PARSERS[split]
    first = 1
    for path in paths:
        for lines in read_lines(path):
            user_id, history, clicked, skipped = parse(lines)
            numbers = np.arange(first, first + len(user_id))
            times = np.datetime64(_START[split], "us") + numbers.astype("timedelta64[s]")
            lists = (split_lists(column, ";") for column in (clicked, skipped, history))
            yield _batch(numbers, user_id, times, *lists)
            first += len(user_id)


def _read_days(paths: tuple[Path, ...]) -> Iterator[pa.RecordBatch]:
    """Impressions of all days: the articles of each day, without labels, then the clicks of each user."""
    first = 1
    days = sorted({_day(path) for path in paths})
    for path in sorted(paths, key=_day):
        day = np.datetime64(_START["test"], "us") + np.timedelta64(days.index(_day(path)), "D")
        for lines in read_lines(path):
            is_pool = path.name.startswith("daily_news_")
            user_id, history, clicked = (
                [pa.repeat(path.stem, len(lines.text)), *[pa.repeat("", len(lines.text))] * 2]
                if is_pool
                else lines.split(("user_id", "history", "clicked"))
            )
            numbers = np.arange(first, first + len(user_id))
            none = split_lists(pa.repeat("", len(user_id)), ";")
            yield _batch(
                numbers,
                user_id,
                day + numbers.astype("timedelta64[us]"),
                split_lists(clicked, ";"),
                none,
                split_lists(history, ";"),
                split_lists(lines.text, "\t") if is_pool else None,
            )
            first += len(user_id)


def _day(path: Path) -> tuple[int, str]:
    """What follows the last underscore of a file name, ordered like the number it is."""
    day = path.stem.rpartition("_")[2]
    return (len(day), day)


def _batch(
    numbers: NDArray[np.int64],
    user_id: pa.StringArray,
    times: NDArray[np.datetime64],
    clicked: pa.ListArray,
    skipped: pa.ListArray,
    history: pa.ListArray,
    candidates: pa.ListArray | None = None,
) -> pa.RecordBatch:
    if candidates is None:
        candidates = pa.nulls(len(user_id), IMPRESSIONS.field("candidates").type)
    ids = pa.array(numbers).cast(pa.string())
    return pa.record_batch(
        [ids, user_id, pa.array(times), clicked, skipped, history, candidates], schema=IMPRESSIONS
    )


def _parse_users(lines: Lines) -> list[pa.StringArray]:
    user_id, record = lines.split(("user_id", "impressions"))
    records = split_lists(record, "|")
    clicked, skipped = lines.explode(records).split(("clicked", "skipped"), "&")
    return [user_id.take(pc.list_parent_indices(records)), pa.repeat("", len(clicked)), clicked, skipped]


def _parse_impressions(lines: Lines) -> list[pa.StringArray]:
    return lines.split(("user_id", "history", "clicked", "skipped"))


_PARSERS: dict[str, Callable[[Lines], list[pa.StringArray]]] = {"train": _parse_users, "dev": _parse_impressions}
"""Parsers of each split to user id, history, clicked and skipped, one row per impression."""
