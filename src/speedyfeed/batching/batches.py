"""Instances to batches: buckets, a token budget, and what each batch reads and encodes.

    shuffled users --sample--> instances --longest news--> buckets --token budget--> Batch

Instances go to buckets by their longest news. A bucket closes when its tokens *still to be encoded* reach the
budget: news that repeat count once and news the cache answers for count nothing, so batches grow as the cache
warms. A cap on the places for clicks keeps them from outgrowing memory all the same. Packed batches need no
buckets, because nothing is padded; padded ones exist for comparison, and so do batches of a fixed size.

Everything follows from the data, the config and the step: the same arguments give the same batches, on any rank,
and a `Position` and the stamps are all it takes to go on from any batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.cache_plan import CachePlan, Stamps
from speedyfeed.batching.sample import Instances, Sampler
from speedyfeed.data.store import PAD_NEWS, NewsTokens
from speedyfeed.errors import InputError
from speedyfeed.ragged import Array, Ragged

BLOCK_USERS = 1024  # users sampled in one go; batches do not depend on it
FIRST_CHUNK = 32  # users of a bucket counted at first, then twice as many; likewise
EDGE_USERS = 4096  # users looked at to place the edges of the buckets

Ids = NDArray[np.int32]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """How users are sampled and batched, and when the cache answers."""

    central: bool = True
    """Encode each distinct news of a batch once; off, every place of it on its own, padding included."""
    autoregressive: bool = True
    """Learn from all clicks of a user in one pass; off, each click is an instance of its own with its history."""
    size: int = 0
    """Instances per batch, always of the same shape; 0 batches dynamically, by tokens."""
    max_clicks: int = 100
    """Clicks of a user at most: the latest. Without `autoregressive`, clicks of a history at most."""
    negatives: int = 4
    """News shown but not clicked per click."""
    token_budget: int = 8192
    """A batch closes when it has so many tokens to encode; its last user may carry it over. The paper: 39800."""
    max_clicks_per_batch: int = 16384
    """Places for clicks in a batch at most: its users times their longest history."""
    mode: Literal["packed", "padded"] = "packed"
    """packed encodes no padding; padded makes every news as long as the longest beside it, or as the longest of
    all where the shape is fixed."""
    num_buckets: int = 2
    """Buckets by longest news, in padded mode."""
    prefetch: int = 8
    """Batches made ahead of the trainer."""

    def __post_init__(self) -> None:
        for name in ("max_clicks", "negatives", "token_budget", "num_buckets", "prefetch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: expected at least 1")
        if self.size < 0:
            raise InputError(f"size {self.size}: expected 0 or more")
        if self.max_clicks_per_batch < self.max_places:
            raise InputError(
                f"max_clicks_per_batch {self.max_clicks_per_batch}: expected at least max_clicks, "
                f"{self.max_places}, so that every user fits"
            )
        if self.mode not in ("packed", "padded"):
            raise InputError(f"mode {self.mode}: expected packed or padded")

    @property
    def max_places(self) -> int:
        """Places for clicks an instance may take: without `autoregressive`, one more than its history."""
        return self.max_clicks if self.autoregressive else self.max_clicks + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where in the data a run stands: between two batches."""

    step: int = 0
    """Number of the next batch."""
    epoch: int = 0
    cursor: int = 0
    """Instances of the epoch, in its order, that arrived; the next one is at this place."""
    waiting: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Places of those that arrived and still wait in a bucket."""

    @property
    def num_instances(self) -> int:
        """Instances of the epoch that were in a batch."""
        return self.cursor - len(self.waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What some users clicked and shown but not clicked, as news ids; 0 is padding.

    No text travels with it: tokens are fetched only for the news to be encoded.
    """

    step: int
    epoch: int
    users_B: NDArray[np.int64]
    """Rows of the train timelines."""
    history_BL: Ids
    """Clicks, oldest first, padded at the end."""
    targets_BL: Ids
    """Clicks to learn from: all of the history, or (B, 1) the click that comes after it."""
    negatives_BLN: Ids
    """Beside each of them."""
    has_own_negatives_BL: NDArray[np.bool]
    """Whether a click's negatives were skipped in its own impression; if not, they are any news of the period."""
    encode_E: Ids
    """News to be encoded and then written to the cache, sorted."""
    cached_R: Ids
    """News to be read from the cache, sorted; with `encode_E`, all distinct news of the batch."""
    num_tokens: int
    """Tokens of the news to be encoded."""
    num_padded_tokens: int
    """The same with the padding the mode asks for."""
    after: Position
    """Where the data stands once this batch is trained on."""

    @property
    def num_clicks(self) -> int:
        """Clicks to learn from: those that have negatives."""
        return int(np.count_nonzero(self.negatives_BLN[..., 0]))

    @property
    def data_efficiency(self) -> float:
        """Share of real tokens among those encoded (Eq. 1); 1 when nothing is encoded."""
        return self.num_tokens / self.num_padded_tokens if self.num_padded_tokens else 1.0


