from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching.choice import choose
from speedyfeed.batching.sample import Sampler, period_news
from speedyfeed.data.store import PAD_NEWS, Timelines
from speedyfeed.errors import InputError
from speedyfeed.random import Stream, random_bits
from tests.batching.small_logs import NO_POOL, NUM_NEWS, few, logs, timelines


def sampler(log: Timelines, *, max_clicks: int = 100, negatives: int = 1, seed: int = 0) -> Sampler:
    return Sampler(log, num_news=NUM_NEWS, max_clicks=max_clicks, negatives=negatives, seed=seed)


def test_each_click_gets_negatives_of_its_own_pool_whatever_the_lengths_beside_it():
    pools = [[1], [2], [3], [4], [5], [6]]
    users = [
        [(7, 0), (8, 1), (9, 2)],
        [(10, 3)],
        [(11, 4), (12, 5)],
    ]
    instances = sampler(timelines(users, pools)).sample(np.array([0, 1, 2]), 0)
    assert [rows.tolist() for rows in instances.candidates] == [
        [[7, 1], [8, 2], [9, 3]],
        [[10, 4]],
        [[11, 5], [12, 6]],
    ]
    assert instances.has_own_negatives.values.all()


def test_the_latest_clicks_are_kept_oldest_first():
    log = timelines([[(news, NO_POOL) for news in (5, 6, 7, 8, 9)], [(1, NO_POOL)]], [])
    instances = sampler(log, max_clicks=3).sample(np.array([0, 1]), 0)
    assert [rows[:, 0].tolist() for rows in instances.candidates] == [[7, 8, 9], [1]]


@few
@given(log=logs(), max_clicks=st.integers(1, 5), negatives=st.integers(1, 4), epoch=st.integers(0, 3))
def test_negatives_are_what_the_pool_of_the_click_allows(log, max_clicks, negatives, epoch):
    draws = sampler(log, max_clicks=max_clicks, negatives=negatives)
    users = draws.order(epoch)
    instances = draws.sample(users, epoch)
    period = set(period_news(log, NUM_NEWS).tolist())
    assert period == {*log.clicks.values.tolist(), *log.pools.values.tolist()}
    is_without_pools = not log.has_negatives and not (log.user_pools >= 0).any()
    for user, candidates, has_own_negatives in zip(
        users, instances.candidates, instances.has_own_negatives, strict=True
    ):
        begin, end = log.clicks.offsets[user : user + 2]
        begin = max(begin, end - max_clicks)
        assert candidates[:, 0].tolist() == log.clicks.values[begin:end].tolist()
        for (click, *drawn), from_pool, row in zip(
            candidates.tolist(), has_own_negatives, log.click_pools[begin:end], strict=True
        ):
            assert from_pool == (row >= 0)
            nearest = row if from_pool else log.user_pools[user]
            # A log without any pool has live articles instead, without those that the user clicks.
            others = period - (set(log.clicks[int(user)].tolist()) if is_without_pools else {click})
            source = set(log.pools[nearest].tolist()) if nearest >= 0 else others
            is_own_negative = click in source and not from_pool  # then the period is drawn from instead
            allowed = period - {click} if is_own_negative else source
            assert len(drawn) == negatives
            negative = [news for news in drawn if news != PAD_NEWS]
            assert set(negative) <= allowed
            assert len(set(negative)) == len(negative)
            assert is_without_pools or len(negative) == min(negatives, len(allowed))


@few
@given(log=logs(), negatives=st.integers(1, 3), data=st.data())
def test_a_user_gets_the_same_in_any_block_and_order(log, negatives, data):
    draws = sampler(log, negatives=negatives, seed=data.draw(st.integers(0, 5)))
    everyone = np.sort(draws.order(0))
    together = draws.sample(everyone, 1)
    rows = np.array(data.draw(st.permutations(range(len(everyone)))))
    others = draws.sample(everyone[rows], 1)
    for position, row in enumerate(rows):
        assert others.candidates[position].tolist() == together.candidates[int(row)].tolist()
    for row, user in enumerate(everyone):
        assert draws.sample(np.array([user]), 1).candidates[0].tolist() == together.candidates[row].tolist()


def test_an_epoch_has_every_user_with_a_click_once_in_an_order_of_its_own():
    log = timelines([[(1 + user % 5, NO_POOL)] * (user % 3) for user in range(300)], [])
    draws = sampler(log)
    first, second = draws.order(0), draws.order(1)
    assert sorted(first) == sorted(second) == [user for user in range(300) if user % 3]
    assert len(first) == draws.num_instances
    assert first.tolist() != second.tolist()
    assert first.tolist() == sampler(log).order(0).tolist()
    assert first.tolist() != sampler(log, seed=1).order(0).tolist()


