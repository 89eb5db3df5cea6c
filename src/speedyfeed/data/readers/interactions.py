"""Interactions: a table of items with their text, and a table of who clicked which item when.

    items.csv                    interactions.csv               split last
    item_id,title                user_id,item_id,timestamp      U7: N3 N5 | N4 | N9
    N3,"Snow, at last"           U7,N3,2026-01-31T09:05:58          train valid test

There are no impressions: an interaction is one click, with nothing skipped. There are no splits either: by `time`,
the last interactions are dev; by `last`, each user's last click is test and the one before it valid. Interactions
are sorted in memory, about 140 bytes each at the peak; items are streamed, only their ids are held. Of a category
that is a list, or written as A|B or A > B, the first is the category and the second the subcategory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial, reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.reader_options import NO_TIME, ReaderOptions
from speedyfeed.data.readers.clicks import Clicks, Ids, load_clicks, load_ids, without_zeros
from speedyfeed.data.readers.discovery import FILES, find_tables, is_found, unread_files
from speedyfeed.data.readers.lists import join_lists, split_category
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.roles import find_roles
from speedyfeed.data.tables import FIELDS, IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError

__all__ = ["FILES", "open_splits", "recognises"]

DEV_SHARE = 0.1
"""Share of the interactions that a split by time gives to dev."""
MIN_CLICKS = 3
"""Clicks a user needs for one in each of train, valid and test."""
HISTORY_CLICKS = 500
"""Newest clicks of a history; with all of them, a user of many clicks would take quadratic room."""
BATCH_ROWS = 2048
SHOWN_FILES = 12
"""Number of files that are not read which the summary names."""

_DEFAULTS = ReaderOptions()


def recognises(folder: Path) -> bool:
    return is_found(folder)


def open_splits(folder: Path, options: ReaderOptions = _DEFAULTS) -> tuple[Split, ...]:
    log = _Log(*find_tables(folder, options), options)
    names = ("train", "valid", "test") if options.split == "last" else ("train", "dev")
    return tuple(
        Split(
            name=name,
            files=(*log.items.paths, *log.interactions.paths),
            # All splits share the items: train yields them, so that none is counted twice.
            news=log.read_news if name == "train" else _no_news,
            impressions=partial(log.read_clicks, number),
            has_times=log.has_times,
            notes=log.describe if name == "train" else tuple,
        )
        for number, name in enumerate(names)
    )


def _no_news() -> Iterator[pa.RecordBatch]:
    return iter(())


@dataclass(frozen=True)
class _Log:
    """The two tables of a log, loaded when first needed."""

    items: PartedTable
    interactions: PartedTable
    options: ReaderOptions

    @property
    def has_times(self) -> bool:
        """Whether the interactions have times of their own."""
        return self.options.column_names().get("time") != NO_TIME

    @cached_property
    def roles(self) -> tuple[dict[str, str], dict[str, str]]:
        """Columns of the items and of the interactions, by meaning."""
        return find_roles(self.items, self.interactions, self.options.column_names())

    @cached_property
    def item_ids(self) -> Ids:
        """Ids of all rows of the items."""
        return load_ids(self.items, self.roles[0]["item"])

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Whether each row of the items has a text, where ids are repeated; otherwise nothing is looked up."""
        codes = self.item_ids.codes
        if len(self.item_ids.distinct) == (codes >= 0).sum():
            return np.ones(len(codes), np.bool_)
        columns = [name for role, name in self.roles[0].items() if role in FIELDS]
        parts = []
        for batch in self.items.read(columns, lists=True):
            texts = (pc.not_equal(pc.utf8_trim_whitespace(_as_text(column)), "") for column in batch.columns)
            parts.append(reduce(pc.or_, texts).to_numpy(zero_copy_only=False))
        return np.concatenate(parts)

    @cached_property
    def is_newest(self) -> NDArray[np.bool_]:
        """Whether each row of the items is the last one with its id and a text, or the last if none has any."""
        codes = self.item_ids.codes
        last = np.full(len(self.item_ids.distinct), -1)
        rows = np.flatnonzero(codes >= 0)
        ranks = rows + len(codes) * self.has_text[rows]  # any row with a text comes after all without
        np.maximum.at(last, codes[rows], ranks)
        is_newest = np.zeros(len(codes), np.bool_)
        is_newest[last[last >= 0] % len(codes)] = True
        return is_newest

    @cached_property
    def clicks(self) -> Clicks:
        """All interactions but repeated ones."""
        clicks = load_clicks(self.interactions, self.roles[1], self.options)
        if not len(clicks.time_C):
            raise InputError(
                f"{self.interactions.path}: found no row that is a click, expected at least one; check --events, "
                "--min-weight and --skip-broken"
            )
        return clicks

    @cached_property
    def split_C(self) -> NDArray[np.int8]:
        """Split of each click: 0 train, 1 dev or valid, 2 test."""
        return self._split_by_place() if self.options.split == "last" else self._split_by_time()

    @cached_property
    def dev_from(self) -> int:
        """Time at which dev begins in a split by time: as asked for, or when the last tenth begins."""
        if self.options.dev_from is not None and not self.has_times:
            raise InputError("--dev-from: found with --columns time=none, expected times; leave one out")
        if self.options.dev_from is None:
            time_C = np.sort(self.clicks.time_C)
            return int(time_C[int(len(time_C) * (1 - DEV_SHARE))])
        time = datetime.fromisoformat(self.options.dev_from)
        in_utc = time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
        return int(np.datetime64(in_utc, "us").astype(np.int64))

    def read_news(self) -> Iterator[pa.RecordBatch]:
        """Items as articles; of several rows with one id the last with a text is used."""
        columns, num_rows = self.roles[0], 0
        for batch in self.items.read(list(columns.values()), lists=True):
            found = {role: _as_text(column) for role, column in zip(columns, batch.columns, strict=True)}
            ids = without_zeros(found["item"]) if self.item_ids.were_floats else found["item"]
            nothing = pa.repeat("", len(batch))
            category, second = split_category(found.get("category", nothing))
            subcategory = split_category(found["subcategory"])[0] if "subcategory" in found else second
            texts = [join_lists(found.get(field, nothing)) for field in FIELDS]
            keep = self.is_newest[num_rows : num_rows + len(batch)]
            yield pa.record_batch([ids, category, subcategory, *texts], schema=NEWS).filter(pa.array(keep))
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
        notes = [self._describe_split(), *self._describe_columns()]
        if unread := unread_files((self.items, self.interactions)):
            rest = f" and {len(unread) - SHOWN_FILES:,} more" if len(unread) > SHOWN_FILES else ""
            notes.append(f"files not read ({len(unread):,}): {', '.join(unread[:SHOWN_FILES])}{rest}")
        num_rows = int((self.item_ids.codes >= 0).sum())
        if num_repeated := num_rows - int(self.is_newest.sum()):
            notes.append(
                f"{self.items.name}: {_rows(num_repeated)} with the id of another row; of each id the last with a "
                "text is used"
            )
        notes += self.clicks.notes
        if num_repeated := self.clicks.num_repeated:
            same = "with user, item and time of an earlier row"
            notes.append(f"{self.interactions.name}: {_rows(num_repeated)} {same}, left out")
        ids = (self.items, "item", self.item_ids), (self.interactions, "item", self.clicks.items)
        for table, role, column in (*ids, (self.interactions, "user", self.clicks.users)):
            if column.were_floats:
                notes.append(f"{table.name}: {role} ids are all written as 12.0 and read as 12")
        tables = (self.items, self.interactions)
        for table in tables[: 1 if self.items is self.interactions else 2]:
            if broken := table.broken:
                notes.append(f"{table.name}: {_rows(len(broken))} left out as broken, the first: {broken[0]}")
        return tuple(notes)

    def _describe_columns(self) -> Iterator[str]:
        """Which column of each table has which meaning, and which are not read."""
        for table, columns in zip((self.items, self.interactions), self.roles, strict=True):
            if self.options.min_weight is None:
                columns = {role: name for role, name in columns.items() if role != "weight"}
            used = ", ".join(role if role == name else f"{role} {name}" for role, name in columns.items())
            unread = [name or '""' for name in table.names if name not in columns.values()]
            rest = f"; not read ({len(unread)}): {', '.join(unread)}" if unread else ""
            yield f"{table.name}: columns {used}{rest}"

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
        if self.options.split == "time" and not self.has_times:
            return f"split by the order of the rows, without times: dev has the last {self.split_C.mean():.1%}"
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
