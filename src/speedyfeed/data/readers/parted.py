"""One table in one file or in several, as a warehouse exports it in parts.

    events-000.csv.gz   user_id, item_id, ts      rows 0 1 2
    events-001.csv.gz   user_id, item_id, ts      rows 3 4      ->   one table of five rows

Parts are read in the order of their names. A row is numbered across all parts, and found again in its own.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from speedyfeed.data.readers.headed import HeadedTable
from speedyfeed.errors import InputError


@dataclass(frozen=True)
class PartedTable:
    """One or more files with the same named columns, not yet read."""

    parts: tuple[HeadedTable, ...]
    folder: Path
    """Folder of logs, for the names of files below it."""
    _starts: list[int] = field(default_factory=list)
    """Number of the first row of each part, as far as the parts have been read."""

    @property
    def path(self) -> Path:
        """Path of the first part, for messages about the columns."""
        return self.parts[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths of all parts."""
        return tuple(part.path for part in self.parts)

    @property
    def name(self) -> str:
        """Name of the file, and how many other parts there are."""
        rest = len(self.parts) - 1
        return self.path.relative_to(self.folder).as_posix() + (
            f" and {rest:,} more part{'s' * (rest > 1)}" if rest else ""
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns; another CSV or Parquet file with others is an error."""
        names = dict.fromkeys(name for part in self.parts for name in part.names)
        for part in self.parts:
            if set(part.names) != set(names) and not part.is_json:  # an object may leave out what it has not
                missing = sorted(set(names) - set(part.names))
                raise InputError(
                    f"{part.path}: found no column {missing[0]}, expected the columns of the other parts of "
                    f"{self.name}: {', '.join(names)}; export the parts alike, or name other files with --tables"
                )
        return tuple(names)

    @property
    def broken(self) -> tuple[str, ...]:
        """Mistakes of the rows left out, in the order of the parts."""
        return tuple(mistake for part in self.parts for mistake in part.broken.values())

    def read(self, columns: Sequence[str], *, lists: bool = False) -> Iterator[pa.RecordBatch]:
        """Read some columns of all parts; at least one row must exist."""
        self._starts.clear()
        num_rows = 0
        for part in self.parts:
            self._starts.append(num_rows)
            for batch in part.read_rows(columns, lists=lists):
                yield batch
                num_rows += len(batch)
        if not num_rows:
            raise self.parts[0].no_rows()

    def locate(self, row: int) -> str:
        """File and line of a row that has been read, for a message."""
        part, first = self._part_of(row)
        return part.locate(row - first)

    def check(self, ok: pa.BooleanArray, first_row: int, found: str, expected: str, remedy: str) -> None:
        """Reject all rows that are not `ok`; `first_row` is the number of the first one."""
        for row in np.flatnonzero(~ok.to_numpy(zero_copy_only=False)):
            self.reject(first_row + int(row), found, expected, remedy)

    def reject(self, row: int, found: str, expected: str, remedy: str) -> None:
        """Raise an error for a row, or note it where such rows are skipped."""
        part, first = self._part_of(row)
        part.reject(row - first, found, expected, remedy)

    def _part_of(self, row: int) -> tuple[HeadedTable, int]:
        number = bisect.bisect_right(self._starts, row) - 1
        return self.parts[number], self._starts[number]
