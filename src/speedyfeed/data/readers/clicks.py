"""All interactions of a log in memory: ids as numbers, sorted by user and time.

    U7,N5,10:00                 user_C  0  0  1        users  U7, U8
    U8,N3,09:00       ->        item_C  1  0  1        items  N5, N3
    U7,N3,09:30                 time_C  09:30 10:00 09:00

Shape letters: C clicks of the log.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.times import TimeColumn, row_times
from speedyfeed.errors import InputError

_WHOLE = r"^-?\d+\.0$"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SHOWN_EVENTS = 8
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
    """Interactions sorted by user and time; those of one time are in the order of the file."""

    users: Ids
    """User of each click."""
    items: Ids
    """Item of each click."""
    time_C: NDArray[np.int64]
    """Microseconds since 1970 of each click."""
    num_repeated: int
    """Interactions left out because user, item and time are those of an earlier row."""
    notes: tuple[str, ...]
    """Statements about events and weights, for the summary."""
    first_C: NDArray[np.int64]
    """Position of the first click of the user of each click."""
    remaining_C: NDArray[np.int64]
    """Number of later clicks of the user of each click."""


def load_clicks(table: PartedTable, columns: Mapping[str, str], options: ReaderOptions) -> Clicks:
    """Load the interactions of a table by the columns of their meanings; repeated ones are left out.

    Without a column of times, the order of the rows stands in for them. Rows of other events than those of the
    options, or of a smaller weight, are no clicks.
    """
    times = TimeColumn(table, options.dates)
    choice = _Choice(table, columns, options)
    users: list[pa.DictionaryArray] = []
    items: list[pa.DictionaryArray] = []
    micros: list[NDArray[np.int64]] = []
    keeps: list[NDArray[np.bool_]] = []
    num_rows = 0
    roles = [role for role in ("user", "item", "time", "event", "weight") if role in columns]
    for batch in table.read([columns[role] for role in roles]):
        found = dict(zip(roles, batch.columns, strict=True))
        users.append(_encode(table, columns["user"], found["user"], num_rows))
        items.append(_encode(table, columns["item"], found["item"], num_rows))
        is_time = np.ones(len(batch), np.bool_)
        if "time" in found:
            time, is_time = times.parse(found["time"], num_rows)
        else:
            time = row_times(num_rows, len(batch))
        micros.append(time)
        keeps.append(is_time & choice.choose(found, num_rows))
        num_rows += len(batch)
    notes = choice.describe()
    return _sort(_join(users), _join(items), np.concatenate(micros), np.concatenate(keeps), notes)


class _Choice:
    """Which rows of a table are clicks, by their event and their weight."""

    def __init__(self, table: PartedTable, columns: Mapping[str, str], options: ReaderOptions) -> None:
        self._table, self._columns = table, columns
        self._events, self._min_weight = options.event_names(), options.min_weight
        self._num_events: Counter[str] = Counter()
        self._num_light = 0
        for role, option in (("event", self._events), ("weight", self._min_weight)):
            if option not in ((), None) and role not in columns:
                flag = {"event": "--events", "weight": "--min-weight"}[role]
                raise InputError(
                    f"{table.path}: found no {role} column (columns: {', '.join(table.names)}), expected one for "
                    f"{flag}; say which is meant with --columns {role}=COLUMN, or leave {flag} out"
                )

    def choose(self, found: Mapping[str, pa.Array], first_row: int) -> NDArray[np.bool_]:
        """Whether each row of a batch is a click."""
        is_click = np.ones(len(found["user"]), np.bool_)
        if "event" in found:
            events = found["event"].cast(pa.string()).fill_null("")
            for count in pc.value_counts(events).to_pylist():
                self._num_events[count["values"]] += count["counts"]
            if self._events:
                is_click &= np.isin(events.to_numpy(zero_copy_only=False), self._events)
        if self._min_weight is not None:
            text = found["weight"].cast(pa.string()).fill_null("")
            is_number = pc.match_substring_regex(text, _NUMBER)
            column = self._columns["weight"]
            self._table.check(is_number, first_row, f"a {column} that is no number", "a number", "correct it")
            weights = pc.if_else(is_number, text, "-inf").cast(pa.float64()).to_numpy(zero_copy_only=False)
            self._num_light += int((weights < self._min_weight).sum())
            is_click &= weights >= self._min_weight
        return is_click

    def describe(self) -> tuple[str, ...]:
        """What was chosen, for the summary; refuses a choice that leaves no row."""
        notes = []
        counts = self._num_events.most_common()
        shown = ", ".join(f"{name or 'none'} {count:,}" for name, count in counts[:_SHOWN_EVENTS])
        shown += ", ..." if len(counts) > _SHOWN_EVENTS else ""
        name = self._table.name
        if self._events:
            if not any(event in self._num_events for event in self._events):
                raise InputError(
                    f"--events {','.join(self._events)}: found events {shown} in {self._table.path}, expected "
                    "some of those asked for; correct it"
                )
            num_left = sum(count for event, count in counts if event not in self._events)
            notes.append(f"{name}: events {shown}; {num_left:,} rows of other events than --events left out")
        elif counts:
            notes.append(f"{name}: events {shown}; all are clicks, --events chooses some of them")
        if self._min_weight is not None:
            column = self._columns["weight"]
            notes.append(f"{name}: {self._num_light:,} rows with a {column} below {self._min_weight:g} left out")
        return tuple(notes)


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


def _sort(
    users: Ids, items: Ids, time_C: NDArray[np.int64], keep_C: NDArray[np.bool_], notes: tuple[str, ...]
) -> Clicks:
    rows = np.flatnonzero(keep_C & (users.codes >= 0) & (items.codes >= 0))
    is_first = _is_first(users.codes[rows], items.codes[rows], time_C[rows])
    num_repeated, rows = int((~is_first).sum()), rows[is_first]
    user_C, item_C, time_C = users.codes[rows], items.codes[rows], time_C[rows]
    order = np.lexsort((time_C, user_C))
    user_C = user_C[order]
    first_C = np.searchsorted(user_C, user_C)
    return Clicks(
        users=Ids(codes=user_C, distinct=users.distinct, were_floats=users.were_floats),
        items=Ids(codes=item_C[order], distinct=items.distinct, were_floats=items.were_floats),
        time_C=time_C[order],
        num_repeated=num_repeated,
        notes=notes,
        first_C=first_C,
        remaining_C=np.searchsorted(user_C, user_C, side="right") - 1 - np.arange(len(user_C)),
    )


def _is_first(*keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether no earlier row has the same keys."""
    order = np.lexsort(keys)  # stable, so equal rows stay in the order of the file
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    is_first = np.zeros(len(order), np.bool_)
    is_first[order[is_new]] = True
    return is_first


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
