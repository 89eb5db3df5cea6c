"""Growth of batches and of the cache with the log, so that a click costs about the same in logs of all sizes.

A batch shares what its users have in common, and the cache what the last gamma steps had: the more articles are
live, the less that is. Batches times gamma therefore grow in proportion to the live articles, each by the square
root of it; batches at most fourfold, since they have to fit into memory, and gamma by what is left.

    live articles    up to 1,000     4,000     16,000     64,000
    batches                   x1        x2         x4         x4
    gamma                     x1        x2         x4        x16

Shapes: V all articles.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIVE_CLICKS = 50
"""Number of clicks in train from which on an article is live: rarer ones are seldom shared by any batches."""
SMALL_NEWS = 1000
"""Number of live articles up to which a log is small."""
MAX_BATCH = 4.0
"""Largest factor of batches, which makes them nearly as large as those of the paper."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Factors of the defaults of a log, as multiples of those of a small one."""

    batch: float = 1.0
    """Factor of the token budget and of the clicks per batch."""
    gamma: float = 1.0
    """Factor of the number of steps for which a cached embedding may be reused."""


def growth_of(clicks_V: NDArray[np.int64]) -> Growth:
    """Growth of a log by the clicks that each article has in train."""
    ratio = max(1.0, np.count_nonzero(clicks_V >= LIVE_CLICKS) / SMALL_NEWS)
    batch = min(math.sqrt(ratio), MAX_BATCH)
    return Growth(batch=batch, gamma=ratio / batch)
