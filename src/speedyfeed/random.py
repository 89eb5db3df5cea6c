"""Counter-based random numbers: a number is a hash of (seed, stream, round, counter).

The numbers of a generator depend on what was drawn before. These do not: any block of counters, in any order, on
any rank, gives the same numbers.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FEISTEL_ROUNDS = 8


class Stream(IntEnum):
    """Independent streams of random numbers from one seed, one for each use."""

    ORDER = 0
    NEGATIVES = 1
    CACHE = 2
    DROPOUT = 3


def random_bits(seed: int, stream: Stream, round: int, counters: NDArray[np.integer]) -> Bits:
    """64 random bits for each counter, by SplitMix64, which hashes a counter."""
    key = np.random.SeedSequence([seed, stream, round]).generate_state(1, np.uint64)
    return _hash(key + counters.astype(np.uint64) * GOLDEN)


def permute(seed: int, stream: Stream, round: int, positions: NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """Entries at some positions of a random permutation of 0..size-1, which is computed and never stored.

    A Feistel network: one half of the bits of a position is changed by a hash of the other half, back and forth,
    so no two positions get the same entry. Entries beyond the size are permuted again until they are below it.
    """
    keys = np.random.SeedSequence([seed, stream, round]).generate_state(FEISTEL_ROUNDS, np.uint64)
    num_bits = max(1, (size - 1).bit_length())
    low = num_bits // 2
    shift, low_mask = np.uint64(low), np.uint64((1 << low) - 1)
    high_mask = np.uint64((1 << num_bits) - 1) ^ low_mask
    entries = np.asarray(positions).astype(np.uint64)
    left = np.arange(len(entries))
    while len(left):
        value = entries[left]
        for number, key in enumerate(keys):
            if number % 2:
                value = value ^ (_hash(key + (value >> shift) * GOLDEN) & low_mask)
            else:
                value = value ^ (_hash(key + (value & low_mask) * GOLDEN) & high_mask)
        entries[left] = value
        left = left[value >= np.uint64(size)]
    return entries.astype(np.int64)


def _hash(values: Bits) -> Bits:
    """Finalizer of SplitMix64."""
    bits = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def to_uniform(bits: Bits) -> NDArray[np.float64]:
    """Uniform random numbers in [0, 1) from random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def to_index(bits: Bits, size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform random integers in 0..size-1, for sizes below 2^32, from the upper half of the bits."""
    return ((bits >> np.uint64(32)) * size.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