def test_negatives_change_with_the_epoch_and_the_seed():
    log = timelines([[(1, NO_POOL)] * 100, [(2 + position % 8, NO_POOL) for position in range(100)]], [])
    user = np.array([0])
    first = sampler(log).sample(user, 0).candidates.values
    assert np.array_equal(first, sampler(log).sample(user, 0).candidates.values)
    assert not np.array_equal(first, sampler(log).sample(user, 1).candidates.values)
    assert not np.array_equal(first, sampler(log, seed=1).sample(user, 0).candidates.values)


def test_every_set_of_indices_is_equally_likely():
    num_draws = 20_000
    bits = random_bits(0, Stream.NEGATIVES, 0, np.arange(num_draws * 2).reshape(-1, 2))
    counts = Counter(tuple(sorted(row)) for row in choose(bits, np.full(num_draws, 4)).tolist())
    assert sorted(counts) == list(combinations(range(4), 2))
    assert [count / num_draws for count in counts.values()] == pytest.approx([1 / 6] * 6, abs=0.01)


def test_any_news_of_the_period_but_the_click_is_drawn_where_there_is_no_pool():
    log = timelines([[(3, NO_POOL)] * 2_000, [(5, NO_POOL), (8, 0)]], [[9]])
    drawn = sampler(log, max_clicks=2_000).sample(np.array([0]), 0).candidates.values[:, 1]
    counts = Counter(drawn.tolist())
    assert sorted(counts) == [5, 8, 9]
    assert [count / 2_000 for count in counts.values()] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_fallback_negatives_of_a_history_click_are_what_its_user_skipped_first():
    log = timelines([[(3, NO_POOL)] * 2_000, [(5, NO_POOL)]], [[9, 8], [7]], user_pools=[0, 1])
    instances = sampler(log, max_clicks=2_000).sample(np.array([0]), 0)
    counts = Counter(instances.candidates.values[:, 1].tolist())
    assert sorted(counts) == [8, 9]
    assert [count / 2_000 for count in counts.values()] == pytest.approx([1 / 2] * 2, abs=0.05)
    assert not instances.has_own_negatives.values.any()


def test_a_click_is_no_negative_of_itself_where_its_user_skipped_it_first():
    log = timelines([[(3, NO_POOL)] * 200, [(5, NO_POOL)]], [[3], [7]], user_pools=[0, 1])
    drawn = sampler(log, max_clicks=200).sample(np.array([0]), 0).candidates.values[:, 1]
    assert set(drawn.tolist()) == {5, 7}


def test_a_log_with_one_news_is_refused():
    with pytest.raises(InputError, match="one article only"):
        sampler(timelines([[(4, NO_POOL)]], [])).sample(np.array([0]), 0)


def test_a_log_without_clicks_is_refused():
    with pytest.raises(InputError, match="no click"):
        sampler(timelines([[]], [[1, 2, 3]]))


@few
@given(log=logs(), max_clicks=st.integers(1, 5), negatives=st.integers(1, 3), epoch=st.integers(0, 2))
def test_an_instance_a_click_has_its_history_and_the_negatives_it_has_in_one_pass(
    log, max_clicks, negatives, epoch
):
    together = sampler(log, max_clicks=max_clicks, negatives=negatives)
    apart = Sampler(
        log, num_news=NUM_NEWS, max_clicks=max_clicks, negatives=negatives, seed=0, autoregressive=False
    )
    users = np.sort(together.order(epoch))
    all_at_once = together.sample(users, epoch)
    keys = np.sort(apart.order(epoch))
    assert apart.num_instances == len(keys) == len(all_at_once.candidates.values)
    one_by_one = iter(
        zip(*(lambda i: (i.users_U, i.candidates, i.has_own_negatives))(apart.sample(keys, epoch)), strict=True)
    )
    for user, candidates, has_own_negatives in zip(
        users, all_at_once.candidates, all_at_once.has_own_negatives, strict=True
    ):
        clicks = log.clicks[user].tolist()
        skipped = len(clicks) - len(candidates)
        for position, (click, pool) in enumerate(zip(candidates.tolist(), has_own_negatives, strict=True)):
            whose, rows, pools = next(one_by_one)
            assert whose == user
            *history, target = rows.tolist()
            assert target == click
            assert pools.tolist() == [False] * len(history) + [pool]
            before = clicks[: skipped + position][-max_clicks:]
            assert history == [[news, *[0] * negatives] for news in before]
    assert next(one_by_one, None) is None


