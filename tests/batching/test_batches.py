from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching import batcher as module
from speedyfeed.batching.batcher import Batcher
from speedyfeed.batching.batches import Batch, BatchConfig, Position, news_lengths
from speedyfeed.batching.cache_plan import CacheConfig, CachePlan, new_stamps
from speedyfeed.batching.live_news import SPARE
from speedyfeed.batching.sample import Instances, Sampler
from speedyfeed.data.store import PAD_NEWS, NewsTokens, Timelines
from speedyfeed.encoding.deferred_gradients import DeferredGradients
from speedyfeed.errors import InputError
from speedyfeed.random import Stream, random_bits, to_uniform
from tests.batching.small_logs import NO_POOL, NUM_NEWS, few, lengths, logs, ragged, timelines

ALWAYS = 1e9  # beta: from step 1 on every draw is in favour
EPOCHS = 2

configs = st.builds(
    BatchConfig,
    max_clicks=st.integers(1, 5),
    negatives=st.integers(1, 3),
    token_budget=st.integers(1, 60),
    max_clicks_per_batch=st.integers(5, 40),
    mode=st.sampled_from(["packed", "padded"]),
    num_buckets=st.integers(1, 4),
)
plans = st.builds(
    CachePlan,
    gamma=st.integers(0, 6),
    beta=st.sampled_from([0.0, 0.1, ALWAYS]),
    draw=st.sampled_from(["step", "news"]),
    seed=st.integers(0, 3),
    gradients=st.booleans(),
    accumulate=st.integers(1, 3),
)
NO_CACHE = CacheConfig(gamma=0).plan(0)


def sampler_of(log: Timelines, config: BatchConfig, seed: int) -> Sampler:
    return Sampler(log, num_news=NUM_NEWS, max_clicks=config.max_clicks, negatives=config.negatives, seed=seed)


def batches_of(
    log: Timelines,
    tokens: np.ndarray,
    config: BatchConfig,
    plan: CachePlan,
    start: Position | None = None,
    stamps: Any = None,
    deferred: Any = None,
    executor: Executor | None = None,
) -> list[Batch]:
    """All batches of some epochs."""
    stamps = new_stamps(NUM_NEWS) if stamps is None else stamps
    sampler = sampler_of(log, config, plan.seed)
    batcher = Batcher(sampler, tokens, config, plan, start or Position(), stamps, deferred, executor)
    return list(takewhile(lambda batch: batch.epoch < EPOCHS, batcher))


def contents(batch: Batch) -> list[Any]:
    """Everything in a batch, comparable."""
    after = batch.after
    arrays = (
        batch.users_B,
        batch.history_BL,
        batch.targets_BL,
        batch.negatives_BLN,
        batch.has_own_negatives_BL,
        batch.encode_E,
        batch.cached_R,
        batch.deliver_E,
    )
    return [
        (batch.step, batch.epoch, batch.num_tokens, batch.num_padded_tokens),
        (after.step, after.epoch, after.cursor, after.waiting.tolist()),
        *[(array.dtype, array.shape, array.tolist()) for array in arrays],
    ]


def count_learned(log: Timelines, config: BatchConfig, instances: Instances, *, last_only: bool = False) -> int:
    """Number of clicks that must have negatives: all, but for users who have clicked whatever is live.

    In a log without impressions, negatives are checked too: articles of the log that the user never clicks.
    """
    rows = [candidates[-1:] if last_only else candidates for candidates in instances.candidates]
    if log.has_negatives or (log.user_pools >= 0).any():
        return sum(map(len, rows))
    live, total = set(log.clicks.values.tolist()), 0
    for user, candidates in zip(instances.users_U, rows, strict=True):
        others = live - set(log.clicks[user].tolist())
        negatives = [set(row) - {PAD_NEWS} for row in candidates[:, 1:].tolist()]
        assert set().union(*negatives) <= others
        if len(live) <= 2 * config.negatives + SPARE:  # every live article is drawn
            assert {len(row) for row in negatives} == {min(len(others), config.negatives)}
        total += sum(map(bool, negatives))
    return total


