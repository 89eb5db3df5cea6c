"""Options of log readers: which tables and columns are meant, how they are read, and how a log is split."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from speedyfeed.errors import InputError

ROLES = (
    "user",
    "item",
    "clicked",
    "time",
    "event",
    "weight",
    "label",
    "impression",
    "title",
    "abstract",
    "body",
    "category",
    "subcategory",
)
"""Meanings a column can have; `--columns` maps some of them to names. `clicked` is the item in the interactions,
where its column has another name than in the items; `label` is 1 for a click and 0 for what was only shown."""
TABLES = ("items", "interactions")
"""Tables of a log of interactions; `--tables` maps them to files."""
NO_COLUMN = "none"
"""Name that says there is no such column: with `--columns time=none` the order of the rows stands in for times,
with `label=none` every row is a click."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderOptions:
    """Options of the `interactions` reader; other formats have fixed columns and splits of their own."""

    tables: str = ""
    """Files of the tables, as `items=movies.csv,interactions=ratings.csv`."""
    columns: str = ""
    """Names of columns by their meaning, as `user=visitor,item=doc`."""
    charset: str | None = None
    """Encoding of the text files, as latin-1; by default UTF-8."""
    dates: Literal["day-first", "month-first"] | None = None
    """Order of dates as 01/02/2026, where no date of the log tells it."""
    events: str = ""
    """Events that are clicks, separated by commas; by default all."""
    min_weight: float | None = None
    """Smallest weight or rating of a click; by default every row is one."""
    skip_broken: bool = False
    """Whether rows that cannot be read are left out and counted; by default the first one is an error."""
    split: Literal["time", "last"] | None = None
    """Whether the last part of the log or the last clicks of each user are held out; by default `time` where rows
    have times, else `last`."""
    dev_from: str | None = None
    """ISO date or time at which dev begins, in a split by time."""

    def __post_init__(self) -> None:
        if self.dev_from is not None:
            if not self.has_times:
                raise InputError(
                    f"--dev-from: found with --columns time={NO_COLUMN}, expected times; leave one out"
                )
            if self.split_by != "time":
                raise InputError(
                    f"--dev-from: found with --split {self.split}, expected --split time; leave one out"
                )
            try:
                datetime.fromisoformat(self.dev_from)
            except ValueError:
                raise InputError(
                    f"--dev-from {self.dev_from}: expected a date or time, as 2026-01-31; correct it"
                ) from None
        if self.charset is not None:
            try:
                codecs.lookup(self.charset)
            except LookupError:
                raise InputError(
                    f"--charset {self.charset}: found no such encoding, expected one as latin-1, cp1252 or "
                    "utf-16; correct it"
                ) from None
        self.column_names()
        self.table_files()

    @property
    def has_times(self) -> bool:
        """Whether the interactions have times of their own."""
        return self.column_names().get("time") != NO_COLUMN

    @property
    def split_by(self) -> Literal["time", "last"]:
        """How the log is split: as asked for, or by default."""
        return self.split or ("time" if self.has_times else "last")

    def column_names(self) -> Mapping[str, str]:
        """Names of columns by their meaning."""
        return _parse_pairs("--columns", self.columns, ROLES, "MEANING=COLUMN", "a meaning")

    def table_files(self) -> Mapping[str, str]:
        """Names of files by the table they hold; both tables may be one file."""
        return _parse_pairs("--tables", self.tables, TABLES, "TABLE=FILE", "a table")

    def event_names(self) -> tuple[str, ...]:
        """Events that are clicks; empty where all are."""
        return tuple(filter(None, (name.strip() for name in self.events.split(","))))


def reader_options_of(settings: Any) -> ReaderOptions:
    """Reader options among the settings of a store, or of `prepare`, which have attributes of the same names."""
    return ReaderOptions(**{one.name: getattr(settings, one.name) for one in fields(ReaderOptions)})


def _parse_pairs(option: str, text: str, keys: tuple[str, ...], shape: str, key_name: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, equals, name = (part.strip() for part in pair.partition("="))
        is_repeated = key in names or (option == "--columns" and name in names.values())
        if key not in keys or not equals or not name or is_repeated:
            raise InputError(
                f"{option} {text}: found {pair.strip()!r}, expected {shape}, each once, with {key_name} of "
                f"{', '.join(keys)}; correct it"
            )
        names[key] = name
    return names
