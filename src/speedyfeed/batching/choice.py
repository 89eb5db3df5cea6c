"""Random choice without replacement, for many rows at once."""

import numpy as np
from numpy.typing import NDArray

from speedyfeed.random import Bits, to_index


def choose(bits: Bits, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct indices below the size of each row, as many as there are columns of bits; -1 where there are fewer.

    Floyd's method, one column at a time: draw below a bound that grows by one, and replace an index that is taken
    by the last one below the bound, which no earlier column could draw. All sets are equally likely.
    """
    num_rows, num_columns = bits.shape
    chosen = np.empty((num_rows, num_columns), np.int64)
    for column in range(num_columns):
        bound = np.maximum(sizes - num_columns, 0) + column + 1
        index = to_index(bits[:, column], bound)
        is_taken = (chosen[:, :column] == index[:, None]).any(axis=1)
        index = np.where(is_taken, bound - 1, index)
        chosen[:, column] = np.where(bound <= sizes, index, -1)
    return chosen
