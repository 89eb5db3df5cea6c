"""Times of a column: ISO, other dates, or a number of seconds, milliseconds, micro- or nanoseconds since 1970.

Dates with the name of a month, as `Sun Jul 30 07:44:10 -0700 2017` or `30/Jul/2017:07:44:10 +0000`,
become ISO first: they are one format, and where the first has no zone, none may have one.

A column has one format, that of its first value. The unit of a number is told by its size: as seconds, a number of
milliseconds would be after the year 5000. Dates as 01/02/2026 need a date among the first rows that tells day from
month, or `--dates`. What is before 1990 or in the future is refused: a wrong unit or a wrong column.
"""

from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from speedyfeed.data.readers.months import months_to_iso
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.text import quote
from speedyfeed.errors import InputError

EARLIEST = datetime(1990, 1, 1)

FORMATS = (
    "no known format",
    "seconds since 1970",
    "milliseconds since 1970",
    "microseconds since 1970",
    "nanoseconds since 1970",
    "ISO",
    "ISO with a zone",
    "a date as 20260131",
    "a date with slashes",
    "a date with dots",
    "a date with dashes",
)
_SECONDS, _MILLIS, _MICROS, _NANOS, _ISO, _ZONED, _COMPACT, _SLASHES, _DOTS, _DASHES = range(1, 11)
_CLOCK = r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))? ?(?P<half>[AaPp][Mm])?)?"
_YEAR_FIRST = rf"^(?P<year>\d{{4}})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}}){_CLOCK}"
_DAY_OR_MONTH_FIRST = (
    rf"(?P<first>\d{{1,2}})[/.-](?P<second_part>\d{{1,2}})[/.-](?P<year>\d{{4}}|\d{{2}}){_CLOCK}$"
)
_COMPACT_PARTS = (
    r"^(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})(?:(?P<hour>\d{2})(?P<minute>\d{2})(?P<second>\d{2})?)?$"
)
_ZONE = r" ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)"
_SHAPES = {
    _SECONDS: r"^-?\d{1,11}(\.\d*)?$|^-?\d\.\d+[eE]\+?0?9$",
    _MILLIS: r"^-?\d{12,14}(\.\d*)?$|^-?\d\.\d+[eE]\+?12$",
    _MICROS: r"^-?\d{15,17}(\.\d*)?$|^-?\d\.\d+[eE]\+?15$",
    _NANOS: r"^-?\d{18,}$|^-?\d\.\d+[eE]\+?18$",
    _ISO: _YEAR_FIRST + "$",
    _ZONED: _YEAR_FIRST + _ZONE + "$",
    _COMPACT: r"^(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])[0-5]\d([0-5]\d)?)?$",
    _SLASHES: r"^\d{1,2}/\d{1,2}/(\d{4}|\d{2})(\D.*)?$",
    _DOTS: r"^\d{1,2}\.\d{1,2}\.(\d{4}|\d{2})(\D.*)?$",
    _DASHES: r"^\d{1,2}-\d{1,2}-\d{4}(\D.*)?$",
}
"""Shape of each format; the last one that fits is meant."""
_PER_SECOND = {_SECONDS: 1, _MILLIS: 1_000, _MICROS: 1_000_000, _NANOS: 1_000_000_000}
_EXPECTED = "ISO as 2026-01-31T12:00:00, a date as 31/01/2026, or seconds or milliseconds since 1970"
_HALF_DAY = 12 * 3600 * 1_000_000
_STAND_IN = 946_684_800_000_000
"""Microseconds since 1970 that a time has which is left out, and from which rows without times count."""

Order = Literal["day-first", "month-first"]


