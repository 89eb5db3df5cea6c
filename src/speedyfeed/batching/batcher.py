"""The batcher: instances to batches, by buckets, a token budget and the cache plan.

    shuffled users --sample--> instances --longest article--> buckets --token budget--> Batch

Instances go to buckets by their longest article. A bucket closes when its tokens *still to be encoded* reach the
budget: an article counts once, and not at all if it is a cache hit, so batches grow as the cache warms up. Where
gradients are deferred, overdue ones take a part of the budget. A cap on click positions bounds their memory.
Packed batches need no buckets, because nothing is padded; padded batches and batches of a fixed size exist for
comparison.

Batches depend on the data, the config, the seed and the step alone: every rank makes the same ones, and a
`Position`, the stamps and what is deferred suffice to continue after any update.
Shapes: B users, L clicks, N negatives, V all articles, M distinct articles, E encoded, R cache hits, U instances.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.batches import Batch, BatchConfig, Position
from speedyfeed.batching.cache_plan import CachePlan, Ids, Reads, Stamps, new_stamps
from speedyfeed.batching.in_order import map_in_order
from speedyfeed.batching.padding import pad_clicks
from speedyfeed.batching.queue import Queue, Rows
from speedyfeed.batching.sample import Instances, Sampler
from speedyfeed.data.store import PAD_NEWS
from speedyfeed.ragged import Ragged

BLOCK_USERS = 1024  # users sampled at a time; batches do not depend on it
FIRST_CHUNK = 32  # users of a bucket counted first, doubled until enough; batches do not depend on it
EDGE_USERS = 4096  # users sampled to place the edges of the buckets
AHEAD = 8  # blocks and batches begun before they are needed; batches do not depend on it
OVERDUE_SHARE = 1 / 16  # fraction of the token budget that articles with overdue gradients may take


@dataclass(frozen=True, kw_only=True, slots=True)
class _Counted:
    """Articles of some instances at one step, in order of appearance."""

    candidates: Ragged
    """Rows of the instances."""
    news: Ids
    """Articles of all positions."""
    is_first: NDArray[np.bool]
    """Whether a position is the first of its article, and no padding."""
    is_cache_hit: NDArray[np.bool]
    """Whether the article of a first position is a cache hit."""
    tokens_U: NDArray[np.int64]
    """Number of tokens to encode for the first instance, for the first two, and so on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Closed:
    """A batch that is decided, and whose arrays are yet to be made."""

    arrived: Instances
    """Instances of which the batch has some."""
    rows: Rows
    """Those of the batch."""
    encode_E: Ids
    cached_R: Ids
    deliver_E: Ids
    is_full: bool
    before: Position
    after: Position