class Batcher:
    """Makes all batches from a position on, epoch after epoch, without end."""

    def __init__(
        self,
        sampler: Sampler,
        lengths_V: NDArray[np.int64],
        config: BatchConfig,
        plan: CachePlan,
        start: Position,
        stamps_V: Stamps,
    ) -> None:
        """`lengths_V` is the tokens of every news; `stamps_V` is kept up to date while iterating."""
        self._sampler = sampler
        self._lengths_V = lengths_V
        self._config = config
        self._plan = plan
        self._position = start
        self._stamps_V = stamps_V
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
            rows = self._closed_bucket(queue)
            if rows is None and num_arrived < len(order):
                places = np.arange(num_arrived, min(num_arrived + BLOCK_USERS, len(order)))
                queue = queue.extended(self._arrive(order, places))
                num_arrived += len(places)
                continue
            if rows is None:  # the epoch ends: what is left of the bucket that waited longest
                rows = queue.rows[queue.bucket_U[queue.rows] == queue.bucket_U[queue.rows[:1]]]
            if not len(rows):
                return
            queue.remove(rows)
            yield self._build_batch(queue, rows)

    def _arrive(self, order: NDArray[np.int64], places: NDArray[np.int64]) -> "_Queue":
        instances = self._sampler.sample(order[places], self._position.epoch)
        bucket_U = np.searchsorted(self._edges, self._longest(instances))
        return _Queue(places_U=places, bucket_U=bucket_U, instances=instances)

    def _closed_bucket(self, queue: "_Queue") -> Rows | None:
        """The instances that close a bucket at this step; of several buckets the one that closes first.

        A bucket closes with the instance that reaches the budget, or before the one that exceeds the cap. Other
        steps pass while it waits, which changes what the cache answers for; so it is looked at anew every step.
        """
        if self._config.size:
            return queue.rows[: self._config.size] if len(queue.rows) >= self._config.size else None
        closed: Rows | None = None
        closes_at = len(queue.instances)
        for bucket in range(len(self._edges) + 1):
            rows = queue.rows[queue.bucket_U[queue.rows] == bucket]
            lengths = queue.instances.candidates.lengths[rows]
            num_places = np.maximum.accumulate(lengths) * np.arange(1, len(rows) + 1)
            num_fit = int(np.searchsorted(num_places, self._config.max_clicks_per_batch, side="right"))
            last = self._find_budget(queue.instances.candidates, rows[:num_fit])
            if last < len(rows) and rows[last] < closes_at:
                closed, closes_at = rows[: min(last + 1, num_fit)], int(rows[last])
        return closed

    def _find_budget(self, candidates: Ragged, rows: Rows) -> int:
        """Which of the instances reaches the token budget; their number if none does."""
        num_seen = FIRST_CHUNK
        while True:
            tokens = self._count_tokens(candidates.take(rows[:num_seen]))
            last = int(np.searchsorted(tokens, self._config.token_budget))
            if last < len(tokens) or len(tokens) == len(rows):
                return last
            num_seen *= 2

    def _count_tokens(self, candidates: Ragged) -> NDArray[np.int64]:
        """Tokens to be encoded at this step for the first instance, for the first two, and so on."""
        news = candidates.values.ravel()
        is_encoded = news != PAD_NEWS
        if self._config.central:
            places = np.arange(len(news))
            # Of equal indices the last one assigned stays: written backwards, the first occurrence.
            self._seen_V[news[::-1]] = places[::-1]
            is_encoded &= self._seen_V[news] == places
        is_encoded[is_encoded] = ~self._plan.is_cache_hit(news[is_encoded], self._stamps_V, self._position.step)
        lengths = np.where(is_encoded, self._lengths_V[news], 0)
        if self._config.mode == "packed":
            tokens = np.cumsum(lengths)
        else:
            tokens = np.cumsum(is_encoded) * np.maximum.accumulate(lengths)
        counted: NDArray[np.int64] = tokens[candidates.offsets[1:] * candidates.values.shape[1] - 1]
        return counted

    def _build_batch(self, queue: "_Queue", rows: Rows) -> Batch:
        """The batch of these instances; the plan and the position move on by one step."""
        instances = queue.instances.take(rows)
        lengths = instances.candidates.lengths
        num_places = self._config.max_places if self._config.size else lengths.max()
        is_click_BL = np.arange(num_places) < lengths[:, None]
        history_BL = _padded(instances.candidates.values[:, 0], is_click_BL)
        negatives_BLN = _padded(instances.candidates.values[:, 1:], is_click_BL)
        has_own_negatives_BL = _padded(instances.has_own_negatives.values, is_click_BL)
        targets_BL = history_BL
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
        encoded = encode_E
        if not self._config.central:
            targets = [] if self._config.autoregressive else [targets_BL.ravel()]
            places = np.concatenate([history_BL.ravel(), *targets, negatives_BLN.ravel()])
            encoded = places[~np.isin(places, cached_R)]
        num_tokens = num_padded = int(self._lengths_V[encoded].sum())
        if self._config.mode == "padded":
            longest = self._lengths_V if self._config.size else self._lengths_V[encoded]
            num_padded = len(encoded) * int(longest.max(initial=0))
        self._stamps_V[encode_E] = step

        cursor = max(self._position.cursor, int(queue.places_U[rows[-1]]) + 1)
        waiting = queue.places_U[queue.rows]
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
            num_tokens=num_tokens,
            num_padded_tokens=num_padded,
            after=self._position,
        )

    def _place_edges(self) -> NDArray[np.float64]:
        """Longest news of each bucket but the last, so that about as many instances fall into each."""
        if self._config.mode == "packed" or self._config.size:
            return np.zeros(0)
        some = self._sampler.sample(self._sampler.order(0)[:EDGE_USERS], 0)
        return np.quantile(self._longest(some), np.arange(1, self._config.num_buckets) / self._config.num_buckets)

    def _longest(self, instances: Instances) -> NDArray[np.int64]:
        """Tokens of the longest news of each instance."""
        if not len(instances):
            return np.zeros(0, np.int64)
        longest = self._lengths_V[instances.candidates.values].max(axis=1)
        return np.maximum.reduceat(longest, instances.candidates.offsets[:-1])


