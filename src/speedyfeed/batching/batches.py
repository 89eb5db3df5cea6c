"""Batches from instances: buckets, a token budget, and which articles each batch encodes or finds in the cache.

    shuffled users --sample--> instances --longest article--> buckets --token budget--> Batch

Instances go to buckets by their longest article. A bucket closes when its tokens *still to be encoded* reach the
budget: an article counts once, and not at all if it is a cache hit, so batches grow as the cache warms up. Where
cache hits owe gradients, overdue debts take a part of the budget. A cap on click positions bounds their memory.
Packed batches need no buckets, because nothing is padded; padded batches and batches of a fixed size exist for
comparison.

Batches depend on the data, the config, the seed and the step alone: every rank makes the same ones, and a
`Position`, the stamps and the debts suffice to continue from any batch.
Shapes: B users, L clicks, N negatives, V all articles, M distinct articles, E encoded, R cache hits, U instances.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.cache_plan import CachePlan, Ids, Stamps, new_stamps
from speedyfeed.batching.growth import Growth
from speedyfeed.batching.sample import Instances, Sampler
from speedyfeed.data.store import PAD_NEWS, NewsTokens
from speedyfeed.errors import InputError
from speedyfeed.ragged import Array, Ragged
from speedyfeed.ranges import MANY, Ranges, check_ranges

BLOCK_USERS = 1024  # users sampled at a time; batches do not depend on it
FIRST_CHUNK = 32  # users of a bucket counted first, doubled until enough; batches do not depend on it
EDGE_USERS = 4096  # users sampled to place the edges of the buckets
OVERDUE_SHARE = 1 / 16  # fraction of the token budget that overdue debts of cached articles may take

TOKEN_BUDGET = 8192
"""Default token budget of one step in a small log."""
CLICKS_PER_BATCH = 4096
"""Default maximum number of click positions in a batch in a small log."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """How clicks of users are sampled and put into batches."""

    central: bool = True
    """Centralized encoding, on by default: each distinct article of a batch is encoded once. Without it, every
    position of a batch is encoded, padding included."""
    autoregressive: bool = True
    """Autoregressive training, on by default: one pass over a user learns from all clicks. Without it, each click
    is an instance with its own copy of the history."""
    first_click: bool = True
    """Learning from a user's first click, on by default, with a learned start vector for the user before it.
    Without it, as in the paper, there is no start vector and a history has at least one click."""
    size: int = 0
    """Number of instances per batch of fixed shape; 0 batches dynamically, by the token budget."""
    max_clicks: int = 100
    """Maximum number of clicks of a user, the latest ones; without autoregressive training, of a history."""
    negatives: int = 4
    """Number of negatives per click: articles that were shown but not clicked."""
    token_budget: int | None = None
    """Token budget of one step, summed over all ranks: tokens to encode, exceeded by the last user at most. By
    default 8192, and up to 32768 in logs of more than a thousand live articles (docs/batching.md); the paper has
    39800."""
    max_clicks_per_batch: int | None = None
    """Maximum number of click positions in a batch: its users times their longest history. By default 4096, and
    up to 16384 in large logs."""
    mode: Literal["packed", "padded"] = "packed"
    """Layout of the tokens: packed has no padding; padded extends every article to the longest one of its batch,
    or of the whole store in batches of a fixed size."""
    num_buckets: int = 2
    """Number of buckets by longest article; used in padded mode alone."""
    prefetch: int = 8
    """Number of batches prepared ahead of the trainer."""

    RANGES: ClassVar[Ranges] = {
        "size": (0, MANY),
        "max_clicks": (1, MANY),
        "negatives": (1, 1_000_000),
        "token_budget": (1, MANY),
        "max_clicks_per_batch": (1, MANY),
        "num_buckets": (1, 1000),
        "prefetch": (1, 1_000_000),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.clicks_per_batch < self.max_positions:
            raise InputError(
                f"max_clicks_per_batch {self.clicks_per_batch}: expected at least max_clicks, "
                f"{self.max_positions}, so that every user fits"
            )
        if self.mode not in ("packed", "padded"):
            raise InputError(f"mode {self.mode}: expected packed or padded")

    @property
    def tokens_per_batch(self) -> int:
        """Token budget of one step: as given, or the default in a small log."""
        return TOKEN_BUDGET if self.token_budget is None else self.token_budget

    @property
    def clicks_per_batch(self) -> int:
        """Maximum number of click positions in a batch: as given, or the default in a small log."""
        return CLICKS_PER_BATCH if self.max_clicks_per_batch is None else self.max_clicks_per_batch

    def for_log(self, growth: Growth) -> "BatchConfig":
        """Batches of the size that a log asks for, where none is given."""
        return replace(
            self,
            token_budget=self.token_budget or round(TOKEN_BUDGET * growth.batch),
            max_clicks_per_batch=self.max_clicks_per_batch or round(CLICKS_PER_BATCH * growth.batch),
        )

    @property
    def shares(self) -> bool:
        """Whether all clicks of all users of a batch are learned from together, as the in-batch loss needs it."""
        return self.central and self.autoregressive and self.first_click

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of an instance: its clicks or, if not autoregressive, history and target."""
        return self.max_clicks if self.autoregressive else self.max_clicks + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Position of a run in the data, between two batches."""

    step: int = 0
    """Step of the next batch."""
    epoch: int = 0
    cursor: int = 0
    """Number of instances that have arrived, in the order of the epoch."""
    waiting: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions, in the order of the epoch, of arrived instances that still wait in a bucket."""

    @property
    def num_instances(self) -> int:
        """Number of instances of the epoch that have been in a batch."""
        return self.cursor - len(self.waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Clicks and negatives of some users as article ids, where 0 is padding.

    A batch holds no text: tokens are fetched for the articles to be encoded alone.
    """

    step: int
    epoch: int
    users_B: NDArray[np.int64]
    """Rows of the train timelines."""
    history_BL: Ids
    """Clicks, oldest first, padded at the end."""
    targets_BL: Ids
    """Clicks to learn from: the whole history or, with shape (B, 1), the click that follows it. Without
    `first_click`, the first of a whole history is 0."""
    negatives_BLN: Ids
    """Negatives of each target."""
    has_own_negatives_BL: NDArray[np.bool]
    """Whether the negatives of a target come from its own impression; otherwise they are fallback negatives."""
    encode_E: Ids
    """Articles to encode and then write to the cache, sorted."""
    cached_R: Ids
    """Articles to read from the cache, sorted; with `encode_E`, all distinct articles of the batch."""
    deliver_E: Ids
    """Other articles, to be encoded for the gradients they owe and written to the cache, oldest debt first."""
    num_tokens: int
    """Number of tokens of all articles to encode."""
    num_padded_tokens: int
    """Number of tokens including the padding of the mode."""
    is_full: bool
    """Whether `max_clicks_per_batch` ended the batch, before its tokens reached the budget."""
    after: Position
    """Position in the data after this batch."""

    @property
    def num_clicks(self) -> int:
        """Number of clicks to learn from: those that have negatives."""
        return int(np.count_nonzero(self.negatives_BLN[..., 0]))

    def weigh_clicks(self, fallback_weight: float) -> float:
        """Number of clicks to learn from; those with fallback negatives count by their weight in the loss."""
        has_negatives_BL = self.negatives_BLN[..., 0] != PAD_NEWS
        num_own = int(np.count_nonzero(has_negatives_BL & self.has_own_negatives_BL))
        return num_own + fallback_weight * (int(np.count_nonzero(has_negatives_BL)) - num_own)

    @property
    def data_efficiency(self) -> float:
        """Fraction of encoded tokens that are not padding (Eq. 1); 1 when nothing is encoded."""
        return self.num_tokens / self.num_padded_tokens if self.num_padded_tokens else 1.0


class Batcher:
    """Endless iterator over the batches from a position on, epoch after epoch."""

    def __init__(
        self,
        sampler: Sampler,
        lengths_V: NDArray[np.int64],
        config: BatchConfig,
        plan: CachePlan,
        start: Position,
        stamps_V: Stamps,
        debts_V: Stamps | None = None,
    ) -> None:
        """`lengths_V` holds the number of tokens of every article; stamps and debts change while iterating."""
        self._sampler = sampler
        self._lengths_V = lengths_V
        self._config = config
        self._plan = plan
        self._position = start
        self._stamps_V = stamps_V
        self._debts_V = new_stamps(len(lengths_V) - 1) if debts_V is None else debts_V
        self._seen_V = np.zeros(len(lengths_V), np.int64)
        self._edges = self._place_edges()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self._rest_of_epoch()
            self._position = Position(step=self._position.step, epoch=self._position.epoch + 1)

    def _rest_of_epoch(self) -> Iterator[Batch]:
        order = self._sampler.order(self._position.epoch)
        queue = self._arrive(order, self._position.waiting)
        num_arrived = self._position.cursor
        while True:
            rows, is_full = self._closed_bucket(queue)
            if rows is None and num_arrived < len(order):
                positions = np.arange(num_arrived, min(num_arrived + BLOCK_USERS, len(order)))
                queue = queue.extended(self._arrive(order, positions))
                num_arrived += len(positions)
                continue
            if rows is None:  # the epoch ends: the rest of the bucket that has waited longest
                rows = queue.rows[queue.bucket_U[queue.rows] == queue.bucket_U[queue.rows[:1]]]
            if not len(rows):
                return
            queue.remove(rows)
            yield self._build_batch(queue, rows, is_full=is_full)

    def _arrive(self, order: NDArray[np.int64], positions: NDArray[np.int64]) -> "_Queue":
        instances = self._sampler.sample(order[positions], self._position.epoch)
        bucket_U = np.searchsorted(self._edges, self._longest(instances))
        return _Queue(positions_U=positions, bucket_U=bucket_U, instances=instances)

    def _closed_bucket(self, queue: "_Queue") -> tuple[Rows | None, bool]:
        """Instances of the bucket that closes first at this step, None if none closes; and whether it is full.

        A bucket closes with the instance that reaches the budget, or before the one that exceeds the cap. Cache
        hits change from step to step, so buckets are re-evaluated at every step.
        """
        if self._config.size:
            return queue.rows[: self._config.size] if len(queue.rows) >= self._config.size else None, False
        closed: Rows | None = None
        is_full = False
        closes_at = len(queue.instances)
        for bucket in range(len(self._edges) + 1):
            rows = queue.rows[queue.bucket_U[queue.rows] == bucket]
            lengths = queue.instances.candidates.lengths[rows]
            num_positions = np.maximum.accumulate(lengths) * np.arange(1, len(rows) + 1)
            num_fit = int(np.searchsorted(num_positions, self._config.clicks_per_batch, side="right"))
            last = self._find_budget(queue.instances.candidates, rows[:num_fit])
            if last < len(rows) and rows[last] < closes_at:
                closed, closes_at = rows[: min(last + 1, num_fit)], int(rows[last])
                is_full = last == num_fit
        return closed, is_full

    def _find_budget(self, candidates: Ragged, rows: Rows) -> int:
        """Index of the instance that reaches the token budget; the number of instances if none does."""
        num_seen = FIRST_CHUNK
        budget = self._config.tokens_per_batch - int(self._lengths_V[self._overdue()].sum())
        while True:
            tokens = self._count_tokens(candidates.take(rows[:num_seen]))
            last = int(np.searchsorted(tokens, budget))
            if last < len(tokens) or len(tokens) == len(rows):
                return last
            num_seen *= 2

    def _overdue(self) -> Ids:
        """Overdue articles of this step that fit into their part of the token budget, one at least."""
        overdue = self._plan.overdue(self._debts_V, self._position.step)
        room = OVERDUE_SHARE * self._config.tokens_per_batch
        num_fit = int(np.searchsorted(self._lengths_V[overdue].cumsum(), room, side="right"))
        return overdue[: max(1, num_fit)]

    def _count_tokens(self, candidates: Ragged) -> NDArray[np.int64]:
        """Number of tokens to encode at this step for the first instance, for the first two, and so on."""
        news = candidates.values.ravel()
        is_encoded = news != PAD_NEWS
        if self._config.central:
            positions = np.arange(len(news))
            # The last assignment to an index wins: written backwards, that is the first occurrence.
            self._seen_V[news[::-1]] = positions[::-1]
            is_encoded &= self._seen_V[news] == positions
        is_encoded[is_encoded] = ~self._plan.is_cache_hit(news[is_encoded], self._stamps_V, self._position.step)
        lengths = np.where(is_encoded, self._lengths_V[news], 0)
        if self._config.mode == "packed":
            tokens = np.cumsum(lengths)
        else:
            tokens = np.cumsum(is_encoded) * np.maximum.accumulate(lengths)
        counted: NDArray[np.int64] = tokens[candidates.offsets[1:] * candidates.values.shape[1] - 1]
        return counted

    def _build_batch(self, queue: "_Queue", rows: Rows, *, is_full: bool) -> Batch:
        """Batch of these instances; stamps and position advance by one step."""
        instances = queue.instances.take(rows)
        lengths = instances.candidates.lengths
        num_positions = self._config.max_positions if self._config.size else lengths.max()
        is_click_BL = np.arange(num_positions) < lengths[:, None]
        history_BL = _padded(instances.candidates.values[:, 0], is_click_BL)
        negatives_BLN = _padded(instances.candidates.values[:, 1:], is_click_BL)
        has_own_negatives_BL = _padded(instances.has_own_negatives.values, is_click_BL)
        targets_BL = history_BL
        if self._config.autoregressive and not self._config.first_click:
            targets_BL = history_BL.copy()
            targets_BL[:, 0] = PAD_NEWS
        if not self._config.autoregressive:
            last_B1 = lengths[:, None] - 1
            targets_BL = np.take_along_axis(history_BL, last_B1, 1)
            negatives_BLN = np.take_along_axis(negatives_BLN, last_B1[..., None], 1)
            has_own_negatives_BL = np.take_along_axis(has_own_negatives_BL, last_B1, 1)
            np.put_along_axis(history_BL, last_B1, PAD_NEWS, 1)
            history_BL = history_BL[:, :-1]
        step, epoch = self._position.step, self._position.epoch
        merged_M = np.unique(instances.candidates.values)
        merged_M = merged_M[merged_M != PAD_NEWS]
        is_cache_hit_M = self._plan.is_cache_hit(merged_M, self._stamps_V, step)
        encode_E, cached_R = merged_M[~is_cache_hit_M], merged_M[is_cache_hit_M]
        overdue = self._overdue()
        deliver_E = overdue[~np.isin(overdue, encode_E)]
        encoded = encode_E
        if not self._config.central:
            targets = [] if self._config.autoregressive else [targets_BL.ravel()]
            ids = np.concatenate([history_BL.ravel(), *targets, negatives_BLN.ravel()])
            encoded = ids[~np.isin(ids, cached_R)]
        encoded = np.concatenate([encoded, deliver_E])
        num_tokens = num_padded = int(self._lengths_V[encoded].sum())
        if self._config.mode == "padded":
            longest = self._lengths_V if self._config.size else self._lengths_V[encoded]
            num_padded = len(encoded) * int(longest.max(initial=0))
        self._stamps_V[encode_E] = self._stamps_V[deliver_E] = step
        self._plan.note_debts(self._debts_V, step, np.concatenate([encode_E, deliver_E]), cached_R)

        cursor = max(self._position.cursor, int(queue.positions_U[rows[-1]]) + 1)
        waiting = queue.positions_U[queue.rows]
        self._position = Position(step=step + 1, epoch=epoch, cursor=cursor, waiting=waiting[waiting < cursor])
        return Batch(
            step=step,
            epoch=epoch,
            users_B=instances.users_U,
            history_BL=history_BL,
            targets_BL=targets_BL,
            negatives_BLN=negatives_BLN,
            has_own_negatives_BL=has_own_negatives_BL,
            encode_E=encode_E,
            cached_R=cached_R,
            deliver_E=deliver_E,
            num_tokens=num_tokens,
            num_padded_tokens=num_padded,
            is_full=is_full,
            after=self._position,
        )

    def _place_edges(self) -> NDArray[np.float64]:
        """Longest article of each bucket but the last, such that buckets get about equally many instances."""
        if self._config.mode == "packed" or self._config.size:
            return np.zeros(0)
        some = self._sampler.sample(self._sampler.order(0)[:EDGE_USERS], 0)
        return np.quantile(self._longest(some), np.arange(1, self._config.num_buckets) / self._config.num_buckets)

    def _longest(self, instances: Instances) -> NDArray[np.int64]:
        """Number of tokens of the longest article of each instance."""
        if not len(instances):
            return np.zeros(0, np.int64)
        longest = self._lengths_V[instances.candidates.values].max(axis=1)
        return np.maximum.reduceat(longest, instances.candidates.offsets[:-1])


def news_lengths(news: NewsTokens) -> NDArray[np.int64]:
    """Number of tokens of every article, summed over its segments; 0 for padding."""
    return np.diff(news.tokens.offsets[news.segments])


def _padded(values: Array, is_click_BL: NDArray[np.bool]) -> Array:
    """Values in rows of one user each, with 0 where there is no click."""
    padded = np.zeros((*is_click_BL.shape, *values.shape[1:]), values.dtype)
    padded[is_click_BL] = values
    return padded


class _Queue:
    """Instances in order of arrival; `rows` are those that are not in a batch yet."""

    def __init__(
        self, *, positions_U: NDArray[np.int64], bucket_U: NDArray[np.int64], instances: Instances
    ) -> None:
        self.positions_U = positions_U
        self.bucket_U = bucket_U
        self.instances = instances
        self.rows: Rows = np.arange(len(instances))

    def remove(self, rows: Rows) -> None:
        """Remove instances that are in a batch now."""
        self.rows = np.setdiff1d(self.rows, rows, assume_unique=True)

    def extended(self, others: "_Queue") -> "_Queue":
        """Queue of the instances that still wait, followed by the others."""
        return _Queue(
            positions_U=np.concatenate([self.positions_U[self.rows], others.positions_U]),
            bucket_U=np.concatenate([self.bucket_U[self.rows], others.bucket_U]),
            instances=self.instances.take(self.rows).extended(others.instances),
        )