class Batcher:
    """Endless iterator over the batches from the end of an update on, epoch after epoch.

        sample blocks of users --> close batches, one after the other --> make their arrays
          in parallel                 stamps of one decide the next          in parallel

    Without an executor everything is done when it is needed, in one thread: the same batches.
    """

    def __init__(
        self,
        sampler: Sampler,
        lengths_V: NDArray[np.int64],
        config: BatchConfig,
        plan: CachePlan,
        start: Position,
        stamps_V: Stamps,
        deferred_V: Stamps | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`lengths_V` has the number of tokens of each article; `stamps_V` and `deferred_V` change on the way."""
        self._sampler = sampler
        self._lengths_V = lengths_V
        self._config = config
        self._plan = plan
        self._position = start
        self._stamps_V = stamps_V
        self._deferred_V = new_stamps(len(lengths_V) - 1) if deferred_V is None else deferred_V
        self._reads: Reads = []
        self._executor = executor
        self._seen_V = np.zeros(len(lengths_V), np.int64)
        self._num_seen = FIRST_CHUNK
        self._due: tuple[int, Ids] | None = None
        self._edges = self._place_edges()
        self._longest_news = int(lengths_V.max(initial=0))

    def __iter__(self) -> Iterator[Batch]:
        return map_in_order(self._executor, self._build_batch, self._close_batches(), AHEAD)

    def _close_batches(self) -> Iterator[_Closed]:
        while True:
            yield from self._rest_of_epoch()
            self._position = Position(step=self._position.step, epoch=self._position.epoch + 1)

    def _rest_of_epoch(self) -> Iterator[_Closed]:
        arrive = partial(self._arrive, self._position.epoch)
        queue = arrive(self._position.waiting)
        blocks = map_in_order(self._executor, arrive, self._blocks(self._position.cursor), AHEAD)
        while True:
            rows, counted, is_full = self._closed_bucket(queue)
            if rows is None and (block := next(blocks, None)) is not None:
                queue = queue.extended(block)
                continue
            if rows is None:  # the epoch ends: the rest of the bucket that has waited longest
                rows = queue.rows[queue.bucket_U[queue.rows] == queue.bucket_U[queue.rows[:1]]]
            if not len(rows):
                return
            queue.remove(rows)
            yield self._close(queue, rows, counted, is_full=is_full)

    def _blocks(self, first: int) -> Iterator[Rows]:
        """Positions in the order of an epoch, from the first that has not arrived on, in blocks."""
        size = self._sampler.num_instances
        return (np.arange(start, min(start + BLOCK_USERS, size)) for start in range(first, size, BLOCK_USERS))

    def _arrive(self, epoch: int, positions: Rows) -> Queue:
        """Sample the instances at these positions of an epoch; reads nothing that changes."""
        instances = self._sampler.sample(self._sampler.order(epoch, positions), epoch)
        bucket_U = np.searchsorted(self._edges, self._longest(instances))
        return Queue(positions_U=positions, bucket_U=bucket_U, instances=instances)

    def _closed_bucket(self, queue: Queue) -> tuple[Rows | None, _Counted | None, bool]:
        """Instances of the bucket that closes first at this step, None if none closes; and whether it is full.

        A bucket closes with the instance that reaches the budget, or before the one that exceeds the cap. Cache
        hits change from step to step, so buckets are re-evaluated at every step. The articles of the instances,
        and maybe of some after them, come counted.
        """
        if self._config.size:
            rows = queue.rows[: self._config.size] if len(queue.rows) >= self._config.size else None
            return rows, None, False
        closed: Rows | None = None
        closed_counted: _Counted | None = None
        is_full = False
        closes_at = len(queue.instances)
        for bucket in range(len(self._edges) + 1):
            rows = queue.rows[queue.bucket_U[queue.rows] == bucket]
            lengths = queue.instances.candidates.lengths[rows]
            num_positions = np.maximum.accumulate(lengths) * np.arange(1, len(rows) + 1)
            num_fit = int(np.searchsorted(num_positions, self._config.clicks_per_batch, side="right"))
            last, counted = self._find_budget(queue.instances.candidates, rows[:num_fit])
            if last < len(rows) and rows[last] < closes_at:
                closed, closes_at = rows[: min(last + 1, num_fit)], int(rows[last])
                closed_counted = counted
                is_full = last == num_fit
        return closed, closed_counted, is_full

    def _find_budget(self, candidates: Ragged, rows: Rows) -> tuple[int, _Counted]:
        """Index of the instance that reaches the token budget; the number of instances if none does."""
        budget = self._config.tokens_per_batch - int(self._lengths_V[self._overdue].sum())
        num_seen = self._num_seen
        while True:
            counted = self._count(candidates.take(rows[:num_seen]))
            last = int(np.searchsorted(counted.tokens_U, budget))
            if last < len(counted.tokens_U) or len(counted.tokens_U) == len(rows):
                return last, counted
            num_seen *= 2

    @property
    def _overdue(self) -> Ids:
        """Overdue articles of this step that fit into their part of the token budget, one at least."""
        step = self._position.step
        if self._due is None or self._due[0] != step:
            overdue = self._plan.overdue(self._deferred_V, step)
            room = OVERDUE_SHARE * self._config.tokens_per_batch
            num_fit = int(np.searchsorted(self._lengths_V[overdue].cumsum(), room, side="right"))
            self._due = step, overdue[: max(1, num_fit)]
        return self._due[1]

    def _count(self, candidates: Ragged) -> _Counted:
        """Articles and tokens of instances at this step."""
        news = candidates.values.ravel()
        positions = np.arange(len(news))
        # The last assignment to an index wins: written backwards, that is the first occurrence.
        self._seen_V[news[::-1]] = positions[::-1]
        is_first = (self._seen_V[news] == positions) & (news != PAD_NEWS)
        is_cache_hit = np.zeros(len(news), np.bool)
        is_cache_hit[is_first] = self._is_cache_hit(news[is_first])
        is_encoded = is_first & ~is_cache_hit
        if not self._config.central:
            is_encoded = ~is_cache_hit[self._seen_V[news]] & (news != PAD_NEWS)
        lengths = np.where(is_encoded, self._lengths_V[news], 0)
        if self._config.mode == "packed":
            tokens = np.cumsum(lengths)
        else:
            tokens = np.cumsum(is_encoded) * np.maximum.accumulate(lengths)
        return _Counted(
            candidates=candidates,
            news=news,
            is_first=is_first,
            is_cache_hit=is_cache_hit,
            tokens_U=tokens[candidates.offsets[1:] * candidates.values.shape[1] - 1],
        )

    def _is_cache_hit(self, news: Ids) -> NDArray[np.bool]:
        return self._plan.is_cache_hit(news, self._stamps_V, self._position.step)

    def _close(self, queue: Queue, rows: Rows, counted: _Counted | None, *, is_full: bool) -> _Closed:
        """Decide the batch of these instances; stamps and position advance by one step."""
        if counted is None:
            counted = self._count(queue.instances.candidates.take(rows))
        self._num_seen = max(FIRST_CHUNK, len(rows) + len(rows) // 4)
        within = slice(counted.candidates.offsets[len(rows)] * counted.candidates.values.shape[1])
        is_first = counted.is_first[within]
        merged = counted.news[within][is_first]
        is_cache_hit = counted.is_cache_hit[within][is_first]
        encode_E, cached_R = np.sort(merged[~is_cache_hit]), np.sort(merged[is_cache_hit])
        # One that an earlier batch of the update encoded, which delivered nothing, may be a cache hit.
        deliver_E = self._overdue[~np.isin(self._overdue, merged)]
        before = self._position
        self._stamps_V[encode_E] = self._stamps_V[deliver_E] = before.step
        encoded = np.concatenate([encode_E, deliver_E])
        self._plan.note_deferred(self._deferred_V, self._reads, before.step, encoded, cached_R)

        cursor = max(before.cursor, int(queue.positions_U[rows[-1]]) + 1)
        waiting = queue.positions_U[queue.rows]
        self._position = Position(
            step=before.step + 1, epoch=before.epoch, cursor=cursor, waiting=waiting[waiting < cursor]
        )
        return _Closed(
            arrived=queue.instances,
            rows=rows,
            encode_E=encode_E,
            cached_R=cached_R,
            deliver_E=deliver_E,
            is_full=is_full,
            before=before,
            after=self._position,
        )

    def _build_batch(self, closed: _Closed) -> Batch:
        """Make the arrays of a batch; reads nothing that changes."""
        config = self._config
        instances = closed.arrived.take(closed.rows)
        clicks = pad_clicks(
            instances,
            autoregressive=config.autoregressive,
            first_click=config.first_click,
            num_positions=config.max_positions if config.size else None,
        )
        encoded = closed.encode_E
        if not config.central:
            targets = [] if config.autoregressive else [clicks.targets_BL.ravel()]
            ids = np.concatenate([clicks.history_BL.ravel(), *targets, clicks.negatives_BLN.ravel()])
            encoded = ids[~np.isin(ids, closed.cached_R)]
        encoded = np.concatenate([encoded, closed.deliver_E])
        num_tokens = num_padded = int(self._lengths_V[encoded].sum())
        if config.mode == "padded":
            longest = self._longest_news if config.size else int(self._lengths_V[encoded].max(initial=0))
            num_padded = len(encoded) * longest
        return Batch(
            step=closed.before.step,
            epoch=closed.before.epoch,
            users_B=instances.users_U,
            history_BL=clicks.history_BL,
            targets_BL=clicks.targets_BL,
            negatives_BLN=clicks.negatives_BLN,
            has_own_negatives_BL=clicks.has_own_negatives_BL,
            encode_E=closed.encode_E,
            cached_R=closed.cached_R,
            deliver_E=closed.deliver_E,
            num_tokens=num_tokens,
            num_padded_tokens=num_padded,
            is_full=closed.is_full,
            after=closed.after,
        )

    def _place_edges(self) -> NDArray[np.float64]:
        """Longest article of each bucket but the last, such that buckets get about equally many instances."""
        if self._config.mode == "packed" or self._config.size:
            return np.zeros(0)
        num_users = min(EDGE_USERS, self._sampler.num_instances)
        some = self._sampler.sample(self._sampler.order(0, np.arange(num_users)), 0)
        return np.quantile(self._longest(some), np.arange(1, self._config.num_buckets) / self._config.num_buckets)

    def _longest(self, instances: Instances) -> NDArray[np.int64]:
        """Number of tokens of the longest article of each instance."""
        if not len(instances):
            return np.zeros(0, np.int64)
        longest = self._lengths_V[instances.candidates.values].max(axis=1)
        return np.maximum.reduceat(longest, instances.candidates.offsets[:-1])
