"""Batches of training: how they are configured, what they hold, and where in the data they end.

`batcher` makes them. Shapes: B users, L clicks, N negatives, V all articles, E encoded, R cache hits.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.cache_plan import Ids
from speedyfeed.batching.growth import Growth
from speedyfeed.data.store import NewsTokens
from speedyfeed.errors import InputError
from speedyfeed.ranges import MANY, Ranges, check_ranges

TOKEN_BUDGET = 8192
"""Default token budget of one step in a small log."""
CLICKS_PER_BATCH = 4096
"""Default maximum number of click positions in a batch in a small log."""


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
    """Number of negatives per click: articles that were shown but not clicked. Clicks that the in-batch loss alone
    learns from have none."""
    token_budget: int | None = None
    """Token budget of one step, summed over all ranks: a batch is full once its users need this many tokens to be
    encoded. By default 8192, and up to 32768 in logs of more than a thousand live articles (docs/batching.md); the
    paper has 39800."""
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
    planners: int = 4
    """Number of threads that plan batches; the batches are the same with any number."""

    RANGES: ClassVar[Ranges] = {
        "size": (0, MANY),
        "max_clicks": (1, MANY),
        "negatives": (1, 1_000_000),
        "token_budget": (1, MANY),
        "max_clicks_per_batch": (1, MANY),
        "num_buckets": (1, 1000),
        "prefetch": (1, 1_000_000),
        "planners": (1, 1024),
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
    """Whether the negatives of a target come from its own impression; others have fallback negatives or none."""
    encode_E: Ids
    """Articles to encode and then write to the cache, sorted."""
    cached_R: Ids
    """Articles to read from the cache, sorted; with `encode_E`, all distinct articles of the batch."""
    deliver_E: Ids
    """Other articles, to be encoded for their deferred gradients and written to the cache, oldest first."""
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

    def weigh_clicks(self, weight_without: float) -> float:
        """Number of clicks to learn from; those without own negatives count by their weight in the loss."""
        num_own = int(np.count_nonzero(self.has_own_negatives_BL))
        return num_own + weight_without * (int(np.count_nonzero(self.targets_BL)) - num_own)

    @property
    def data_efficiency(self) -> float:
        """Fraction of encoded tokens that are not padding (Eq. 1); 1 when nothing is encoded."""
        return self.num_tokens / self.num_padded_tokens if self.num_padded_tokens else 1.0


def news_lengths(news: NewsTokens) -> NDArray[np.int64]:
    """Number of tokens of every article, summed over its segments; 0 for padding."""
    return np.diff(news.tokens.offsets[news.segments])
