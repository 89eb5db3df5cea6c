import numpy as np
import pytest

from speedyfeed.random import Stream, permute, random_bits, to_index, to_uniform


def test_a_place_gets_the_same_bits_in_any_block_and_order():
    positions = np.arange(100)
    together = random_bits(3, Stream.NEGATIVES, 5, positions)
    backwards = random_bits(3, Stream.NEGATIVES, 5, positions[::-1])
    alone = [random_bits(3, Stream.NEGATIVES, 5, positions[i : i + 1]).item() for i in positions]
    assert together.tolist() == backwards[::-1].tolist() == alone


@pytest.mark.parametrize(
    ("seed", "purpose", "round"), [(4, Stream.NEGATIVES, 5), (3, Stream.CACHE, 5), (3, Stream.NEGATIVES, 6)]
)
def test_seed_purpose_and_round_each_change_all_bits(seed, purpose, round):
    positions = np.arange(100)
    assert not np.any(
        random_bits(3, Stream.NEGATIVES, 5, positions) == random_bits(seed, purpose, round, positions)
    )


def test_bits_are_uniform_over_positions_and_over_rounds():
    over_positions = random_bits(0, Stream.CACHE, 0, np.arange(20_000))
    over_rounds = np.concatenate(
        [random_bits(0, Stream.CACHE, step, np.zeros(1, np.int32)) for step in range(2_000)]
    )
    for bits in (over_positions, over_rounds):
        share = 1 / np.sqrt(len(bits))
        assert to_uniform(bits).mean() == pytest.approx(0.5, abs=share)
        counts = np.bincount(to_index(bits, np.full(len(bits), 7)), minlength=7)
        assert len(counts) == 7
        assert counts / len(bits) == pytest.approx(np.full(7, 1 / 7), abs=2 * share)


def test_indices_stay_below_their_size_and_fractions_below_one():
    bits = np.array([0, 2**64 - 1], np.uint64)
    assert to_index(bits, np.array([1, 1])).tolist() == [0, 0]
    assert to_index(bits, np.array([2**31, 2**31])).tolist() == [0, 2**31 - 1]
    assert to_uniform(bits)[0] == 0
    assert to_uniform(bits)[1] < 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1000, 4097])
def test_every_entry_has_one_place_in_a_permutation(size):
    whole = permute(3, Stream.ORDER, 5, np.arange(size), size)
    assert sorted(whole.tolist()) == list(range(size))
    some = np.array([size - 1, 0, size // 2])
    assert permute(3, Stream.ORDER, 5, some, size).tolist() == whole[some].tolist()


def test_permutations_of_seeds_and_rounds_are_independent_and_uniform():
    size, num = 6, 4000
    drawn = np.array(
        [permute(seed, Stream.ORDER, round, np.arange(size), size) for seed in range(40) for round in range(100)]
    )
    share = 3 / np.sqrt(num)
    for one in range(size):  # every entry at every position, and every pair of neighbours
        counts = np.bincount(drawn[:, one], minlength=size)
        assert counts / num == pytest.approx(np.full(size, 1 / size), abs=share)
        after = np.bincount((drawn[:, one] - drawn[:, one - 1]) % size, minlength=size)
        assert after / num == pytest.approx(np.array([0] + [1 / (size - 1)] * (size - 1)), abs=share)
    long = permute(0, Stream.ORDER, 0, np.arange(100_000), 100_000)
    assert abs(np.corrcoef(long, np.arange(100_000))[0, 1]) < 0.01
    assert abs(np.corrcoef(long[1:], long[:-1])[0, 1]) < 0.01
