"""Counter-based random numbers: a number is a hash of (seed, stream, round, counter).

The numbers of a generator depend on what was drawn before. These do not: any block of counters, in any order, on
any rank, gives the same numbers.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]


class Stream(IntEnum):
    """Independent streams of random numbers from one seed, one for each use."""

    ORDER = 0
    NEGATIVES = 1
    CACHE = 2
    DROPOUT = 3


def generator(seed: int, stream: Stream, round: int) -> np.random.Generator:
    """NumPy generator for draws that concern a whole round, such as an epoch."""
    return np.random.default_rng([seed, stream, round])


def random_bits(seed: int, stream: Stream, round: int, counters: NDArray[np.integer]) -> Bits:
    """64 random bits for each counter, by SplitMix64, which hashes a counter."""
    key = np.random.SeedSequence([seed, stream, round]).generate_state(1, np.uint64)
    bits: Bits = key + counters.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def to_uniform(bits: Bits) -> NDArray[np.float64]:
    """Uniform random numbers in [0, 1) from random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def to_index(bits: Bits, size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform random integers in 0..size-1, for sizes below 2^32, from the upper half of the bits."""
    return ((bits >> np.uint64(32)) * size.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
