"""Interactions: a table of items with their text, and a table of who clicked which item when.

    items.csv                    interactions.csv               split last
    item_id,title                user_id,item_id,timestamp      U7: N3 N5 | N4 | N9
    N3,"Snow, at last"           U7,N3,2026-01-31T09:05:58          train valid test

There are no impressions: an interaction is one click, with nothing skipped. There are no splits either: by `time`,
the last interactions are dev; by `last`, each user's last click is test and the one before it valid. Interactions
are sorted in memory, about 140 bytes each at the peak; items are streamed, only their ids are held.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers.clicks import Clicks, Ids, load_clicks, load_ids, without_zeros
from speedyfeed.data.readers.headed import KINDS, HeadedTable
from speedyfeed.data.readers.roles import find_roles
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError

FILES = (
    "items (or articles, news) and interactions (or clicks, events), each as .csv, .tsv, .jsonl, one of these "
    "with .gz, or .parquet"
)
DEV_SHARE = 0.1
"""Share of the interactions that a split by time gives to dev."""
MIN_CLICKS = 3
"""Clicks a user needs for one in each of train, valid and test."""
HISTORY_CLICKS = 500
"""Newest clicks of a history; with all of them, a user of many clicks would take quadratic room."""
BATCH_ROWS = 2048

_ITEMS = ("items", "articles", "news")
_INTERACTIONS = ("interactions", "clicks", "events")
_DEFAULTS = ReaderOptions()


def recognises(folder: Path) -> bool:
    return bool(_find_files(folder, _ITEMS) and _find_files(folder, _INTERACTIONS))


def open_splits(folder: Path, options: ReaderOptions = _DEFAULTS) -> tuple[Split, ...]:
    log = _Log(_find_table(folder, _ITEMS), _find_table(folder, _INTERACTIONS), options)
    names = ("train", "valid", "test") if options.split == "last" else ("train", "dev")
    return tuple(
        Split(
            name=name,
            files=(log.items.path, log.interactions.path),
            # All splits share the items: train yields them, so that none is counted twice.
            news=log.read_news if name == "train" else _no_news,
            impressions=partial(log.read_clicks, number),
            notes=log.describe if name == "train" else tuple,
        )
        for number, name in enumerate(names)
    )


def _find_files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    paths = [folder / f"{name}{kind}" for name in names for kind in KINDS]
    return [path for path in paths if path.is_file()]


def _find_table(folder: Path, names: tuple[str, ...]) -> HeadedTable:
    paths = _find_files(folder, names)
    if not paths:
        raise InputError(f"{folder}: found no table of {names[0]}, expected {FILES}; add the file")
    if len(paths) > 1:
        found = " and ".join(path.name for path in paths)
        raise InputError(f"{folder}: found {found}, expected one table of {names[0]}; remove one of them")
    return HeadedTable(paths[0])


def _no_news() -> Iterator[pa.RecordBatch]:
    return iter(())


@dataclass(frozen=True)
class _Log:
    """The two tables of a log, loaded when first needed."""

    items: HeadedTable
    interactions: HeadedTable
    options: ReaderOptions

    @cached_property
    def roles(self) -> tuple[dict[str, str], dict[str, str]]:
        """Columns of the items and of the interactions, by meaning."""
        return find_roles(self.items, self.interactions, self.options.column_names())

    @cached_property
    def item_ids(self) -> Ids:
        """Ids of all rows of the items."""
        return load_ids(self.items, self.roles[0]["item"])

    @cached_property
    def is_newest(self) -> NDArray[np.bool_]:
        """Whether each row of the items is the last one with its id."""
        codes = self.item_ids.codes
        last = np.zeros(len(self.item_ids.distinct), np.int64)
        np.maximum.at(last, codes, np.arange(len(codes)))
        is_newest = np.zeros(len(codes), np.bool_)
        is_newest[last] = True
        return is_newest

    @cached_property
    def clicks(self) -> Clicks:
        """All interactions but repeated ones."""
        return load_clicks(self.interactions, self.roles[1])

    @cached_property
    def split_C(self) -> NDArray[np.int8]:
        """Split of each click: 0 train, 1 dev or valid, 2 test."""
        return self._split_by_place() if self.options.split == "last" else self._split_by_time()

    @cached_property
    def dev_from(self) -> int:
        """Time at which dev begins in a split by time: as asked for, or when the last tenth begins."""
        if self.options.dev_from is None:
            time_C = np.sort(self.clicks.time_C)
            return int(time_C[int(len(time_C) * (1 - DEV_SHARE))])
        time = datetime.fromisoformat(self.options.dev_from)
        in_utc = time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
        return int(np.datetime64(in_utc, "us").astype(np.int64))

    def read_news(self) -> Iterator[pa.RecordBatch]:
        """Items as articles; of several rows with one id the last is used."""
        columns, num_rows = self.roles[0], 0
        for batch in self.items.read(list(columns.values())):
            found = dict(zip(columns, batch.columns, strict=True))
            ids = without_zeros(found["item"]) if self.item_ids.were_floats else found["item"]
            nothing = pa.repeat("", len(batch))
            rest = [_as_text(found.get(name, nothing)) for name in NEWS.names[1:]]
            keep = self.is_newest[num_rows : num_rows + len(batch)]
            yield pa.record_batch([ids, *rest], schema=NEWS).filter(pa.array(keep))
            num_rows += len(batch)

    def read_clicks(self, split: int) -> Iterator[pa.RecordBatch]:
        """Clicks of a split, one per row; in all but train with the user's earlier clicks as history."""
        clicks = self.clicks
        positions = np.flatnonzero(self.split_C == split)
        for start in range(0, len(positions), BATCH_ROWS):
            rows = positions[start : start + BATCH_ROWS]
            # The history of a train click is the timeline itself.
            begins = np.maximum(clicks.first_C[rows], rows - HISTORY_CLICKS) if split else rows
            yield pa.record_batch(
                [
                    pa.array(start + np.arange(1, len(rows) + 1)).cast(pa.string()),
                    clicks.users.distinct.take(pa.array(clicks.users.codes[rows])),
                    pa.array(clicks.time_C[rows]).cast(pa.timestamp("us")),
                    _ranges(clicks.items, rows, rows + 1),
                    pa.repeat(pa.scalar([], IMPRESSIONS.field("skipped").type), len(rows)),
                    _ranges(clicks.items, begins, rows),
                    pa.nulls(len(rows), IMPRESSIONS.field("candidates").type),
                ],
                schema=IMPRESSIONS,
            )

    def describe(self) -> tuple[str, ...]:
        """Statements about the split and about what was left out or read otherwise, for the summary."""
        notes = [self._describe_split()]
        if num_repeated := int((~self.is_newest).sum()):
            notes.append(
                f"{self.items.path.name}: {_rows(num_repeated)} with the id of a later row, which is used"
            )
        if num_repeated := self.clicks.num_repeated:
            same = "with user, item and time of an earlier row"
            notes.append(f"{self.interactions.path.name}: {_rows(num_repeated)} {same}, left out")
        for table, columns in zip((self.items, self.interactions), self.roles, strict=True):
            if unread := [name for name in table.names if name not in columns.values()]:
                notes.append(f"{table.path.name}: columns not read ({len(unread)}): {', '.join(unread)}")
        ids = (self.items, "item", self.item_ids), (self.interactions, "item", self.clicks.items)
        for table, role, column in (*ids, (self.interactions, "user", self.clicks.users)):
            if column.were_floats:
                notes.append(f"{table.path.name}: {role} ids are all written as 12.0 and read as 12")
        return tuple(notes)

    def _split_by_place(self) -> NDArray[np.int8]:
        remaining_C = self.clicks.remaining_C
        num_clicks_C = np.arange(len(remaining_C)) - self.clicks.first_C + remaining_C + 1
        split_C = np.where(num_clicks_C >= MIN_CLICKS, (2 - remaining_C).clip(min=0), 0).astype(np.int8)
        if not split_C.any():
            raise InputError(
                f"{self.interactions.path}: found no user with {MIN_CLICKS} clicks, expected some for --split "
                "last; use --split time"
            )
        return split_C

    def _split_by_time(self) -> NDArray[np.int8]:
        time_C = self.clicks.time_C
        split_C = (time_C >= self.dev_from).astype(np.int8)
        if split_C.all() or not split_C.any():
            raise InputError(
                f"{self.interactions.path}: found times from {_moment(time_C.min())} to {_moment(time_C.max())}, "
                f"expected some before dev begins at {_moment(self.dev_from)} and some after; give another "
                "--dev-from, or --split last"
            )
        return split_C

    def _describe_split(self) -> str:
        if self.options.split == "time":
            share = f"{self.split_C.mean():.1%} of the interactions"
            return f"split by time: dev begins at {_moment(self.dev_from)}, {share}"
        num_users = len(self.clicks.users.distinct)
        num_short = num_users - int((self.split_C == 2).sum())
        return (
            f"split last: each user's last click is test, the one before it valid; {num_short:,} of {num_users:,} "
            f"users have fewer than {MIN_CLICKS} clicks and are in train only"
        )


def _ranges(items: Ids, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.ListArray:
    """Lists of the items of consecutive clicks: those from each begin up to each end."""
    offsets = np.zeros(len(begins) + 1, np.int64)
    np.cumsum(ends - begins, out=offsets[1:])
    positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], ends - begins)
    values = items.distinct.take(pa.array(items.codes[positions]))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _as_text(column: pa.Array) -> pa.StringArray:
    """A text column as strings; only Parquet may have other types, as a date."""
    return column if column.type == pa.string() else column.cast(pa.string()).fill_null("")


def _moment(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]")).replace("T", " ")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