def test_without_fallback_negatives_a_click_without_its_own_is_history_and_nothing_else():
    users = [[(7, NO_POOL), (8, 0)], [(9, NO_POOL)], [(10, 1), (11, NO_POOL)], []]
    log = timelines(users, [[1], [2]])
    settings = {"num_news": NUM_NEWS, "max_clicks": 100, "negatives": 1, "seed": 0, "without_negatives": "history"}
    together = Sampler(log, **settings)
    assert sorted(together.order(0).tolist()) == [0, 2]
    found = together.sample(np.array([0, 2]), 0)
    assert [rows.tolist() for rows in found.candidates] == [[[7, 0], [8, 1]], [[10, 2], [11, 0]]]
    apart = Sampler(log, **settings, autoregressive=False)
    assert [rows.tolist() for rows in apart.sample(np.sort(apart.order(0)), 0).candidates] == [
        [[7, 0], [8, 1]],
        [[10, 2]],
    ]
    cut = Sampler(log, **(settings | {"max_clicks": 1}))
    assert cut.order(0).tolist() == [0]  # the other's click is not among the latest


@pytest.mark.parametrize("pools", [[], [[], []]])  # nothing shown but what was clicked: a store has empty pools
def test_where_no_click_has_own_negatives_all_have_fallback_negatives(pools):
    log = timelines([[(1, NO_POOL), (2, NO_POOL)], [(3, NO_POOL)]], pools)
    draws = Sampler(log, num_news=NUM_NEWS, max_clicks=100, negatives=1, seed=0, without_negatives="history")
    assert draws.sample(draws.order(0), 0).candidates.values[:, 1].all()


@pytest.mark.parametrize("without_negatives", ["fallback", "in-batch", "history"])
def test_a_click_with_none_before_it_can_be_part_of_histories_only(without_negatives):
    log = timelines(
        [[(1, 0), (2, 1), (3, NO_POOL)], [(4, 1)], [], [(5, 0), (6, NO_POOL)], [(7, 0), (8, 1)]], [[9], [10]]
    )
    is_history, is_fallback = without_negatives == "history", without_negatives == "fallback"
    settings = {"num_news": NUM_NEWS, "negatives": 1, "seed": 0, "without_negatives": without_negatives}
    for max_clicks, users in ((100, [0, 4] if is_history else [0, 3, 4]), (2, [0, 3, 4])):
        draws = Sampler(log, max_clicks=max_clicks, first_click=False, **settings)
        if max_clicks == 2 and is_history:
            users = [4]  # what is left of user 0 is a first click and one without a pool
        assert sorted(draws.order(0)) == users
        instances = draws.sample(np.array(users), 0)
        for rows, is_own in zip(instances.candidates, instances.has_own_negatives, strict=True):
            assert rows[0, 1] == 0
            assert not is_own[0]
            assert (rows[1:, 1] > 0).tolist() == (is_own[1:] | is_fallback).tolist()
    one_by_one = Sampler(log, max_clicks=2, autoregressive=False, first_click=False, **settings)
    instances = one_by_one.sample(np.sort(one_by_one.order(0)), 0)
    targets = [rows[-1, 0] for rows in instances.candidates]
    assert targets == ([2, 8] if is_history else [2, 3, 6, 8])
    assert min(len(rows) for rows in instances.candidates) == 2


@pytest.mark.parametrize("pools", [[[1], [2]], []])
def test_for_the_in_batch_loss_clicks_without_negatives_are_learned_without_any(pools):
    own = [0, 1] if pools else [NO_POOL, NO_POOL]
    log = timelines([[(7, NO_POOL), (8, own[0])], [(9, NO_POOL)], [(10, own[1]), (11, NO_POOL)], []], pools)
    draws = Sampler(log, num_news=NUM_NEWS, max_clicks=9, negatives=1, seed=0, without_negatives="in-batch")
    assert sorted(draws.order(0).tolist()) == [0, 1, 2]
    found = draws.sample(np.array([0, 1, 2]), 0)
    negatives = [1, 2] if pools else [0, 0]
    assert [rows.tolist() for rows in found.candidates] == [
        [[7, 0], [8, negatives[0]]],
        [[9, 0]],
        [[10, negatives[1]], [11, 0]],
    ]


def test_a_log_of_single_clicks_has_nothing_to_learn_without_first_clicks():
    log = timelines([[(1, 0)], [(2, 0)]], [[3]])
    with pytest.raises(InputError, match="no click to learn from"):
        Sampler(log, num_news=NUM_NEWS, max_clicks=9, negatives=1, seed=0, first_click=False)
