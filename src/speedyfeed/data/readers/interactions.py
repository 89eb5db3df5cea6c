"""Interactions: a table of items with their text, and a table of who clicked which item when.

    items.csv                    interactions.csv               split last
    item_id,title                user_id,item_id,timestamp      U7: N3 N5 | N4 | N9
    N3,"Snow, at last"           U7,N3,2026-01-31T09:05:58          train valid test

An interaction is one click, with nothing skipped; only a log with labels and ids of impressions has impressions.
There are no splits: by `time`, the last interactions are dev; by `last`, each user's last click on a new article
is test and the one before it valid. To evaluate a later log, all of it is one split. Interactions are sorted in
memory, about 140 bytes each at the peak; items are streamed, only their ids are held. Of a category that is a
list, or written as A|B or A > B, the first is the category and the second the subcategory.

Shapes: C clicks of the log, I impressions.
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

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers.clicks import Clicks, Ids, is_first, load_clicks, load_ids, without_zeros
from speedyfeed.data.readers.discovery import FILES, find_tables, is_found, unread_files
from speedyfeed.data.readers.lists import join_lists, split_category
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.roles import CLICKED, find_roles, plain
from speedyfeed.data.tables import FIELDS, IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError
from speedyfeed.ragged import offsets_of

__all__ = ["FILES", "open_splits", "open_whole", "recognises"]

DEV_SHARE = 0.1
"""Share of the interactions that a split by time gives to dev."""
MIN_CLICKS = 3
"""Clicks on different articles that a user needs for one in each of train, valid and test."""
IN_NO_SPLIT = 3
"""Split of clicks on articles clicked before, behind a user's valid click: they are in histories only."""
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
    names = ("train", "valid", "test") if options.split_by == "last" else ("train", "dev")
    return tuple(
        Split(
            name=name,
            files=(*log.items.paths, *log.interactions.paths),
            # All splits share the items: train yields them, so that none is counted twice.
            news=log.read_news if name == "train" else _no_news,
            impressions=partial(log.read_impressions, number),
            has_times=options.has_times,
            notes=log.describe if name == "train" else tuple,
        )
        for number, name in enumerate(names)
    )


def open_whole(folder: Path, options: ReaderOptions) -> tuple[Split, ...]:
    """Open a log as one split to rank, each click with the user's earlier clicks of this log as history."""
    log = _Log(*find_tables(folder, options), options, is_whole=True)
    whole = Split(
        name="test",
        files=(*log.items.paths, *log.interactions.paths),
        news=log.read_news,
        impressions=partial(log.read_impressions, 0),
        has_times=options.has_times,
        notes=log.describe,
    )
    return (whole,)


def _no_news() -> Iterator[pa.RecordBatch]:
    return iter(())


