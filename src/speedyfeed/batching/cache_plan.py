"""The cache schedule: which news a step reads from the cache and which it encodes.

Whether a row is fresh depends on step numbers, not on values, so it is known before any row exists. All there is
to keep is the step that last encoded each news, its *stamp*, set in step order:

    step        0     1     2     3         gamma 1, every draw in favour
    news       a b   a c   a c    a
    encoded    a b    c     a
    read              a     c     a         (a at step 2: written at step 0, more than gamma ago)

What step t reads was encoded at steps before t, so prefetching, threads and ranks that follow one plan never meet
a row that is not there.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.random import Stream, random_bits, to_uniform

Stamps = NDArray[np.int32]
NEVER = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlan:
    """When the cache may answer. All ranks that share it, and the stamps, decide alike."""

    gamma: int
    """Steps a row stays fresh; 0 = no cache."""
    beta: float
    """Growth of the lookup rate per step."""
    draw: Literal["step", "news"]
    """Whether a step uses all of its fresh rows or none (the paper's Algorithm 2), or draws for each news."""
    seed: int

    def lookup_rate(self, step: int) -> float:
        """p_t = 1 - exp(-beta t): at first the model changes too fast for its old embeddings to be used."""
        return -float(np.expm1(-self.beta * step))

    def is_cache_hit(self, news: NDArray[np.int32], stamps_V: Stamps, step: int) -> NDArray[np.bool]:
        """Which of the news are read from the cache at `step`; the others are encoded."""
        is_fresh = stamps_V[news] >= max(step - self.gamma, 0)
        place = news if self.draw == "news" else np.zeros(1, np.int32)
        favours = to_uniform(random_bits(self.seed, Stream.CACHE, step, place)) < self.lookup_rate(step)
        return is_fresh & favours


def new_stamps(num_news: int) -> Stamps:
    """Nothing encoded yet; entry 0 is padding, which never is."""
    return np.full(num_news + 1, NEVER, np.int32)
