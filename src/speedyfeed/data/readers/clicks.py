"""All clicks of a log in memory: ids as numbers, sorted by user and time, in impressions.

    U7,N5,10:00                 user_C  0  0  1        users  U7, U8
    U8,N3,09:00       ->        item_C  1  0  1        items  N5, N3
    U7,N3,09:30                 time_C  09:30 10:00 09:00

An impression is one click, or the clicks and negatives that a log with labels and ids of impressions tells.

Shapes: C clicks of the log, I impressions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers.choice import Choice
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.times import TimeColumn, row_times
from speedyfeed.ragged import Ragged, offsets_of

MANY_CLICKS = 5
"""Number of clicks from which as many items are odd."""
_WHOLE = r"^-?\d+\.0$"
_NO_IDS = pa.array(["", "NA", "N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "\\N"])
"""What stands for a missing id in exports of databases, pandas and R."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ids:
    """Ids of a column as numbers, and the distinct ids."""

    codes: NDArray[np.int64]
    """Row of `distinct` of each id; -1 where a row without an id is left out."""
    distinct: pa.StringArray
    """Distinct ids in the order of their first row."""
    were_floats: bool
    """Whether all were written as whole floats, as 12.0, and are read as 12."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clicks:
    """Clicks sorted by user and time; those of one time are in the order of the file."""

    users: Ids
    """User of each click."""
    items: Ids
    """Item of each click."""
    time_C: NDArray[np.int64]
    """Microseconds since 1970 of each click."""
    bounds_I: NDArray[np.int64]
    """Position of the first click of each impression, and the number of all clicks; without impressions in the
    log, each click is one."""
    skipped: Ragged | None
    """Items that each impression showed and the user did not click; None where the log does not tell."""
    num_shown: int
    """Interactions that are no clicks because their label is 0."""
    num_repeated: int
    """Interactions left out because user, item and time, or the impression, are those of an earlier row."""
    num_again: int
    """Clicks left out because the user's click before is on the same item."""
    notes: tuple[str, ...]
    """Statements about events and weights, for the summary."""
    first_C: NDArray[np.int64]
    """Position of the first click of the user of each click."""

    @property
    def are_all_distinct(self) -> bool:
        """Whether every one of several clicks is on another item, as if items were numbers of the rows."""
        num_items = len(np.unique(self.items.codes))
        return num_items == len(self.items.codes) >= MANY_CLICKS


def load_clicks(table: PartedTable, columns: Mapping[str, str], options: ReaderOptions) -> Clicks:
    """Load the interactions of a table by the columns of their meanings; repeated ones are left out.

    Without a column of times, the order of the rows stands in for them. Rows of other events than those of the
    options, or of a smaller weight, are no clicks, and neither are those with label 0: they are the negatives of
    the clicks of the same impression, where the table has a column of impressions.
    """
    times = TimeColumn(table, options.dates)
    choice = Choice(table, columns, options)
    users: list[pa.DictionaryArray] = []
    items: list[pa.DictionaryArray] = []
    impressions: list[pa.DictionaryArray] = []
    micros: list[NDArray[np.int64]] = []
    keeps: list[NDArray[np.bool_]] = []
    labels: list[NDArray[np.bool_]] = []
    num_rows = 0
    for batch in table.read(list(columns.values())):
        found = dict(zip(columns, batch.columns, strict=True))
        users.append(_encode(table, columns["user"], found["user"], num_rows))
        items.append(_encode(table, columns["item"], found["item"], num_rows))
        is_read = np.ones(len(batch), np.bool_)
        if "time" in found:
            time, is_read = times.parse(found["time"], num_rows)
        else:
            time = row_times(num_rows, len(batch))
        if "label" in found:
            is_clicked, is_label = choice.read_labels(found["label"], num_rows)
            labels.append(is_clicked)
            is_read = is_read & is_label
        if "impression" in found:
            impressions.append(_encode(table, columns["impression"], found["impression"], num_rows))
        micros.append(time)
        keeps.append(is_read & choice.choose(found, num_rows))
        num_rows += len(batch)
    notes = choice.describe()
    keep = np.concatenate(keeps)
    rows = _Rows(
        users=_join(users),
        items=_join(items),
        time=np.concatenate(micros),
        is_click=np.concatenate(labels) if labels else np.ones(len(keep), np.bool_),
        impression=_join(impressions).codes if impressions else None,
    )
    return _sort(rows, keep, notes)


def load_ids(table: PartedTable, column: str) -> Ids:
    """Load one column of ids; an empty one is an error, unless the table skips such rows."""
    parts: list[pa.DictionaryArray] = []
    num_rows = 0
    for batch in table.read([column]):
        parts.append(_encode(table, column, batch[column], num_rows))
        num_rows += len(batch)
    return _join(parts)


def without_zeros(ids: pa.StringArray) -> pa.StringArray:
    """Whole floats as the integers they are: `12.0` -> `12`."""
    return pc.utf8_slice_codeunits(ids, 0, -2)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Columns of all rows of a table, in the order of the file."""

    users: Ids
    items: Ids
    time: NDArray[np.int64]
    is_click: NDArray[np.bool_]
    impression: NDArray[np.int64] | None
    """Number of the impression of each row; None where the table does not tell it, or has no labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """Rows of the table that are clicks, sorted by user, time and impression, and what lies beside them."""

    rows_C: NDArray[np.int64]
    time_C: NDArray[np.int64]
    bounds_I: NDArray[np.int64]
    skipped: Ragged | None = None
    num_repeated: int
    num_again: int = 0


