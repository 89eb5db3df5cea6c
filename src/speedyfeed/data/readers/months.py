"""Dates with the name of a month, or an American date without slashes, as ISO.

Sun Jul 30 07:44:10 -0700 2017   ->   2017-07-30 07:44:10 -0700        05 28, 2013   ->   2013-05-28
30/Jul/2017:07:44:10 +0000       ->   2017-07-30 07:44:10 +0000
July 30, 2017, 7:44 PM           ->   2017-07-30 7:44 PM
"""

import pyarrow as pa
import pyarrow.compute as pc

_WEEKDAY = r"(?i)^(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? +)?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_MONTH = r"(?P<month>(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\.?"
_YEAR = r"(?P<year>\d{4})"
_CLOCK = r"(?P<clock>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[ap]m)?)"
_ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})"
_SHAPES = (
    rf"{_WEEKDAY}{_MONTH} +{_DAY} +{_CLOCK}(?: {_ZONE})? {_YEAR}$",
    rf"{_WEEKDAY}{_MONTH} +{_DAY},? +{_YEAR}(?:,? +{_CLOCK})?(?: ?{_ZONE})?$",
    rf"{_WEEKDAY}{_DAY}[ /-]{_MONTH}[ /-]{_YEAR}(?:[ :,T]+{_CLOCK})?(?: ?{_ZONE})?$",
    rf"^(?P<month>\d{{1,2}}) {_DAY}, {_YEAR}(?P<clock>)(?P<zone>)$",
)
_MONTHS = pa.array(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
_MAY_BE_ONE = r"[A-Za-z]{3}|^\d{1,2} \d{1,2}, "


def months_to_iso(values: pa.StringArray) -> pa.StringArray:
    """Rewrite the dates of these shapes; all other values stay as they are."""
    if not pc.any(pc.match_substring_regex(values, _MAY_BE_ONE)).as_py():
        return values
    for shape in _SHAPES:
        found = pc.extract_regex(values, shape)
        if found.null_count < len(found):
            values = pc.if_else(found.is_null(), values, _join(found))
    return values


def _join(found: pa.StructArray) -> pa.StringArray:
    year, month, day, clock, zone = (
        pc.struct_field(found, name).fill_null("") for name in ("year", "month", "day", "clock", "zone")
    )
    name = pc.utf8_slice_codeunits(pc.utf8_lower(month), 0, 3)
    number = pc.add(pc.index_in(name, _MONTHS), 1).cast(pa.string())
    date = pc.binary_join_element_wise(year, pc.coalesce(number, month), day, "-")
    return pc.utf8_trim_whitespace(pc.binary_join_element_wise(date, clock, zone, " "))