class TimeColumn:
    """Parser of one column of times, which must be of one format throughout."""

    def __init__(self, table: PartedTable, dates: Order | None = None) -> None:
        self.table = table
        self.format: int | None = None
        self.dates: Order | None = dates
        self.latest = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)  # a zone may be ahead of UTC
        self._is_bad = np.zeros(0, np.bool_)

    def parse(self, values: pa.Array, first_row: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Parse a batch into microseconds since 1970, UTC, and whether each is a time.

        `first_row` is the number of its first row. What is no time is an error, unless the table skips such rows.
        """
        self._is_bad = np.zeros(len(values), np.bool_)
        if not len(values):
            return np.zeros(0, np.int64), self._is_bad
        micros = np.where(self._is_bad, _STAND_IN, self._convert(values, first_row))
        bounds = [np.datetime64(bound, "us").astype(np.int64) for bound in (EARLIEST, self.latest)]
        for bad, name in ((micros < bounds[0], "before 1990"), (micros > bounds[1], "in the future")):
            self._reject(bad & ~self._is_bad, values, first_row, name, "a time from 1990 to now")
        return micros, ~self._is_bad

    def _convert(self, values: pa.Array, first_row: int) -> NDArray[np.int64]:
        if pt.is_timestamp(values.type) or pt.is_date(values.type):
            self._reject(_as_mask(values.is_null()), values, first_row, "missing", "a time")
            micros = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            return np.asarray(micros.fill_null(_STAND_IN).to_numpy())
        values = months_to_iso(pc.utf8_trim_whitespace(values))
        formats = np.zeros(len(values), np.int8)
        for format, shape in _SHAPES.items():
            formats[_as_mask(pc.match_substring_regex(values, shape))] = format
        self._reject(formats == 0, values, first_row, "of no known format", _EXPECTED)
        known = formats[formats > 0]
        self.format = self.format or (int(known[0]) if len(known) else None)
        if self.format is None:
            return np.full(len(values), _STAND_IN)
        for other in set(known.tolist()) - {self.format}:
            expected = f"{FORMATS[self.format]} as in the rows before"
            self._reject(formats == other, values, first_row, f"in another format ({FORMATS[other]})", expected)
        if unit := _PER_SECOND.get(self.format):
            numbers = pc.if_else(pa.array(self._is_bad), "0", values)
            return _scale(numbers, unit)
        iso, afternoon = self._as_iso(values, first_row)
        return self._parse_iso(iso, values, first_row) + afternoon

    def _as_iso(self, values: pa.StringArray, first_row: int) -> tuple[pa.StringArray, NDArray[np.int64]]:
        """Times in ISO order, and the microseconds to add for the afternoon of a clock of twelve hours."""
        is_year_first = self.format in (_ISO, _ZONED, _COMPACT)
        if not is_year_first and self.dates is None:
            self.dates = self._find_order(values, first_row)
        names = ("first", "second_part") if self.dates != "month-first" else ("second_part", "first")
        day_name, month_name = ("day", "month") if is_year_first else names
        shapes = {_ISO: _SHAPES[_ISO], _ZONED: _SHAPES[_ZONED], _COMPACT: _COMPACT_PARTS}
        found = pc.extract_regex(values, shapes.get(self.format or 0, f"^{_DAY_OR_MONTH_FIRST}"))
        self._reject(_as_mask(found.is_null()) & ~self._is_bad, values, first_row, "of no known format", _EXPECTED)

        def part(name: str, default: str) -> pa.StringArray:
            is_there = name in [field.name for field in found.type]
            text = pc.struct_field(found, name).fill_null("") if is_there else pa.repeat("", len(found))
            return pc.if_else(pc.equal(text, ""), default, pc.utf8_lpad(text, 2, "0"))

        day, month, year = (part(name, "01") for name in (day_name, month_name, "year"))
        for shape, century in ((r"^([0-6]\d)$", r"20\1"), (r"^([7-9]\d)$", r"19\1")):
            year = pc.replace_substring_regex(year, shape, century)
        date = pc.binary_join_element_wise(year, month, day, "-")
        clock = pc.binary_join_element_wise(part("hour", "00"), part("minute", "00"), part("second", "00"), ":")
        iso = pc.binary_join_element_wise(date, clock, " ")
        if self.format == _ZONED:
            zone = pc.replace_substring_regex(pc.struct_field(found, "zone"), "UTC|GMT", "Z")
            iso = pc.binary_join_element_wise(iso, zone.fill_null("Z"), "")
        # The clock runs 12, 1, ..., 11 twice a day: 12 AM is midnight, 12 PM is noon.
        half = pc.utf8_upper(part("half", ""))
        is_afternoon, is_twelve = (
            _as_mask(pc.equal(half, "PM")),
            _as_mask(pc.and_(pc.not_equal(half, ""), pc.equal(part("hour", "00"), "12"))),
        )
        return iso, _HALF_DAY * (is_afternoon.astype(np.int64) - is_twelve)

    def _find_order(self, values: pa.StringArray, first_row: int) -> Order:
        """Whether dates have their day first, as a date beyond the twelfth tells; with dots they always have."""
        if self.format == _DOTS:
            return "day-first"
        found = pc.extract_regex(values, r"^(?P<first>\d{1,2})[/-](?P<second>\d{1,2})[/-]")
        largest = [pc.max(pc.struct_field(found, name).cast(pa.int32())).as_py() for name in ("first", "second")]
        if max(largest) > 12:
            return "day-first" if largest[0] > 12 else "month-first"
        raise InputError(
            f"{self.table.locate(first_row)}: found time {quote(values[0])} and no date that tells day from "
            "month, expected an order; give --dates day-first or --dates month-first"
        )

    def _parse_iso(self, iso: pa.StringArray, values: pa.StringArray, first_row: int) -> NDArray[np.int64]:
        zone = "UTC" if self.format == _ZONED else None
        type_, good = pa.timestamp("ns", zone), f"2000-01-01 00:00:00{'Z' if zone else ''}"
        iso = pc.if_else(pa.array(self._is_bad), good, iso)
        try:
            return np.asarray(iso.cast(type_).cast(pa.int64()).to_numpy()) // 1000
        except pa.ArrowInvalid:
            bad = np.array([not _is_time(value, type_) for value in iso])
            self._reject(bad, values, first_row, "that the calendar does not have", _EXPECTED)
            iso = pc.if_else(pa.array(bad), good, iso)
            return np.asarray(iso.cast(type_).cast(pa.int64()).to_numpy()) // 1000

    def _reject(self, bad: NDArray[np.bool_], values: pa.Array, first_row: int, name: str, expected: str) -> None:
        """Reject all bad times: the first is an error, unless the table skips such rows."""
        remedy = (
            "correct it, or name another column with --columns time=COLUMN, or time=none for the order of rows"
        )
        for row in np.flatnonzero(bad).tolist():
            shown = quote(values[row]) if pt.is_string(values.type) else str(values[row])
            self.table.reject(first_row + row, f"time {shown} {name}", expected, remedy)
        self._is_bad |= bad


def row_times(first_row: int, num_rows: int) -> NDArray[np.int64]:
    """Stand-ins for the times of rows that have none: one second a row, in the order of the rows."""
    return _STAND_IN + 1_000_000 * np.arange(first_row, first_row + num_rows)


def _scale(numbers: pa.StringArray, per_second: int) -> NDArray[np.int64]:
    """Numbers as text to microseconds; large units as integers, which float64 cannot hold exactly."""
    if per_second > 1_000 and not pc.any(pc.match_substring_regex(numbers, r"[.eE]")).as_py():
        try:
            return np.asarray(numbers.cast(pa.int64()).to_numpy()) // (per_second // 1_000_000)
        except pa.ArrowInvalid:
            pass  # more digits than an integer has: far in the future
    micros = np.rint(numbers.cast(pa.float64()).to_numpy() * (1_000_000 / per_second))
    return np.asarray(micros.clip(-9e18, 9e18), np.int64)


def _as_mask(values: pa.BooleanArray) -> NDArray[np.bool_]:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _is_time(text: pa.Scalar, type_: pa.DataType) -> bool:
    try:
        text.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True
