"""Embeddings that grow at their end while others read them; those they begin with can stay in a mapped file.

rows    0 ... 99999 | 100000 100001 ...   spare
        first       | added since, in memory of this process
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Embeddings = NDArray[np.float32]


class GrowingRows:
    """Rows of embeddings, (rows, D); any number of threads may read while one appends."""

    def __init__(self, first: Embeddings, *, is_copied: bool) -> None:
        """Begin with the rows of `first`, copied into one array with all others, or left where they are."""
        nothing = first[:0]
        self._first = nothing if is_copied else first
        self._num_added = len(first) if is_copied else 0
        self._added = _with_spare_rows(first if is_copied else nothing, self._num_added)

    def append(self, rows: Embeddings) -> None:
        """Add rows at the end."""
        stop = self._num_added + len(rows)
        if stop > len(self._added):  # slow if there are many; others go on reading the old array
            self._added = _with_spare_rows(self._added, self._num_added, len(rows))
        self._added[self._num_added : stop] = rows
        self._num_added = stop

    def take(self, rows: Rows) -> Embeddings:
        """Copies of these rows, (rows, D)."""
        if not len(self._first):
            return self._added[rows]
        since = rows - len(self._first)
        if not (since >= 0).any():
            return self._first[rows]
        return np.where((since < 0)[:, None], self._first.take(rows, 0, mode="clip"), self._added[since.clip(0)])

    def blocks(self, num_rows: int) -> list[Embeddings]:
        """The first `num_rows` rows as views of one array or two."""
        added = self._added[: max(0, num_rows - len(self._first))]
        return [block for block in (self._first[:num_rows], added) if len(block)] or [added]


def _with_spare_rows(rows: Embeddings, num_rows: int, least: int = 0) -> Embeddings:
    """Copy the first `num_rows` rows into an array with room for a quarter more, for 1024 and for `least`."""
    larger = np.zeros((num_rows + max(1024, least, num_rows // 4), rows.shape[1]), np.float32)
    larger[:num_rows] = rows[:num_rows]
    return larger
