import numpy as np
import pytest

from speedyfeed.evaluation.bootstrap import Estimate, compare, estimate, verdict


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_interval_equals_drawing_impressions_one_by_one():
    values = rng(1).beta(2, 1, 400)
    draws = rng(2)
    means = [values[draws.integers(0, 400, 400)].mean() for _ in range(20_000)]
    found = estimate(values, rng(3), resamples=20_000)
    assert found.mean == values.mean()
    width = np.diff(np.quantile(means, [0.025, 0.975]))[0]
    assert found.ci95 == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=width / 25)


def test_the_interval_holds_the_true_mean_about_95_times_in_100():
    draws = rng(4)
    held = 0
    for _ in range(300):
        low, high = estimate(draws.binomial(1, 0.3, 200).astype(np.float64), draws, resamples=300).ci95
        held += low <= 0.3 <= high
    assert 0.90 <= held / 300 <= 0.98


def test_the_same_seed_gives_the_same_interval():
    values = rng(1).random(50)
    assert estimate(values, rng(5)) == estimate(values, rng(5))
    assert estimate(values, rng(5)) != estimate(values, rng(6))


def test_skipped_impressions_do_not_count():
    values = np.array([0.5, np.nan, 0.7])
    assert estimate(values, rng()).mean == pytest.approx(0.6)
    assert estimate(values, rng()).num_impressions == 2
    nothing = estimate(np.array([np.nan]), rng())
    assert np.isnan([nothing.mean, *nothing.ci95]).all()
    assert nothing.num_impressions == 0


def test_a_paired_difference_sees_what_two_intervals_cannot():
    a = rng(1).random(500) * 0.9
    b = a + rng(2).uniform(0, 0.02, 500)
    assert estimate(a, rng()).ci95[1] > estimate(b, rng()).ci95[0]  # the intervals overlap
    found = compare(a, b, rng())
    assert found.mean == pytest.approx(0.01, abs=0.001)
    assert verdict(found).startswith("B is better (+0.0")
    assert verdict(compare(b, a, rng())).startswith("A is better (-0.0")


def test_noise_is_not_called_a_difference():
    a, b = rng(1).random(500), rng(2).random(500)
    assert verdict(compare(a, b, rng())).startswith("no difference shown (")


def test_equal_runs_and_runs_without_a_common_impression_have_their_own_words():
    a = rng(1).random(10)
    assert verdict(compare(a, a, rng())) == "A and B are the same"
    apart = compare(np.array([np.nan, 0.5]), np.array([0.5, np.nan]), rng())
    assert verdict(apart) == "nothing to compare: no impression was scored in both"


def test_a_difference_that_cancels_out_is_not_called_equality():
    found = Estimate(mean=0.0, ci95=(-0.1, 0.1), num_impressions=4)
    assert verdict(found).startswith("no difference shown")
