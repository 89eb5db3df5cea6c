import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching.cache_plan import CacheConfig, CachePlan, new_stamps
from speedyfeed.errors import InputError
from tests.batching.small_logs import few

NUM_NEWS = 9
ALWAYS = 1e9  # beta: from step 1 on every draw is in favour

merged_sets = st.lists(st.sets(st.integers(1, NUM_NEWS), max_size=6), min_size=1, max_size=40)
plans = st.builds(
    CachePlan,
    gamma=st.integers(0, 8),
    beta=st.sampled_from([0.0, 2e-3, 0.1, ALWAYS]),
    draw=st.sampled_from(["step", "news"]),
    seed=st.integers(0, 3),
)


def follow(plan: CachePlan, steps: list[set[int]]) -> list[tuple[set[int], set[int]]]:
    """What each step reads and encodes."""
    stamps = new_stamps(NUM_NEWS)
    planned = []
    for step, merged in enumerate(steps):
        news = np.array(sorted(merged), np.int32)
        is_cache_hit = plan.is_cache_hit(news, stamps, step)
        stamps[news[~is_cache_hit]] = step
        planned.append((set(news[is_cache_hit].tolist()), set(news[~is_cache_hit].tolist())))
    return planned


def test_expired_rows_are_encoded_again():
    a, b, c = 1, 2, 3
    plan = CachePlan(gamma=1, beta=ALWAYS, draw="step", seed=0)
    assert follow(plan, [{a, b}, {a, c}, {a, c}, {a}]) == [
        (set(), {a, b}),
        ({a}, {c}),
        ({c}, {a}),
        ({a}, set()),
    ]


@few
@given(plan=plans, steps=merged_sets)
def test_reads_are_of_rows_written_before_and_not_longer_than_gamma_ago(plan, steps):
    written: dict[int, int] = {}
    for step, (read, encode) in enumerate(follow(plan, steps)):
        assert read | encode == steps[step]
        assert not read & encode
        for news in read:
            assert written[news] < step  # a KeyError is a read of an unwritten row
            assert step - written[news] <= plan.gamma
        written |= dict.fromkeys(encode, step)


@few
@given(steps=merged_sets, gamma=st.integers(1, 8))
def test_everything_fresh_is_read_once_the_rate_is_one(steps, gamma):
    written: dict[int, int] = {}
    for step, (read, encode) in enumerate(follow(CachePlan(gamma=gamma, beta=ALWAYS, draw="news", seed=0), steps)):
        assert read == {news for news in steps[step] if step - written.get(news, -gamma - 1) <= gamma}
        written |= dict.fromkeys(encode, step)


@few
@given(steps=merged_sets)
def test_gamma_zero_is_no_cache(steps):
    assert follow(CachePlan(gamma=0, beta=ALWAYS, draw="step", seed=0), steps) == [(set(), news) for news in steps]


@few
@given(plan=plans, steps=merged_sets)
def test_the_same_seed_gives_the_same_plan(plan, steps):
    assert follow(plan, steps) == follow(plan, steps)


def test_the_lookup_rate_grows_from_zero_to_one():
    plan = CachePlan(gamma=20, beta=2e-3, draw="step", seed=0)
    assert plan.lookup_rate(0) == 0
    assert plan.lookup_rate(500) == pytest.approx(1 - math.exp(-1))
    assert plan.lookup_rate(100_000) == 1


@pytest.mark.parametrize("draw", ["step", "news"])
def test_fresh_rows_are_read_at_the_lookup_rate(draw):
    plan = CachePlan(gamma=10_000, beta=2e-3, draw=draw, seed=0)
    news = np.arange(1, 51, dtype=np.int32)
    stamps = np.zeros(51, np.int32)
    shares = np.array([plan.is_cache_hit(news, stamps, step).mean() for step in range(2_000)])
    expected = np.array([plan.lookup_rate(step) for step in range(2_000)])
    for part in np.split(np.arange(2_000), 4):
        assert shares[part].mean() == pytest.approx(expected[part].mean(), abs=0.05)
    # Algorithm 2 decides for all news of a step at once, Algorithm 1 for each.
    assert np.isin(shares, [0, 1]).all() == (draw == "step")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gamma": -1}, "gamma -1"),
        ({"beta": float("nan")}, "beta nan"),
        ({"draw": "never"}, "draw never: expected news or step"),
        ({"dtype": "int8"}, "dtype int8: expected fp32 or bf16"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        CacheConfig(**wrong)


def ids(*news: int) -> np.ndarray:
    return np.array(news, np.int32)


def test_gradients_are_delivered_in_the_last_batch_of_a_later_update():
    plan = CachePlan(gamma=2, beta=ALWAYS, draw="step", seed=0, gradients=True, accumulate=2)
    deferred, reads = new_stamps(NUM_NEWS), []
    plan.note_deferred(deferred, reads, 0, ids(), ids(1, 2))
    plan.note_deferred(deferred, reads, 1, ids(1), ids(3))  # 1 was read in the same update
    assert deferred[1:4].tolist() == [0, 0, 1]
    plan.note_deferred(deferred, reads, 2, ids(2), ids(1, 3))  # not the last batch
    assert deferred[1:4].tolist() == [0, 0, 1]
    assert plan.overdue(deferred, 4).tolist() == []
    assert plan.overdue(deferred, 3).tolist() == [1, 2]
    plan.note_deferred(deferred, reads, 3, ids(1, 3), ids())  # both were read before and in the same update
    assert deferred[1:4].tolist() == [2, 0, 2]
    assert plan.overdue(deferred, 3).tolist() == [2]
    assert plan.overdue(deferred, 5).tolist() == [2, 1, 3]


def test_without_gradients_nothing_is_deferred():
    plan = CacheConfig(gradients=False).plan(0)
    deferred = new_stamps(NUM_NEWS)
    plan.note_deferred(deferred, [], 0, ids(), ids(1, 2))
    assert deferred.tolist() == new_stamps(NUM_NEWS).tolist()
    assert not CacheConfig(gamma=0).plan(0).gradients
    assert CacheConfig().plan(0, 3).accumulate == 3
