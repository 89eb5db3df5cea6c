import numpy as np
import pytest

from speedyfeed.evaluation import bootstrap
from speedyfeed.evaluation.bootstrap import Bootstrap, Estimate, verdict


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def alone(num: int, seed: int = 0, resamples: int = 1000) -> Bootstrap:
    """Every impression is that of another user."""
    return Bootstrap(np.arange(num), rng(seed), resamples)


def coverage(draw, *, truth: float, rounds: int = 100) -> float:
    """Share of intervals that hold the truth; `draw` makes an estimate from random data."""
    draws = rng(4)
    held = 0
    for _ in range(rounds):
        low, high = draw(draws).ci95
        held += low <= truth <= high
    return held / rounds


def test_the_interval_equals_drawing_users_one_by_one():
    users = rng(0).integers(0, 60, 400)
    values = rng(1).beta(2, 1, 400)
    draws, means = rng(2), []
    rows = [np.flatnonzero(users == user) for user in np.unique(users)]
    for _ in range(5000):
        drawn = np.concatenate([rows[user] for user in draws.integers(0, len(rows), len(rows))])
        means.append(values[drawn].mean())
    found = Bootstrap(users, rng(3), resamples=5000).estimate(values)
    assert found.mean == values.mean()
    width = np.diff(np.quantile(means, [0.025, 0.975]))[0]
    assert found.ci95 == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=width / 20)


def test_the_interval_holds_the_true_mean_about_95_times_in_100():
    def draw(draws: np.random.Generator) -> Estimate:
        return Bootstrap(np.arange(200), draws, 200).estimate(draws.binomial(1, 0.3, 200).astype(np.float64))

    assert 0.90 <= coverage(draw, truth=0.3) <= 0.98


def test_impressions_of_one_user_do_not_count_as_independent():
    """Users differ, and the impressions of each are alike: only intervals over users hold the truth."""
    users = np.repeat(np.arange(50), 20)

    def draw(draws: np.random.Generator, clusters: np.ndarray) -> Estimate:
        values = draws.normal(0.6, 0.1, 50)[users] + draws.normal(0, 0.1, len(users))
        return Bootstrap(clusters, draws, 100).estimate(values)

    assert 0.89 <= coverage(lambda draws: draw(draws, users), truth=0.6) <= 0.98
    assert coverage(lambda draws: draw(draws, np.arange(len(users))), truth=0.6) < 0.7


def test_seeds_that_differ_make_a_difference_uncertain():
    """Two variants are equal but for the luck of their seeds, which one seed each cannot tell."""
    base = rng(1).random(100)

    def draw(draws: np.random.Generator, seeds: int) -> Estimate:
        a, b = (base + draws.normal(0, 0.02, (seeds, 1)) + draws.normal(0, 0.05, (seeds, 100)) for _ in range(2))
        return Bootstrap(np.arange(100), draws, 100).compare(a, b)

    assert coverage(lambda draws: draw(draws, 8), truth=0.0) >= 0.88
    assert coverage(lambda draws: draw(draws, 3), truth=0.0) >= 0.75  # three seeds tell little of their spread
    assert coverage(lambda draws: draw(draws, 1), truth=0.0) < 0.5


def test_three_seeds_have_the_variance_of_their_mean():
    """Without any spread over users, the interval is that of the mean over seeds."""
    offsets = np.array([[-0.01], [0.0], [0.01]])
    found = Bootstrap(np.arange(10), rng(), 5000).estimate(np.full((3, 10), 0.6) + offsets)
    low, high = found.ci95
    assert found.mean == pytest.approx(0.6)
    # In one resample of 27 the worst seed is drawn three times; a plain bootstrap would have .01 there.
    assert [0.6 - low, high - 0.6] == pytest.approx([0.01 * np.sqrt(3 / 2)] * 2)


def test_many_users_in_groups_have_the_same_interval(monkeypatch: pytest.MonkeyPatch):
    users = np.arange(3000) // 2
    values = rng(1).normal(0, 1, 1500)[users]
    whole = Bootstrap(users, rng(2), 2000).estimate(values)
    monkeypatch.setattr(bootstrap, "MAX_GROUPS", 400)
    grouped = Bootstrap(users, rng(2), 2000).estimate(values)
    assert grouped.mean == whole.mean
    widths = [found.ci95[1] - found.ci95[0] for found in (whole, grouped)]
    assert widths[1] == pytest.approx(widths[0], rel=0.15)


def test_the_same_seed_gives_the_same_interval():
    values = rng(1).random(50)
    assert alone(50, 5).estimate(values) == alone(50, 5).estimate(values)
    assert alone(50, 5).estimate(values) != alone(50, 6).estimate(values)


def test_skipped_impressions_do_not_count():
    values = np.array([0.5, np.nan, 0.7])
    assert alone(3).estimate(values).mean == pytest.approx(0.6)
    assert alone(3).estimate(values).num_impressions == 2
    assert not np.isnan(alone(3).estimate(values).ci95).any()  # some resamples have none of the two
    nothing = alone(1).estimate(np.array([np.nan]))
    assert np.isnan([nothing.mean, *nothing.ci95]).all()
    assert nothing.num_impressions == 0
    assert alone(0).estimate(np.zeros(0)).num_impressions == 0


def test_a_paired_difference_sees_what_two_intervals_cannot():
    a = rng(1).random(500) * 0.9
    b = a + rng(2).uniform(0, 0.02, 500)
    draws = alone(500)
    assert draws.estimate(a).ci95[1] > draws.estimate(b).ci95[0]  # the intervals overlap
    found = draws.compare(a, b)
    assert found.mean == pytest.approx(0.01, abs=0.001)
    assert verdict(found).startswith("B is better (+0.0")
    assert verdict(draws.compare(b, a)).startswith("A is better (-0.0")


def test_noise_is_not_called_a_difference():
    a, b = rng(1).random(500), rng(2).random(500)
    assert verdict(alone(500).compare(a, b)).startswith("no difference shown (")


def test_equal_runs_and_runs_without_a_common_impression_have_their_own_words():
    a = rng(1).random(10)
    assert verdict(alone(10).compare(a, a)) == "A and B are the same"
    apart = alone(2).compare(np.array([np.nan, 0.5]), np.array([0.5, np.nan]))
    assert verdict(apart) == "nothing to compare: no impression was scored in both"


def test_a_difference_that_cancels_out_is_not_called_equality():
    found = Estimate(mean=0.0, ci95=(-0.1, 0.1), num_impressions=4)
    assert verdict(found).startswith("no difference shown")
