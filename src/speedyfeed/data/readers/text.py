"""Text logs as Arrow strings: read in blocks of whole lines and split by vectorised kernels.

Lines know their number in the file, so a check of a whole block can name the one line that fails it. A quote is
text, blank lines at the end of the file are ignored, and CRLF ends a line like LF. A file named `.gz` is
unpacked on the way. Memory is a few blocks, whatever the size of the file.
"""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.errors import InputError

BLOCK_BYTES = 1 << 21
"""Bytes read at once: some thousand lines, so that the time is spent in kernels and not in Python."""

MAX_LINE_BYTES = 1 << 24
"""Bytes of the longest line: what is longer is no record, and would take minutes to tokenize."""

_NAMES = {"\t": "tab"}  # separators that do not show in a message
_MARK = b"\xef\xbb\xbf"  # a byte order mark, which some editors put before UTF-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Lines of one file, or parts of lines, with their line numbers."""

    path: Path
    numbers: NDArray[np.int64]
    """Line number of each in the file, counted from 1."""
    text: pa.StringArray

    def split(
        self, names: tuple[str, ...], separator: str = "\t", max_splits: int | None = None
    ) -> list[pa.StringArray]:
        """Split lines into columns; a line with more or fewer columns, or with an empty id, is an error."""
        cells = pc.split_pattern(self.text, separator, max_splits=max_splits)
        counts = pc.list_value_length(cells)
        self.check(
            pc.equal(counts, len(names)),
            lambda row: (
                f"{_plural(counts[row].as_py(), 'column')} separated by {_NAMES.get(separator, separator)}"
            ),
            f"{len(names)} ({', '.join(names)})",
            "add what is missing, or take the separators out of the text",
        )
        flat = cells.flatten()
        starts = np.arange(0, len(flat), len(names))
        columns = [flat.take(pa.array(starts + column)) for column in range(len(names))]
        for name, column in zip(names, columns, strict=True):
            if name.endswith("_id"):
                self.check(pc.not_equal(column, ""), lambda _: "an empty id", f"a {name}", "remove the line")
        return columns

    def explode(self, lists: pa.ListArray) -> "Lines":
        """Make one line of every value of `lists`, which has a list of texts for each of these lines."""
        rows = pc.list_parent_indices(lists).to_numpy()
        return Lines(path=self.path, numbers=self.numbers[rows], text=lists.flatten())

    def parse_times(self, iso: pa.StringArray, shown: pa.StringArray, expected: str) -> pa.TimestampArray:
        """Parse times in ISO order and check the calendar; `shown` is how the file spells them."""
        try:
            return iso.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            valid = pa.array([_is_time(text) for text in iso])
            self.check(valid, lambda row: f"time {quote(shown[row])}", expected, "correct the time")
            raise

    def check(self, ok: pa.BooleanArray, found: Callable[[int], str], expected: str, remedy: str) -> None:
        """Raise an error for the first line that is not `ok`, if any."""
        row = pc.index(ok, False).as_py()
        if row >= 0:
            line = self.numbers[row]
            raise InputError(f"{self.path}:{line}: found {found(row)}, expected {expected}; {remedy}")


def read_lines(path: Path, charset: str = "utf-8") -> Iterator[Lines]:
    """Read the lines of a text file, some thousands at a time."""
    first = 1
    for block in _read_blocks(path):
        try:
            text = pa.array([block.decode(charset)])
        except UnicodeDecodeError as error:
            line = first + block.count(b"\n", 0, error.start)
            found = f"the byte 0x{block[error.start]:02x}"
            name = charset.upper()
            raise InputError(f"{path}:{line}: found {found}, expected {name}; save the file as UTF-8") from None
        lines = pc.split_pattern(text, "\n").flatten()
        if len(block) > MAX_LINE_BYTES:
            _require_lines(path, lines, first)
        yield Lines(path=path, numbers=np.arange(first, first + len(lines)), text=lines)
        first += len(lines)
    if first == 1:
        raise InputError(f"{path}: found an empty file, expected at least one line; fetch or export it again")


def _require_lines(path: Path, lines: pa.StringArray, first: int) -> None:
    """Refuse a line of more than `MAX_LINE_BYTES`; `first` is the number of the first line."""
    row = pc.index(pc.greater(pc.binary_length(lines), MAX_LINE_BYTES), True).as_py()
    if row >= 0:
        raise InputError(
            f"{path}:{first + row}: found a line of more than {MAX_LINE_BYTES:,} bytes, expected a shorter one; "
            "check that records end with a newline, or shorten the text"
        )


def split_lists(strings: pa.StringArray, separator: str) -> pa.ListArray:
    """Split strings into lists: `"N8 N5"` -> `["N8", "N5"]`; an empty string is an empty list."""
    lists = pc.split_pattern(strings, separator)
    return filter_lists(lists, pc.not_equal(lists.values, ""))


def filter_lists(lists: pa.ListArray, keep: pa.BooleanArray) -> pa.ListArray:
    """Filter the values of lists; no list may be null.

    [[a, b], [c]], keep [1, 0, 1] -> kept before each value [0, 1, 1, 2] -> offsets [0, 1, 2] -> [[a], [c]]
    """
    kept = np.zeros(len(keep) + 1, dtype=np.int32)
    np.cumsum(keep.to_numpy(zero_copy_only=False), out=kept[1:])
    offsets = lists.offsets.to_numpy()
    return pa.ListArray.from_arrays(pa.array(kept[offsets - offsets[0]]), lists.flatten().filter(keep))


def quote(value: pa.Scalar) -> str:
    """A value from a log, short and printable, for a message."""
    shown = repr(value.as_py())
    return shown if len(shown) <= 60 else f"{shown[:56]}...{shown[-1]}"


def _read_blocks(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines without the final LF; blank lines are held back until a text line follows."""
    rest = b""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            file.seek(0)
        while data := file.read(max(BLOCK_BYTES, len(rest))):
            data = rest + data
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n")
            whole, _, rest = data.rpartition(b"\n")
            text = whole.rstrip(b"\n")
            if not text:
                rest = data
                continue
            yield text
            rest = whole[len(text) :] + rest
    if text := rest.rstrip(b"\r\n"):
        yield text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_time(text: pa.Scalar) -> bool:
    try:
        text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return False
    return True
