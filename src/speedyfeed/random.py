"""Random numbers by place instead of by order: the same place always gets the same number.

A generator hands out numbers one after another, so what a user gets depends on who was served before. Here a
number is a hash of (seed, purpose, round, place): any block of places, in any order, on any rank, gives the same.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]


class Stream(IntEnum):
    """Uses of one seed, kept apart so that none echoes another."""

    ORDER = 0
    NEGATIVES = 1
    CACHE = 2
    DROPOUT = 3


def generator(seed: int, purpose: Stream, round: int) -> np.random.Generator:
    """An ordinary generator, for draws that concern a whole round (an epoch, a step) at once."""
    return np.random.default_rng([seed, purpose, round])


def random_bits(seed: int, purpose: Stream, round: int, places: NDArray[np.integer]) -> Bits:
    """64 random bits for each place: SplitMix64, which is a hash of a counter to begin with."""
    key = np.random.SeedSequence([seed, purpose, round]).generate_state(1, np.uint64)
    bits: Bits = key + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def to_uniform(bits: Bits) -> NDArray[np.float64]:
    """Uniform in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def to_index(bits: Bits, size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform in 0..size-1 (size below 2^32): the upper half of the bits as a fraction of `size`."""
    return ((bits >> np.uint64(32)) * size.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