def _sort(table: _Rows, keep: NDArray[np.bool_], notes: tuple[str, ...]) -> Clicks:
    """Sort the rows that are kept into impressions: those that the table tells, or each click alone."""
    users, items = table.users, table.items
    keep = keep & (users.codes >= 0) & (items.codes >= 0)
    chosen = _with_skipped(table, keep) or _alone(table, keep)
    user_C = users.codes[chosen.rows_C]
    return Clicks(
        users=Ids(codes=user_C, distinct=users.distinct, were_floats=users.were_floats),
        items=Ids(codes=items.codes[chosen.rows_C], distinct=items.distinct, were_floats=items.were_floats),
        time_C=chosen.time_C,
        bounds_I=chosen.bounds_I,
        skipped=chosen.skipped,
        num_shown=int((keep & ~table.is_click).sum()),
        num_repeated=chosen.num_repeated,
        num_again=chosen.num_again,
        notes=notes,
        first_C=np.searchsorted(user_C, user_C),
    )


def _alone(table: _Rows, keep: NDArray[np.bool_]) -> _Chosen:
    """Each click as an impression of its own; of a user's clicks in a row on one item the first."""
    rows = np.flatnonzero(keep & table.is_click)
    users, items = table.users.codes, table.items.codes
    is_new = is_first(users[rows], items[rows], table.time[rows])
    num_repeated, rows = int((~is_new).sum()), rows[is_new]
    rows = rows[np.lexsort((table.time[rows], users[rows]))]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (users[rows][1:] != users[rows][:-1]) | (items[rows][1:] != items[rows][:-1])
    num_again, rows = int((~is_new).sum()), rows[is_new]
    return _Chosen(
        rows_C=rows,
        time_C=table.time[rows],
        bounds_I=np.arange(len(rows) + 1),
        num_repeated=num_repeated,
        num_again=num_again,
    )


def _with_skipped(table: _Rows, keep: NDArray[np.bool_]) -> _Chosen | None:
    """Clicks and negatives by the impressions that the table tells; None where it tells none that has both.

    An impression begins with its first row, and has a click: others are left out.
    """
    if table.impression is None:
        return None
    rows = np.flatnonzero(keep & (table.impression >= 0))
    users, is_click = table.users.codes[rows], table.is_click[rows]
    key = users * (table.impression.max() + 1) + table.impression[rows]
    impression = np.unique(key, return_inverse=True)[1]  # by user, then in the order of the file
    has_click, has_skipped = (np.bincount(impression, weights=one) > 0 for one in (is_click, ~is_click))
    if not (has_click & has_skipped).any():
        return None
    begin = np.full(len(has_click), np.iinfo(np.int64).max)
    np.minimum.at(begin, impression, table.time[rows])
    is_new = is_first(impression, table.items.codes[rows], is_click.astype(np.int64))
    use = np.flatnonzero(is_new & has_click[impression])
    use = use[np.lexsort((impression[use], begin[impression[use]], users[use]))]
    rows, impression, is_click = rows[use], impression[use], is_click[use]
    number = np.cumsum(np.diff(impression, prepend=impression[0]) != 0)
    bounds_I, offsets = (
        offsets_of(np.bincount(number[one], minlength=number[-1] + 1)) for one in (is_click, ~is_click)
    )
    return _Chosen(
        rows_C=rows[is_click],
        time_C=begin[impression[is_click]],
        bounds_I=bounds_I,
        skipped=Ragged(values=table.items.codes[rows[~is_click]], offsets=offsets),
        num_repeated=int((~is_new).sum()),
    )


def is_first(*keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether no earlier row has the same keys."""
    order = np.lexsort(keys)  # stable, so equal rows stay in the order of the file
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    in_order = np.zeros(len(order), np.bool_)
    in_order[order[is_new]] = True
    return in_order


def _encode(table: PartedTable, column: str, ids: pa.StringArray, first_row: int) -> pa.DictionaryArray:
    ids = ids.cast(pa.string()).fill_null("")  # of Parquet it may be a date
    is_given = pc.invert(pc.is_in(ids, _NO_IDS))
    table.check(is_given, first_row, f"an empty {column}", "an id", "fill it or remove the row")
    return pc.if_else(is_given, ids, None).dictionary_encode()


def _join(parts: list[pa.DictionaryArray]) -> Ids:
    joined = pa.chunked_array(parts).unify_dictionaries()
    distinct = joined.chunk(joined.num_chunks - 1).dictionary
    were_floats = bool(pc.all(pc.match_substring_regex(distinct, _WHOLE)).as_py())
    codes = [part.indices.fill_null(-1).to_numpy() for part in joined.chunks]
    return Ids(
        codes=np.concatenate(codes).astype(np.int64),
        distinct=without_zeros(distinct) if were_floats else distinct,
        were_floats=were_floats,
    )
