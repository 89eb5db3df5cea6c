"""The cache schedule: which articles a step reads from the cache and which it encodes.

Whether a row is fresh depends on step numbers, not on values, so it is known before any row exists. The state of
the schedule is the step that last encoded each article, its *stamp*:

    step        0     1     2     3         gamma 1, every draw in favour
    articles   a b   a c   a c    a
    encoded    a b    c     a
    cache hit         a     c     a         (a at step 2: written at step 0, more than gamma ago)

A hit of step t was encoded before step t, so prefetching threads and ranks that follow one plan never read a row
that is not there.

Which articles have deferred gradients is known ahead as well: at the end of each update, `deferred_V` is the step
of the oldest cache hit of each article whose gradient has not reached the encoder.
Shapes: V all articles, E encoded, R cache hits.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.growth import Growth
from speedyfeed.errors import InputError
from speedyfeed.random import Stream, random_bits, to_uniform
from speedyfeed.ranges import MANY, Ranges, check_ranges

Ids = NDArray[np.int32]
Stamps = NDArray[np.int32]
Reads = list[tuple[int, Ids]]
"""Step and cache hits of each batch since the last update."""
NEVER = -1
GAMMA = 20
"""Number of steps for which a cached embedding may be reused by default in a small log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """How long embeddings of articles are reused between training steps, how often, and how they are stored."""

    gamma: int | None = None
    """Number of steps for which a cached embedding may be reused; 0 turns the cache off. By default 20, and
    more in logs of more than a thousand live articles (docs/batching.md)."""
    beta: float = 0.2
    """Growth rate of the lookup probability 1 - exp(-beta t) with the step t."""
    draw: Literal["news", "step"] = "news"
    """Draw cache lookups independently for each article (news), or once for all articles of a step (step, the
    paper's Algorithm 2)."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format of cached embeddings: fp32, or bf16 for half the memory."""
    gradients: bool = True
    """Deferred gradients of cached embeddings, on by default: the language model receives them when it encodes the
    article next. Without them it learns nothing from cached embeddings, as in the paper."""
    center: bool = True
    """Centering of gradients where some are deferred, on by default: the mean gradient of the texts that a step
    encodes is subtracted from each. Without it, gradients that arrive late can amplify a shift that all embeddings
    share, which ranks no article above another."""

    RANGES: ClassVar[Ranges] = {
        "gamma": (0, MANY),
        "beta": (0, MANY),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.draw not in ("news", "step"):
            raise InputError(f"draw {self.draw}: expected news or step")
        if self.dtype not in ("fp32", "bf16"):
            raise InputError(f"dtype {self.dtype}: expected fp32 or bf16")

    @property
    def max_age(self) -> int:
        """Number of steps for which a cached embedding may be reused: gamma, or its default in a small log."""
        return GAMMA if self.gamma is None else self.gamma

    def for_log(self, growth: Growth) -> "CacheConfig":
        """Cache with the gamma of a log, where none is given."""
        return self if self.gamma is not None else replace(self, gamma=round(GAMMA * growth.gamma))

    def plan(self, seed: int, accumulate: int = 1) -> "CachePlan":
        """Schedule of cache hits for a run with this seed and `accumulate` batches per update."""
        return CachePlan(
            gamma=self.max_age,
            beta=self.beta,
            draw=self.draw,
            seed=seed,
            gradients=self.gradients and self.max_age > 0,
            accumulate=accumulate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlan:
    """Schedule of cache hits. Ranks that share the plan and the stamps take the same decisions."""

    gamma: int
    """Number of steps for which a row stays fresh; 0 turns the cache off."""
    beta: float
    """Growth rate of the lookup probability with the step."""
    draw: Literal["news", "step"]
    """Draw lookups for each article (news), or once for all fresh rows of a step (step)."""
    seed: int
    """Seed of the lookup draws."""
    gradients: bool = False
    """Whether the gradients of cache hits are deferred to the next time the article is encoded."""
    accumulate: int = 1
    """Number of batches per update; deferred gradients are delivered in the last of them."""

    def lookup_rate(self, step: int) -> float:
        """Lookup probability 1 - exp(-beta t) of a step t: low at first, while the model changes fast."""
        return -float(np.expm1(-self.beta * step))

    def is_cache_hit(self, news: NDArray[np.int32], stamps_V: Stamps, step: int) -> NDArray[np.bool]:
        """Whether each article is read from the cache at `step`; the others are encoded."""
        is_fresh = stamps_V[news] >= max(step - self.gamma, 0)
        counter = news if self.draw == "news" else np.zeros(1, np.int32)
        favours = to_uniform(random_bits(self.seed, Stream.CACHE, step, counter)) < self.lookup_rate(step)
        return is_fresh & favours

    def overdue(self, deferred_V: Stamps, step: int) -> Ids:
        """Articles to encode at `step` for their deferred gradients alone, oldest first: their rows have expired.

        There are none at steps that deliver nothing.
        """
        if not self.gradients or not self._ends_update(step) or step <= self.gamma:
            return np.zeros(0, np.int32)
        # One pass: without a sign, NEVER is the largest number.
        pending = np.flatnonzero(deferred_V.view(np.uint32) < np.uint32(step - self.gamma))
        return pending[deferred_V[pending].argsort(kind="stable")].astype(np.int32)

    def note_deferred(self, deferred_V: Stamps, reads: Reads, step: int, encode_E: Ids, cached_R: Ids) -> None:
        """Note the cache hits of `step` in `reads`; where it ends the update, move them all to `deferred_V`.

        The articles whose gradients it delivers by encoding are cleared first: what the same update read of them
        is delivered by a later one.
        """
        if not self.gradients:
            return
        reads.append((step, cached_R))
        if self._ends_update(step):
            deferred_V[encode_E] = NEVER
            for read_at, read_R in reads:
                deferred_V[read_R[deferred_V[read_R] == NEVER]] = read_at
            reads.clear()

    def _ends_update(self, step: int) -> bool:
        return (step + 1) % self.accumulate == 0


def new_stamps(num_news: int) -> Stamps:
    """Stamps of a new run: no article is encoded yet, and entry 0, padding, never will be."""
    return np.full(num_news + 1, NEVER, np.int32)
