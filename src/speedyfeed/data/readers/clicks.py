"""All interactions of a log in memory: ids as numbers, sorted by user and time.

    U7,N5,10:00                 user_C  0  0  1        users  U7, U8
    U8,N3,09:00       ->        item_C  1  0  1        items  N5, N3
    U7,N3,09:30                 time_C  09:30 10:00 09:00

Shape letters: C clicks of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.readers.headed import HeadedTable
from speedyfeed.data.readers.times import TimeColumn

_WHOLE = r"^-?\d+\.0$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ids:
    """Ids of a column as numbers, and the distinct ids."""

    codes: NDArray[np.int64]
    """Row of `distinct` of each id."""
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
    first_C: NDArray[np.int64]
    """Position of the first click of the user of each click."""
    remaining_C: NDArray[np.int64]
    """Number of later clicks of the user of each click."""


def load_clicks(table: HeadedTable, columns: Mapping[str, str]) -> Clicks:
    """Load the interactions of a table with the columns of user, item and time; repeated ones are left out."""
    times = TimeColumn(table)
    users: list[pa.DictionaryArray] = []
    items: list[pa.DictionaryArray] = []
    micros: list[NDArray[np.int64]] = []
    num_rows = 0
    for batch in table.read([columns[role] for role in ("user", "item", "time")]):
        user, item, time = batch.columns
        users.append(_encode(table, columns["user"], user, num_rows))
        items.append(_encode(table, columns["item"], item, num_rows))
        micros.append(times.parse(time, num_rows))
        num_rows += len(batch)
    return _sort(_join(users), _join(items), np.concatenate(micros))


def load_ids(table: HeadedTable, column: str) -> Ids:
    """Load one column of ids; an empty one is an error."""
    parts: list[pa.DictionaryArray] = []
    num_rows = 0
    for batch in table.read([column]):
        parts.append(_encode(table, column, batch[column], num_rows))
        num_rows += len(batch)
    return _join(parts)


def without_zeros(ids: pa.StringArray) -> pa.StringArray:
    """Whole floats as the integers they are: `12.0` -> `12`."""
    return pc.utf8_slice_codeunits(ids, 0, -2)


def _sort(users: Ids, items: Ids, time_C: NDArray[np.int64]) -> Clicks:
    keep = _is_first(users.codes, items.codes, time_C)
    user_C, item_C, time_C = users.codes[keep], items.codes[keep], time_C[keep]
    order = np.lexsort((time_C, user_C))
    user_C = user_C[order]
    first_C = np.searchsorted(user_C, user_C)
    return Clicks(
        users=Ids(codes=user_C, distinct=users.distinct, were_floats=users.were_floats),
        items=Ids(codes=item_C[order], distinct=items.distinct, were_floats=items.were_floats),
        time_C=time_C[order],
        num_repeated=int((~keep).sum()),
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


def _encode(table: HeadedTable, column: str, ids: pa.StringArray, first_row: int) -> pa.DictionaryArray:
    ids = ids.cast(pa.string()).fill_null("")  # of Parquet it may be a date
    is_given = pc.not_equal(ids, "")
    table.check(is_given, first_row, f"an empty {column}", "an id", "fill it or remove the row")
    return ids.dictionary_encode()


def _join(parts: list[pa.DictionaryArray]) -> Ids:
    joined = pa.chunked_array(parts).unify_dictionaries()
    distinct = joined.chunk(joined.num_chunks - 1).dictionary
    were_floats = bool(pc.all(pc.match_substring_regex(distinct, _WHOLE)).as_py())
    return Ids(
        codes=np.concatenate([part.indices.to_numpy() for part in joined.chunks]).astype(np.int64),
        distinct=without_zeros(distinct) if were_floats else distinct,
        were_floats=were_floats,
    )
