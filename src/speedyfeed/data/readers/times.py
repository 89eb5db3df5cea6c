"""Times of a column: ISO, with or without a zone, or seconds or milliseconds since 1970.

A column has one format, that of its first value. Numbers of 12 digits and more are milliseconds: as seconds they
would be after the year 5000. What is before 1990 or in the future is refused: a wrong unit or a wrong column.
"""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from speedyfeed.data.readers.headed import HeadedTable
from speedyfeed.data.readers.text import quote
from speedyfeed.errors import InputError

FORMATS = ("no known format", "seconds since 1970", "milliseconds since 1970", "ISO", "ISO with a zone")
EARLIEST = datetime(1990, 1, 1)

_SECONDS, _MILLISECONDS, _ISO, _ZONED = range(1, 5)
_SHAPES = {
    _SECONDS: r"^-?\d{1,11}(\.\d+)?$",
    _MILLISECONDS: r"^-?\d{12,}(\.\d+)?$",
    _ISO: r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?$",
    _ZONED: r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)? ?(Z|[+-]\d{2}(:?\d{2})?)$",
}
_MICROSECONDS = {_SECONDS: 1_000_000, _MILLISECONDS: 1_000}
_EXPECTED = "ISO as 2026-01-31T12:00:00, or seconds or milliseconds since 1970"


class TimeColumn:
    """Parser of one column of times, which must be of one format throughout."""

    def __init__(self, table: HeadedTable) -> None:
        self.table = table
        self.format: int | None = None
        self.latest = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)  # a zone may be ahead of UTC

    def parse(self, values: pa.Array, first_row: int) -> NDArray[np.int64]:
        """Parse a batch into microseconds since 1970, UTC; `first_row` is the number of its first row."""
        if not len(values):
            return np.zeros(0, np.int64)
        micros = self._convert(values, first_row)
        bounds = [np.datetime64(bound, "us").astype(np.int64) for bound in (EARLIEST, self.latest)]
        for bad, name in ((micros < bounds[0], "before 1990"), (micros > bounds[1], "in the future")):
            self._refuse(bad, values, first_row, name, "a time from 1990 to now")
        return micros

    def _convert(self, values: pa.Array, first_row: int) -> NDArray[np.int64]:
        if pt.is_timestamp(values.type) or pt.is_date(values.type):
            self._refuse(_as_mask(values.is_null()), values, first_row, "missing", "a time")
            return np.asarray(values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy())
        formats = np.zeros(len(values), np.int8)
        for format, shape in _SHAPES.items():
            formats[_as_mask(pc.match_substring_regex(values, shape))] = format
        self._refuse(formats == 0, values, first_row, "of no known format", _EXPECTED)
        self.format = self.format or int(formats[0])
        for other in set(formats.tolist()) - {self.format}:
            expected = f"{FORMATS[self.format]} as in the rows before"
            self._refuse(formats == other, values, first_row, f"in another format ({FORMATS[other]})", expected)
        if unit := _MICROSECONDS.get(self.format):
            return np.asarray(np.rint(values.cast(pa.float64()).to_numpy() * unit), np.int64)
        type_ = pa.timestamp("ns", "UTC" if self.format == _ZONED else None)
        try:
            return np.asarray(values.cast(type_).cast(pa.int64()).to_numpy()) // 1000
        except pa.ArrowInvalid:
            bad = np.array([not _is_time(value, type_) for value in values])
            self._refuse(bad, values, first_row, "that the calendar does not have", _EXPECTED)
            raise

    def _refuse(self, bad: NDArray[np.bool_], values: pa.Array, first_row: int, name: str, expected: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            shown = quote(values[row]) if pt.is_string(values.type) else str(values[row])
            raise InputError(
                f"{self.table.locate(first_row + row)}: found time {shown} {name}, expected {expected}; correct "
                "it, or name another column with --columns time=COLUMN"
            )


def _as_mask(values: pa.BooleanArray) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)


def _is_time(text: pa.Scalar, type_: pa.DataType) -> bool:
    try:
        text.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True
