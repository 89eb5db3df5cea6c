"""Rows of unequal length as two flat arrays, on disk or in memory.

    [[7, 9], [], [4]]  ->  values [7, 9, 4]   offsets [0, 2, 2, 3]

Opening memory-maps two `.npy` files, so it costs the same at any size and all processes share one copy. Writers
append to those files in bounded memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

BLOCK = 1 << 22  # values of a memory-mapped array processed at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """Rows of unequal length: row `i` is `values[offsets[i]:offsets[i + 1]]`."""

    values: Array
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[Array]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of every row; reads all offsets."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer]) -> "Ragged":
        """Copy rows into memory, in the order given.

        take([2, 0]) of the example in the module header -> values [4, 7, 9], offsets [0, 1, 3]
        """
        starts = self.offsets[rows]
        lengths = self.offsets[np.asarray(rows) + 1] - starts
        offsets = offsets_of(lengths)
        # A value's position is its row's start plus its position in the row: arange minus the row's new start.
        positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(values=self.values[positions], offsets=offsets)

    def heads(self, lengths: NDArray[np.integer]) -> "Ragged":
        """First values of each row, as many as given, which must be there.

        heads([1, 0, 1]) of the example in the module header -> values [7, 4], offsets [0, 1, 1, 2]
        """
        if np.array_equal(lengths, self.lengths):
            return self
        offsets = offsets_of(lengths)
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], lengths)
        return Ragged(values=self.values[positions], offsets=offsets)

    def tails(self, limit: int | None) -> "Ragged":
        """Last `limit` values of each row; None for all.

        tails(1) of the example in the module header -> values [9, 4], offsets [0, 1, 1, 2]
        """
        if limit is None:
            return self
        lengths = np.minimum(self.lengths, limit)
        offsets = offsets_of(lengths)
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[1:] - offsets[1:], lengths)
        return Ragged(values=self.values[positions], offsets=offsets)


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Offsets of rows of these lengths: [2, 0, 1] -> [0, 2, 2, 3]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def in_blocks(values: Array) -> Iterator[Array]:
    """Iterate over a long array in blocks of bounded size."""
    return (values[start : start + BLOCK] for start in range(0, len(values), BLOCK))


def open_ragged(folder: Path, name: str) -> Ragged:
    """Memory-map the two files of a ragged array; only their headers are read."""
    return Ragged(values=open_array(folder, f"{name}.values"), offsets=open_array(folder, f"{name}.offsets"))


def open_array(folder: Path, name: str) -> Array:
    """Memory-map one `.npy` file, read-only."""
    path = folder / f"{name}.npy"
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


class ArrayWriter:
    """Appends to a one-dimensional `.npy` file of unknown length."""

    def __init__(self, folder: Path, name: str, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._file: BinaryIO = open(folder / f"{name}.npy", "wb")  # noqa: SIM115 closed by __exit__
        self._write_header()

    def append(self, values: Array) -> None:
        """Append values to the file."""
        assert np.can_cast(values.dtype, self._dtype, "same_kind"), (values.dtype, self._dtype)
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def _write_header(self) -> None:
        # The .npy header of a 1-d array is padded so that its length can grow in place.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._length,),
        }
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write_header()
        self._file.close()


class RaggedWriter:
    """Appends rows to a ragged array on disk, many rows at a time."""

    def __init__(self, folder: Path, name: str, dtype: DTypeLike) -> None:
        self._values = ArrayWriter(folder, f"{name}.values", dtype)
        self._offsets = ArrayWriter(folder, f"{name}.offsets", np.int64)
        self._offsets.append(np.zeros(1, np.int64))

    def append(self, values: Array, lengths: NDArray[np.integer]) -> None:
        """Append rows, given as their concatenated values and their lengths."""
        self._offsets.append(offsets_of(lengths)[1:] + len(self._values))
        self._values.append(values)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._values.__exit__(kind, error, trace)
        self._offsets.__exit__(kind, error, trace)
