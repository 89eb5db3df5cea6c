"""Options of log readers: which columns are meant, and how a log without splits is split."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from speedyfeed.errors import InputError

ROLES = ("user", "item", "time", "title", "abstract", "body", "category", "subcategory")
"""Meanings a column can have; `--columns` maps some of them to names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderOptions:
    """Options of the `interactions` reader; other formats have fixed columns and splits of their own."""

    columns: str = ""
    """Names of columns by their meaning, as `user=visitor,item=doc`."""
    split: Literal["time", "last"] = "time"
    """Whether the last part of the log or the last clicks of each user are held out."""
    dev_from: str | None = None
    """ISO date or time at which dev begins, in a split by time."""

    def __post_init__(self) -> None:
        if self.dev_from is not None:
            if self.split != "time":
                raise InputError(
                    f"--dev-from: found with --split {self.split}, expected --split time; leave one out"
                )
            try:
                datetime.fromisoformat(self.dev_from)
            except ValueError:
                raise InputError(
                    f"--dev-from {self.dev_from}: expected a date or time, as 2026-01-31; correct it"
                ) from None
        self.column_names()

    def column_names(self) -> Mapping[str, str]:
        """Names of columns by their meaning."""
        names: dict[str, str] = {}
        for pair in filter(None, self.columns.split(",")):
            role, equals, name = (part.strip() for part in pair.partition("="))
            if role not in ROLES or not equals or not name or role in names or name in names.values():
                raise InputError(
                    f"--columns {self.columns}: found {pair.strip()!r}, expected MEANING=COLUMN, each "
                    f"once, with a meaning of {', '.join(ROLES)}; correct it"
                )
            names[role] = name
        return names
