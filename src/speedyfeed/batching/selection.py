"""Selected rows of a long table as one bit each: the row of the k-th selected one is computed, not stored.

    rows          0 1 2 3 4 5        selected 1, 2 and 5: bits 0 1 1 0 0 1
    numbers         0 1     2        find([2, 0]) -> rows [5, 1]

Bits are counted by blocks of `BLOCK_ROWS` rows, so a row costs a seventh of a byte, and finding one costs the same
in tables of all sizes.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from speedyfeed.ragged import offsets_of

BLOCK_ROWS = 512
BYTES = BLOCK_ROWS // 8


class Selection:
    """Selected rows of a table, in order."""

    def __init__(self, masks: Iterable[NDArray[np.bool]]) -> None:
        """Select the rows of a table given in parts, all but the last of them multiples of `BLOCK_ROWS`."""
        blocks = [_pack(mask) for mask in masks]
        self._bits = np.concatenate([np.zeros((0, BYTES), np.uint8), *blocks])
        self._before = offsets_of(np.bitwise_count(self._bits).sum(axis=1, dtype=np.int64))

    def __len__(self) -> int:
        return int(self._before[-1])

    def find(self, numbers: NDArray[np.integer]) -> NDArray[np.int64]:
        """Rows of selected ones, given their numbers among all that are selected."""
        block = np.searchsorted(self._before, numbers, side="right") - 1
        within = numbers - self._before[block]
        up_to = np.bitwise_count(self._bits[block]).cumsum(axis=1, dtype=np.int64)
        byte = (up_to <= within[:, None]).sum(axis=1)
        every = np.arange(len(byte))
        within = within - np.where(byte > 0, up_to[every, byte - 1], 0)
        bits = np.unpackbits(self._bits[block, byte][:, None], axis=1)
        bit = (bits.cumsum(axis=1) <= within[:, None]).sum(axis=1)
        rows: NDArray[np.int64] = block * BLOCK_ROWS + byte * 8 + bit
        return rows


def _pack(mask: NDArray[np.bool]) -> NDArray[np.uint8]:
    """Bits of a part of the table, a row for each block; the last block is filled with zeros."""
    padded = np.zeros(-(-len(mask) // BLOCK_ROWS) * BLOCK_ROWS, np.bool)
    padded[: len(mask)] = mask
    return np.packbits(padded).reshape(-1, BYTES)
