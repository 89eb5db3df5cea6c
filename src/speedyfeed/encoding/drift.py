"""Drift of the cache: how far cached rows are from what the encoder says when it encodes the article again.

Both rows are at hand then, so drift is measured without encoding anything. Rows are compared by the cosine of
their embeddings, without categories. Weights that move change a row about in proportion to its age, so one step is

    rate = sum of (1 - cosine) / sum of ages,   and a row that is gamma steps old has a cosine of 1 - rate x gamma

Shapes: E rows encoded again, H text width, D embedding width.
"""

import logging

import torch
from torch import Tensor

from speedyfeed.encoding.cache import NEVER, NewsCache
from speedyfeed.encoding.central import NewsEncoder

log = logging.getLogger(__name__)

MAX_ROWS = 64
"""Number of rows compared in a step, at most."""
MIN_COSINE = 0.95
"""Expected cosine of rows gamma steps old, below which gamma should be lower."""
MIN_COMPARISONS = 100
"""Number of comparisons from which on the rate is trusted."""


class CacheDrift:
    """Cosines between old and new rows of articles that are encoded again, and how old the old rows were."""

    def __init__(self, *, gamma: int) -> None:
        self._gamma = gamma
        self._cosines: list[Tensor] = []
        self._ages: list[Tensor] = []
        self._by_age: dict[int, tuple[float, int]] = {}
        self._has_warned = False

    @torch.no_grad()
    def compare(self, encoder: NewsEncoder, cache: NewsCache, ids_E: Tensor, rows_EH: Tensor, step: int) -> None:
        """Compare some of the rows that `step` has encoded with those that the cache still holds."""
        again_E = (cache.stamps_V[ids_E] != NEVER).nonzero().squeeze(1)
        again_E = again_E[:: -(-len(again_E) // MAX_ROWS) or 1]
        if not len(again_E):
            return
        new_EH = rows_EH[again_E.to(rows_EH.device)]
        new_ED, old_ED = (
            encoder.project(rows, None).float() for rows in (new_EH, cache.read(ids_E[again_E]).to(rows_EH.device))
        )
        ages_E = (step - cache.stamps_V[ids_E[again_E]]).clamp(min=1)  # 0 if a step is taken again
        self.add(torch.cosine_similarity(new_ED, old_ED).cpu(), ages_E)

    def add(self, cosines_E: Tensor, ages_E: Tensor) -> None:
        """Add cosines between new rows and old ones of these ages, in steps."""
        self._cosines.append(cosines_E)
        self._ages.append(ages_E)
        powers_E = ages_E.log2().floor().int()
        for power in powers_E.unique().tolist():
            total, count = self._by_age.get(power, (0.0, 0))
            at_age = cosines_E[powers_E == power]
            self._by_age[power] = total + float(at_age.sum()), count + len(at_age)

    def take(self) -> dict[str, float]:
        """Mean and 5th percentile of the cosines since the last call; warns once if gamma should be lower."""
        if not self._cosines:
            return {}
        cosines, ages = torch.cat(self._cosines), torch.cat(self._ages)
        self._cosines, self._ages = [], []
        if len(cosines) >= MIN_COMPARISONS:
            self._advise(float((1 - cosines).sum() / ages.sum()))
        return {"cache_cosine": float(cosines.mean()), "cache_cosine_p5": float(cosines.quantile(0.05))}

    def by_age(self) -> dict[str, float]:
        """Mean cosine of all comparisons by age: `cache_cosine_age_8` is that of rows 8 to 15 steps old."""
        return {f"cache_cosine_age_{2**power}": total / n for power, (total, n) in sorted(self._by_age.items())}

    def _advise(self, rate: float) -> None:
        if self._has_warned or 1 - rate * self._gamma >= MIN_COSINE:
            return
        self._has_warned = True
        log.warning(
            "cached embeddings %d steps old have a cosine of about %.3f to fresh ones, expected at least %.2f: "
            "set --cache.gamma %d or lower, or a lower --encoder-lr",
            self._gamma,
            max(0.0, 1 - rate * self._gamma),
            MIN_COSINE,
            int((1 - MIN_COSINE) / rate),
        )