Emitted = tuple[list[int], set[int], set[int], list[int]]


@dataclass
class Waiting:
    """One user in a bucket of the slow twin."""

    arrival: int
    user: int
    candidates: list[list[int]]


class SlowBatcher:
    """Users one by one into buckets, all counts from scratch.

    Yields the users of each step, and its encoded, read and delivered news.
    """

    def __init__(self, log: Timelines, tokens: np.ndarray, config: BatchConfig, plan: CachePlan) -> None:
        self.sampler = sampler_of(log, config, plan.seed)
        self.plan = plan
        self.tokens = tokens.tolist()
        self.config = config
        self.written: dict[int, int] = {}
        self.deferred: dict[int, int] = {}
        self.reads: dict[int, int] = {}  # of the update so far
        self.step = 0
        self.edges: list[float] = []
        if config.mode == "padded":
            longest = [self.longest(self.instance(0, user, 0)) for user in self.sampler.order(0)]
            self.edges = [np.quantile(longest, i / config.num_buckets) for i in range(1, config.num_buckets)]

    def instance(self, arrival: int, user: int, epoch: int) -> Waiting:
        candidates = self.sampler.sample(np.array([user]), epoch).candidates[0].tolist()
        return Waiting(arrival=arrival, user=int(user), candidates=candidates)

    def longest(self, instance: Waiting) -> int:
        return max(self.tokens[news] for row in instance.candidates for news in row)

    def is_cache_hit(self, news: int) -> bool:
        if news not in self.written or self.step - self.written[news] > self.plan.gamma:
            return False
        position = news if self.plan.draw == "news" else 0
        fraction = to_uniform(random_bits(self.plan.seed, Stream.CACHE, self.step, np.array([position])))
        return bool(fraction < 1 - np.exp(-self.plan.beta * self.step))

    def is_last_of_update(self) -> bool:
        return self.step % self.plan.accumulate == self.plan.accumulate - 1

    def overdue(self) -> list[int]:
        if not self.is_last_of_update():
            return []
        chosen: list[int] = []
        for since, news in sorted((since, news) for news, since in self.deferred.items()):
            tokens = sum(self.tokens[one] for one in (*chosen, news))
            if since + self.plan.gamma < self.step and (not chosen or 16 * tokens <= self.config.token_budget):
                chosen.append(news)
            else:
                break
        return chosen

    def defer(self, encoded: set[int], read: set[int]) -> None:
        if self.plan.gradients:
            self.reads = dict.fromkeys(read, self.step) | self.reads
        if self.is_last_of_update():
            kept = {news: since for news, since in self.deferred.items() if news not in encoded}
            self.deferred, self.reads = self.reads | kept, {}

    def num_tokens(self, encoded: set[int]) -> int:
        tokens = [self.tokens[news] for news in encoded]
        return sum(tokens) if self.config.mode == "packed" else len(tokens) * max(tokens, default=0)

    def closing(self, bucket: list[Waiting]) -> tuple[int, list[Waiting]] | None:
        """At whose arrival the bucket closes, and with whom in it."""
        encoded: set[int] = set()
        longest_history = 0
        for position, instance in enumerate(bucket):
            longest_history = max(longest_history, len(instance.candidates))
            if longest_history * (position + 1) > self.config.max_clicks_per_batch:
                return instance.arrival, bucket[:position]
            news = {news for row in instance.candidates for news in row} - {PAD_NEWS}
            encoded |= {one for one in news if not self.is_cache_hit(one)}
            room = sum(self.tokens[news] for news in self.overdue())
            if self.num_tokens(encoded) >= self.config.token_budget - room:
                return instance.arrival, bucket[: position + 1]
        return None

    def emit(self, bucket: list[Waiting], members: list[Waiting]) -> Emitted:
        merged = {news for instance in members for row in instance.candidates for news in row} - {PAD_NEWS}
        read = {news for news in merged if self.is_cache_hit(news)}
        delivered = [news for news in self.overdue() if news not in merged]
        encoded = merged - read | set(delivered)
        self.written |= dict.fromkeys(encoded, self.step)
        self.defer(encoded, read)
        self.step += 1
        del bucket[: len(members)]
        return [instance.user for instance in members], merged - read, read, delivered

    def __iter__(self) -> Iterator[Emitted]:
        for epoch in range(EPOCHS):
            buckets: list[list[Waiting]] = [[] for _ in range(len(self.edges) + 1)]
            for arrival, user in enumerate(self.sampler.order(epoch)):
                instance = self.instance(arrival, user, epoch)
                buckets[sum(edge < self.longest(instance) for edge in self.edges)].append(instance)
                yield from self.emit_closed(buckets)
            while any(buckets):
                oldest = min(filter(None, buckets), key=lambda bucket: bucket[0].arrival)
                yield self.emit(oldest, list(oldest))
                yield from self.emit_closed(buckets)

    def emit_closed(self, buckets: list[list[Waiting]]) -> Iterator[Emitted]:
        while closing := [(*found, bucket) for bucket in buckets if (found := self.closing(bucket))]:
            _, members, bucket = min(closing, key=lambda found: found[0])
            yield self.emit(bucket, members)


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_batches_equal_those_of_buckets_filled_one_user_at_a_time(log, tokens, config, plan):
    fast = [
        (
            batch.users_B.tolist(),
            set(batch.encode_E.tolist()),
            set(batch.cached_R.tolist()),
            batch.deliver_E.tolist(),
        )
        for batch in batches_of(log, tokens, config, plan)
    ]
    assert fast == list(SlowBatcher(log, tokens, config, plan))


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_every_user_is_in_exactly_one_batch_of_an_epoch_with_all_clicks_and_negatives(log, tokens, config, plan):
    sampler = sampler_of(log, config, plan.seed)
    batches = batches_of(log, tokens, config, plan)
    for epoch in range(EPOCHS):
        users = [user for batch in batches if batch.epoch == epoch for user in batch.users_B.tolist()]
        assert sorted(users) == np.flatnonzero(log.clicks.lengths).tolist()
    for batch in batches:
        instances = sampler.sample(batch.users_B, batch.epoch)
        assert batch.history_BL.shape[1] == instances.candidates.lengths.max()
        assert batch.num_clicks == count_learned(log, config, instances)
        for row, (candidates, has_own_negatives) in enumerate(
            zip(instances.candidates, instances.has_own_negatives, strict=True)
        ):
            end = len(candidates)
            assert batch.history_BL[row, :end].tolist() == candidates[:, 0].tolist()
            assert batch.negatives_BLN[row, :end].tolist() == candidates[:, 1:].tolist()
            assert batch.has_own_negatives_BL[row, :end].tolist() == has_own_negatives.tolist()
            assert not batch.history_BL[row, end:].any()
            assert not batch.negatives_BLN[row, end:].any()
            assert not batch.has_own_negatives_BL[row, end:].any()


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_a_full_batch_has_not_reached_its_budget(log, tokens, config, plan):
    plan = replace(plan, gradients=False)  # deferred gradients are no part of what fills a batch
    for batch in batches_of(log, tokens, config, plan):
        assert not batch.is_full or batch.num_padded_tokens < config.token_budget