def news_lengths(news: NewsTokens) -> NDArray[np.int64]:
    """Tokens of every news, all of its segments together; 0 for padding."""
    return np.diff(news.tokens.offsets[news.segments])


def _padded(values: Array, is_click_BL: NDArray[np.bool]) -> Array:
    """One row of places per user; what lies at no click is 0."""
    padded = np.zeros((*is_click_BL.shape, *values.shape[1:]), values.dtype)
    padded[is_click_BL] = values
    return padded


class _Queue:
    """Instances that arrived, in order of arrival; `rows` are those that are in no batch yet."""

    def __init__(self, *, places_U: NDArray[np.int64], bucket_U: NDArray[np.int64], instances: Instances) -> None:
        self.places_U = places_U
        self.bucket_U = bucket_U
        self.instances = instances
        self.rows: Rows = np.arange(len(instances))

    def remove(self, rows: Rows) -> None:
        """These are in a batch now."""
        self.rows = np.setdiff1d(self.rows, rows, assume_unique=True)

    def extended(self, others: "_Queue") -> "_Queue":
        """Those still waiting, then the others."""
        return _Queue(
            places_U=np.concatenate([self.places_U[self.rows], others.places_U]),
            bucket_U=np.concatenate([self.bucket_U[self.rows], others.bucket_U]),
            instances=self.instances.take(self.rows).extended(others.instances),
        )