@dataclass(frozen=True)
class _Log:
    """The two tables of a log, loaded when first needed."""

    items: PartedTable
    interactions: PartedTable
    options: ReaderOptions
    is_whole: bool = False
    """Whether all of it is one split to rank."""

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
        """All clicks but repeated ones."""
        clicks = load_clicks(self.interactions, self.roles[1], self.options)
        if not len(clicks.time_C):
            raise InputError(
                f"{self.interactions.path}: found no row that is a click, expected at least one; check --events, "
                "--min-weight, --columns label=COLUMN and --skip-broken"
            )
        if (
            clicks.are_all_distinct
            and plain(self.item_column) == "id"
            and not (self.is_whole or self.is_item_named)
        ):
            raise InputError(
                f"{self.interactions.path}: found another {self.item_column} in every row (columns: "
                f"{', '.join(self.interactions.names)}), expected the item, which several users click; name it "
                f"with --columns {CLICKED}=COLUMN, or with {CLICKED}={self.item_column} if it is that"
            )
        return clicks

    @property
    def item_column(self) -> str:
        """Column of the item in the interactions."""
        return self.roles[1]["item"]

    @property
    def is_item_named(self) -> bool:
        """Whether `--columns` names the column of the item in the interactions."""
        named = self.options.column_names()
        return self.item_column in (named.get("item"), named.get(CLICKED))

    @cached_property
    def split_I(self) -> NDArray[np.int8]:
        """Split of each impression: 0 train, 1 dev or valid, 2 test; 0 for all that are ranked."""
        if self.is_whole:
            return np.zeros(len(self.clicks.bounds_I) - 1, np.int8)
        return self._split_by_place() if self.options.split_by == "last" else self._split_by_time()

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

    def read_impressions(self, split: int) -> Iterator[pa.RecordBatch]:
        """Impressions of a split; in all but train with the user's earlier clicks as history."""
        clicks, has_history = self.clicks, self.is_whole or split > 0
        impressions = np.flatnonzero(self.split_I == split)
        for start in range(0, len(impressions), BATCH_ROWS):
            rows = impressions[start : start + BATCH_ROWS]
            begins, ends = clicks.bounds_I[rows], clicks.bounds_I[rows + 1]
            # The history of a train click is the timeline itself.
            earliest = np.maximum(clicks.first_C[begins], begins - HISTORY_CLICKS) if has_history else begins
            if clicks.skipped is None:
                skipped = pa.repeat(pa.scalar([], IMPRESSIONS.field("skipped").type), len(rows))
            else:
                shown = clicks.skipped.take(rows)
                skipped = _lists(clicks.items, shown.values, shown.offsets)
            yield pa.record_batch(
                [
                    pa.array(start + np.arange(1, len(rows) + 1)).cast(pa.string()),
                    clicks.users.distinct.take(pa.array(clicks.users.codes[begins])),
                    pa.array(clicks.time_C[begins]).cast(pa.timestamp("us")),
                    _ranges(clicks.items, begins, ends),
                    skipped,
                    _ranges(clicks.items, earliest, begins),
                    pa.nulls(len(rows), IMPRESSIONS.field("candidates").type),
                ],
                schema=IMPRESSIONS,
            )

    def describe(self) -> tuple[str, ...]:
        """Statements about the split and about what was left out or read otherwise, for the summary."""
        notes = [*self._describe_split(), *self._describe_columns()]
        if unread := unread_files((self.items, self.interactions)):
            rest = f" and {len(unread) - SHOWN_FILES:,} more" if len(unread) > SHOWN_FILES else ""
            notes.append(f"files not read ({len(unread):,}): {', '.join(unread[:SHOWN_FILES])}{rest}")
        num_rows = int((self.item_ids.codes >= 0).sum())
        if num_repeated := num_rows - int(self.is_newest.sum()):
            notes.append(
                f"{self.items.name}: {_rows(num_repeated)} with the id of another row; of each id the last with a "
                "text is used"
            )
        notes += [*self.clicks.notes, *self._describe_shown()]
        if num_repeated := self.clicks.num_repeated:
            same = "user, item and time" if self.clicks.skipped is None else "impression and item"
            notes.append(
                f"{self.interactions.name}: {_rows(num_repeated)} with {same} of an earlier row, left out"
            )
        if num_again := self.clicks.num_again:
            same = "on the item of the user's click before"
            notes.append(f"{self.interactions.name}: {_rows(num_again)} {same}, left out: both are one click")
        if self.clicks.are_all_distinct and not self.is_whole:
            notes.append(
                f"warning: {self.interactions.name}: every click has another {self.item_column}; if that is no "
                f"item, name the item with --columns {CLICKED}=COLUMN"
            )
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

    def _describe_shown(self) -> Iterator[str]:
        """What became of the rows whose label says that the item was shown, not clicked."""
        clicks, name = self.clicks, self.interactions.name
        if clicks.skipped is not None:
            num_used = len(clicks.skipped.values)
            yield (
                f"{name}: shown, not clicked: {_rows(clicks.num_shown)}, of which {num_used:,} are negatives of "
                "clicks of their impression; the others, left out, are in impressions without a click"
            )
        elif clicks.num_shown:
            yield (
                f"{name}: shown, not clicked: {_rows(clicks.num_shown)} left out; they would be negatives with a "
                "column of impressions, --columns impression=COLUMN"
            )

    def _split_by_place(self) -> NDArray[np.int8]:
        """The last two impressions of each user that have a click on an item not clicked before."""
        user_C, starts_I = self.clicks.users.codes, self.clicks.bounds_I[:-1]
        is_new_I = np.logical_or.reduceat(is_first(user_C, self.clicks.items.codes), starts_I)
        user_I = user_C[starts_I]
        new = np.flatnonzero(is_new_I)
        users = user_I[new]
        num_before = np.arange(len(new)) - np.searchsorted(users, users)
        num_after = np.searchsorted(users, users, side="right") - 1 - np.arange(len(new))
        is_long = num_before + num_after + 1 >= MIN_CLICKS
        if not is_long.any():
            raise InputError(
                f"{self.interactions.path}: found no user with {MIN_CLICKS} clicks on different items, expected "
                "some for --split last; use --split time"
            )
        is_valid, is_test = is_long & (num_after == 1), is_long & (num_after == 0)
        valid_of_user = np.full(len(self.clicks.users.distinct), len(user_I))
        valid_of_user[users[is_valid]] = new[is_valid]
        split_I = np.where(np.arange(len(user_I)) > valid_of_user[user_I], IN_NO_SPLIT, 0).astype(np.int8)
        split_I[new[is_valid]], split_I[new[is_test]] = 1, 2
        return split_I

    def _split_by_time(self) -> NDArray[np.int8]:
        time_I = self.clicks.time_C[self.clicks.bounds_I[:-1]]
        split_I = (time_I >= self.dev_from).astype(np.int8)
        if split_I.all() or not split_I.any():
            raise InputError(
                f"{self.interactions.path}: found times from {_moment(time_I.min())} to {_moment(time_I.max())}, "
                f"expected some before dev begins at {_moment(self.dev_from)} and some after; give another "
                "--dev-from, or --split last"
            )
        return split_I

    def _describe_split(self) -> Iterator[str]:
        if self.is_whole:
            times = self.clicks.time_C
            span = f", {_moment(times.min())} to {_moment(times.max())}," if self.options.has_times else ""
            yield (
                f"all {len(times):,} clicks of {self.interactions.name}{span} are the split to rank; --split and "
                "--dev-from of training do not apply"
            )
        elif self.options.split_by == "last":
            num_users = len(self.clicks.users.distinct)
            num_short = num_users - int((self.split_I == 2).sum())
            why = "" if self.options.has_times else ", because the order of the rows tells it without times"
            yield (
                f"split last{why}: each user's last click on a new article is test, the one before it valid; "
                f"{num_short:,} of {num_users:,} users have fewer than {MIN_CLICKS} such clicks and are in train "
                "only"
            )
            if num_left := int((self.split_I == IN_NO_SPLIT).sum()):
                yield f"split last: {num_left:,} later clicks on articles clicked before are in no split"
        else:
            share = f"{self.split_I.mean():.1%} of the interactions"
            if self.options.has_times:
                yield f"split by time: dev begins at {_moment(self.dev_from)}, {share}"
            else:
                yield f"split by the order of the rows, without times: dev has the last {share}"
            yield from self._describe_known()

    def _describe_known(self) -> Iterator[str]:
        """A warning where most users of dev have no click in train."""
        user_I = self.clicks.users.codes[self.clicks.bounds_I[:-1]]
        of_dev = np.unique(user_I[self.split_I == 1])
        num_known = int(np.isin(of_dev, user_I[self.split_I == 0]).sum())
        if num_known < len(of_dev) / 2:
            yield (
                f"warning: {num_known:,} of {len(of_dev):,} users of dev have a click in train; with --split last "
                "all have"
            )


def _ranges(items: Ids, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.ListArray:
    """Lists of the items of consecutive clicks: those from each begin up to each end."""
    offsets = offsets_of(ends - begins)
    positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], ends - begins)
    return _lists(items, items.codes[positions], offsets)


def _lists(items: Ids, codes: NDArray[np.int64], offsets: NDArray[np.int64]) -> pa.ListArray:
    """Lists of the items with these numbers."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items.distinct.take(pa.array(codes)))


def _as_text(column: pa.Array) -> pa.StringArray:
    """A text column as strings; only Parquet may have other types, as a date."""
    return column if column.type == pa.string() else column.cast(pa.string()).fill_null("")


def _moment(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]")).replace("T", " ")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