def test_a_batch_says_whether_the_cap_ended_it():
    log = timelines([[(1 + user % 5, NO_POOL), (7, NO_POOL)] for user in range(9)], [])
    for budget, expected in ((1000, [True, True, False]), (1, [False] * 9)):
        config = BatchConfig(max_clicks=4, max_clicks_per_batch=8, token_budget=budget, negatives=1)
        batches = batches_of(log, np.array([0] + [5] * NUM_NEWS), config, NO_CACHE)
        assert [batch.is_full for batch in batches if batch.epoch == 0] == expected


def test_clicks_count_by_their_weight():
    log = timelines([[(1, NO_POOL), (2, 0)], [(3, 0)]], [[4, 5]])
    (batch, *_) = batches_of(log, np.array([0] + [5] * NUM_NEWS), BatchConfig(negatives=1), NO_CACHE)
    assert batch.num_clicks == 3
    assert [batch.weigh_clicks(weight) for weight in (0, 0.25, 1)] == [2, 2.25, 3]


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_whoever_arrived_was_in_a_batch_or_waits(log, tokens, config, plan):
    order = [sampler_of(log, config, plan.seed).order(epoch) for epoch in range(EPOCHS)]
    trained: list[list[int]] = [[] for _ in range(EPOCHS)]
    for batch in batches_of(log, tokens, config, plan):
        trained[batch.epoch] += batch.users_B.tolist()
        waiting = order[batch.epoch][batch.after.waiting].tolist()
        assert sorted(trained[batch.epoch] + waiting) == sorted(order[batch.epoch][: batch.after.cursor])
        assert batch.after.num_instances == len(trained[batch.epoch])


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_planned_reads_are_fresh_and_all_distinct_news_are_read_or_encoded(log, tokens, config, plan):
    written: dict[int, int] = {}
    for step, batch in enumerate(batches_of(log, tokens, config, plan)):
        encode, read = batch.encode_E.tolist(), batch.cached_R.tolist()
        assert batch.step == step
        assert encode == sorted(set(encode))
        assert read == sorted(set(read))
        assert sorted(encode + read) == sorted({*batch.history_BL.flat, *batch.negatives_BLN.flat} - {0})
        assert all(written[news] < step <= written[news] + plan.gamma for news in read)
        written |= dict.fromkeys([*encode, *batch.deliver_E.tolist()], step)


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_overdue_gradients_are_delivered_one_at_least_in_each_update(log, tokens, config, plan):
    reads: list[tuple[int, int]] = []  # news and step of what is not delivered, oldest first
    waiting: list[tuple[int, int]] = []
    for batch in batches_of(log, tokens, config, plan):
        waiting += [(news, batch.step) for news in batch.cached_R.tolist()]
        if (batch.step + 1) % plan.accumulate:
            assert not len(batch.deliver_E)
            continue
        encoded = {*batch.encode_E.tolist(), *batch.deliver_E.tolist()}
        assert set(batch.deliver_E.tolist()) <= {news for news, step in reads if step < batch.step - plan.gamma}
        if plan.gradients and plan.accumulate == 1 and reads and reads[0][1] < batch.step - plan.gamma:
            assert reads[0][0] in encoded
        reads, waiting = [(news, step) for news, step in reads if news not in encoded] + waiting, []
    if not plan.gradients:
        assert not any(len(batch.deliver_E) for batch in batches_of(log, tokens, config, plan))


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans, accumulate=st.sampled_from([1, 2, 4]))
def test_what_the_plan_defers_are_the_gradients_that_wait(log, tokens, config, plan, accumulate):
    plan = replace(plan, gradients=True, accumulate=accumulate)
    planned, reads = new_stamps(NUM_NEWS), []
    collected = DeferredGradients(num_news=NUM_NEWS, width=1)
    for batch in batches_of(log, tokens, config, plan):
        assert len(np.unique(np.concatenate([batch.encode_E, batch.cached_R, batch.deliver_E]))) == sum(
            len(part) for part in (batch.encode_E, batch.cached_R, batch.deliver_E)
        )
        encoded = np.concatenate([batch.encode_E, batch.deliver_E])
        plan.note_deferred(planned, reads, batch.step, encoded, batch.cached_R)
        read_R = torch.from_numpy(batch.cached_R).long()
        collected.collect(batch.step, read_R, read_R, torch.zeros(len(read_R), 1))
        if (batch.step + 1) % accumulate == 0:
            collected.deliver(torch.from_numpy(encoded).long(), torch.zeros(len(encoded), 1))
            collected.settle(1.0)
            exported = collected.export()
            assert np.flatnonzero(planned >= 0).tolist() == exported["ids"].tolist()
            assert planned[planned >= 0].tolist() == exported["since"].tolist()


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans, data=st.data())
def test_a_run_goes_on_after_any_update_as_if_it_had_not_stopped(log, tokens, config, plan, data):
    batches = batches_of(log, tokens, config, plan)
    stop = plan.accumulate * data.draw(st.integers(0, len(batches) // plan.accumulate))
    stamps, deferred, reads = new_stamps(NUM_NEWS), new_stamps(NUM_NEWS), []
    for batch in batches[:stop]:
        encoded = np.concatenate([batch.encode_E, batch.deliver_E])
        stamps[encoded] = batch.step
        plan.note_deferred(deferred, reads, batch.step, encoded, batch.cached_R)
    start = batches[stop - 1].after if stop else None
    rest = batches_of(log, tokens, config, plan, start, stamps, deferred)
    assert [contents(batch) for batch in rest] == [contents(batch) for batch in batches[stop:]]


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans, block=st.integers(1, 5))
def test_batches_do_not_depend_on_how_many_users_are_sampled_at_once(log, tokens, config, plan, block):
    whole = [contents(batch) for batch in batches_of(log, tokens, config, plan)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_USERS", block)
        patch.setattr(module, "FIRST_CHUNK", block)
        assert [contents(batch) for batch in batches_of(log, tokens, config, plan)] == whole


@few
@given(
    log=logs(),
    tokens=lengths,
    config=configs,
    plan=plans,
    block=st.integers(1, 5),
    workers=st.integers(1, 4),
    ahead=st.integers(0, 9),
)
def test_blocks_planned_in_parallel_give_the_batches_of_one_thread(
    log, tokens, config, plan, block, workers, ahead
):
    alone = [contents(batch) for batch in batches_of(log, tokens, config, plan)]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(workers) as executor:
        patch.setattr(module, "BLOCK_USERS", block)
        patch.setattr(module, "AHEAD", ahead)
        together = batches_of(log, tokens, config, plan, executor=executor)
        assert [contents(batch) for batch in together] == alone


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_gamma_zero_plans_the_same_batches_as_a_cache_that_never_answers(log, tokens, config, plan):
    without = batches_of(log, tokens, config, replace(plan, gamma=0))
    never = batches_of(log, tokens, config, replace(plan, gamma=5, beta=0.0))
    assert not any(len(batch.cached_R) for batch in without)
    assert [contents(batch) for batch in without] == [contents(batch) for batch in never]


@few
@given(log=logs(), tokens=lengths, config=configs, plan=plans)
def test_a_batch_exceeds_the_budget_by_its_last_user_at_most_and_never_the_cap(log, tokens, config, plan):
    config = replace(config, mode="packed")
    for batch in batches_of(log, tokens, config, plan):
        assert batch.history_BL.size <= config.max_clicks_per_batch
        others = {*batch.history_BL[:-1].flat, *batch.negatives_BLN[:-1].flat} & set(batch.encode_E.tolist())
        assert not others or sum(tokens[[*others, *batch.deliver_E]]) < config.token_budget
        encoded = [*batch.encode_E, *batch.deliver_E]
        assert batch.num_padded_tokens == batch.num_tokens == tokens[encoded].sum()
        assert batch.data_efficiency == 1


def test_users_whose_news_are_all_cached_are_still_trained_on():
    # Every user clicked the same two articles: after step 0 nothing is left to encode for 20 steps.
    log = timelines([[(1, NO_POOL), (2, NO_POOL)]] * 50, [])
    tokens = np.full(NUM_NEWS + 1, 4)
    config = BatchConfig(token_budget=8, max_clicks=5, negatives=1, max_clicks_per_batch=10)
    plan = CachePlan(gamma=20, beta=ALWAYS, draw="step", seed=0)
    batches = [batch for batch in batches_of(log, tokens, config, plan) if batch.epoch == 0]
    assert [len(batch.encode_E) for batch in batches] == [2] + [0] * 10
    assert [len(batch.users_B) for batch in batches] == [1] + [5] * 9 + [4]
    assert sorted(user for batch in batches for user in batch.users_B) == list(range(50))
    assert all(batch.data_efficiency == 1 for batch in batches)


def test_a_warm_cache_makes_batches_larger_up_to_the_cap_on_clicks():
    rng = np.random.default_rng(0)
    log = timelines([[(int(news), NO_POOL) for news in rng.integers(1, 13, 4)] for _ in range(400)], [])
    tokens = np.full(NUM_NEWS + 1, 5)
    config = BatchConfig(token_budget=30, negatives=1, max_clicks_per_batch=100)
    plan = CachePlan(gamma=3, beta=0.0, draw="step", seed=0)
    users = {
        beta: max(len(batch.users_B) for batch in batches_of(log, tokens, config, replace(plan, beta=beta)))
        for beta in (0.0, ALWAYS)
    }
    assert users[0.0] < 10
    assert users[ALWAYS] == 100 // 4


def test_padded_batches_count_every_article_as_long_as_the_longest_to_be_encoded():
    log = timelines([[(1, 0), (2, 0)], [(3, 0)]], [[4]])
    tokens = np.array([0, 32, 48, 36, 4, *[0] * 8])
    config, plan = BatchConfig(mode="padded", num_buckets=1, negatives=1, token_budget=4 * 48), NO_CACHE
    (batch,) = islice(
        Batcher(sampler_of(log, config, plan.seed), tokens, config, plan, Position(), new_stamps(NUM_NEWS)), 1
    )
    assert batch.encode_E.tolist() == [1, 2, 3, 4]
    assert batch.num_tokens == 32 + 48 + 36 + 4
    assert batch.num_padded_tokens == 4 * 48
    assert batch.data_efficiency == 120 / 192


def test_more_buckets_pad_less():
    rng = np.random.default_rng(0)
    tokens = np.array([0, *range(1, NUM_NEWS + 1)]) ** 2
    log = timelines([[(int(news), NO_POOL) for news in rng.integers(1, 13, 1)] for _ in range(600)], [])
    shares = {}
    for num_buckets in (1, 2, 4):
        config = BatchConfig(mode="padded", num_buckets=num_buckets, negatives=1, token_budget=300)
        batches = batches_of(log, tokens, config, NO_CACHE)
        shares[num_buckets] = sum(b.num_tokens for b in batches) / sum(b.num_padded_tokens for b in batches)
    assert shares[1] < shares[2] < shares[4] < 1


def test_the_order_of_users_and_their_negatives_change_with_the_epoch():
    log = timelines([[(1 + user % 12, NO_POOL), (1 + user % 5, NO_POOL)] for user in range(40)], [])
    config, plan = BatchConfig(token_budget=10_000, negatives=1), NO_CACHE
    tokens = np.full(NUM_NEWS + 1, 5)
    first, second = batches_of(log, tokens, config, plan)
    assert first.users_B.tolist() != second.users_B.tolist()
    by_user = [batch.negatives_BLN[np.argsort(batch.users_B)].tolist() for batch in (first, second)]
    assert by_user[0] != by_user[1]


def test_tokens_of_an_article_are_those_of_all_its_segments():
    # Padding has no segment; news 1 has a title and a long body, news 2 a title, news 3 nothing.
    tokens = ragged([[7] * 3, [7] * 9, [7] * 4])
    zeros = np.zeros(16, np.uint8)
    news = NewsTokens(tokens=tokens, frequencies=zeros, fields=zeros[:3], segments=np.array([0, 0, 2, 3, 3]))
    assert news_lengths(news).tolist() == [0, 12, 4, 0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"negatives": 0}, "negatives 0: expected a number from 1"),
        ({"token_budget": 0}, "token_budget 0"),
        ({"prefetch": 0}, "prefetch 0"),
        ({"max_clicks": 50, "max_clicks_per_batch": 49}, "at least max_clicks, 50"),
        ({"mode": "ragged"}, "mode ragged: expected packed or padded"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        BatchConfig(**wrong)


@few
@given(
    log=logs(), tokens=lengths, config=configs, plan=plans, size=st.integers(1, 7), autoregressive=st.booleans()
)
def test_batches_of_a_fixed_size_have_a_fixed_shape_and_every_instance(
    log, tokens, config, plan, size, autoregressive
):
    config = replace(config, size=size, autoregressive=autoregressive, max_clicks_per_batch=40)
    sampler = Sampler(
        log,
        num_news=NUM_NEWS,
        max_clicks=config.max_clicks,
        negatives=config.negatives,
        seed=plan.seed,
        autoregressive=autoregressive,
    )
    batcher = Batcher(sampler, tokens, config, plan, Position(), new_stamps(NUM_NEWS))
    for epoch in range(EPOCHS):
        made = list(islice(batcher_of_epoch(batcher), -(-sampler.num_instances // size)))
        assert {batch.epoch for batch in made} == {epoch}
        assert {len(batch.users_B) for batch in made[:-1]} <= {size}
        assert sum(len(batch.users_B) for batch in made) == sampler.num_instances
        instances = sampler.sample(sampler.order(epoch), epoch)
        wanted = [rows.tolist() for rows in instances.candidates]
        if autoregressive:
            found = [
                [[click, *others] for click, others in zip(history, negatives, strict=True) if click]
                for batch in made
                for history, negatives in zip(batch.history_BL.tolist(), batch.negatives_BLN.tolist(), strict=True)
            ]
        else:
            found = [
                [*([click, *[0] * config.negatives] for click in history if click), [target, *others]]
                for batch in made
                for history, (target,), (others,) in zip(
                    batch.history_BL.tolist(), batch.targets_BL.tolist(), batch.negatives_BLN.tolist(), strict=True
                )
            ]
        assert found == wanted
        assert {batch.history_BL.shape[1] for batch in made} == {config.max_clicks}
        learned = count_learned(log, config, instances, last_only=not autoregressive)
        assert sum(batch.num_clicks for batch in made) == learned


def batcher_of_epoch(batcher: Batcher) -> Iterator[Batch]:
    if not hasattr(batcher, "all_batches"):
        batcher.all_batches = iter(batcher)
    return batcher.all_batches


def test_padding_everywhere_counts_against_data_efficiency() -> None:
    """Two users with two and one clicks, six tokens an article but one of three; two negatives of six."""
    log = timelines([[(1, 0), (2, 0)], [(3, 0)]], [[4]])
    tokens = np.array([0, 6, 6, 3, 6, *[0] * 8])
    shared = {"token_budget": 999, "max_clicks": 4, "negatives": 1}

    def batch(**settings: Any) -> Batch:
        config = BatchConfig(**shared, **settings)
        sampler = Sampler(
            log, num_news=NUM_NEWS, max_clicks=4, negatives=1, seed=0, autoregressive=config.autoregressive
        )
        return next(iter(Batcher(sampler, tokens, config, NO_CACHE, Position(), new_stamps(NUM_NEWS))))

    fast = batch()
    assert (fast.num_tokens, fast.num_padded_tokens) == (21, 21)
    padded = batch(mode="padded", num_buckets=1)
    assert (padded.num_tokens, padded.num_padded_tokens) == (21, 24)
    everywhere = batch(mode="padded", num_buckets=1, central=False)  # 4 positions of clicks, 4 of negatives
    assert (everywhere.num_tokens, everywhere.num_padded_tokens) == (6 + 6 + 3 + 3 * 6, 8 * 6)
    fixed = batch(mode="padded", central=False, size=3, autoregressive=False)  # 3 x (4 clicks, target, negative)
    assert (fixed.num_tokens, fixed.num_padded_tokens) == (6 + (6 + 6 + 3) + 3 * 6, 3 * 6 * 6)
    assert 0.3 < fixed.data_efficiency < 0.4
