import numpy as np
import pytest

from speedyfeed.random import Stream, random_bits, to_index, to_uniform


def test_a_place_gets_the_same_bits_in_any_block_and_order():
    places = np.arange(100)
    together = random_bits(3, Stream.NEGATIVES, 5, places)
    backwards = random_bits(3, Stream.NEGATIVES, 5, places[::-1])
    alone = [random_bits(3, Stream.NEGATIVES, 5, places[i : i + 1]).item() for i in places]
    assert together.tolist() == backwards[::-1].tolist() == alone


@pytest.mark.parametrize(
    ("seed", "purpose", "round"), [(4, Stream.NEGATIVES, 5), (3, Stream.CACHE, 5), (3, Stream.NEGATIVES, 6)]
)
def test_seed_purpose_and_round_each_change_all_bits(seed, purpose, round):
    places = np.arange(100)
    assert not np.any(random_bits(3, Stream.NEGATIVES, 5, places) == random_bits(seed, purpose, round, places))


def test_bits_are_uniform_over_places_and_over_rounds():
    over_places = random_bits(0, Stream.CACHE, 0, np.arange(20_000))
    over_rounds = np.concatenate(
        [random_bits(0, Stream.CACHE, step, np.zeros(1, np.int32)) for step in range(2_000)]
    )
    for bits in (over_places, over_rounds):
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
