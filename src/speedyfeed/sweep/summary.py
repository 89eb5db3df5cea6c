"""Means and deviations over seeds, and differences between variants with a confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedyfeed.evaluation.bootstrap import Bootstrap
from speedyfeed.run_evaluation import SEED
from speedyfeed.sweep.trials import load_users, load_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Mean and standard deviation of a value over seeds."""

    mean: float | None
    """Mean over seeds; None if the value is unknown for any of them."""
    std: float | None
    """Sample standard deviation (n - 1); None for a single seed."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread":
        """Summarise one value per seed."""
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return cls(mean=None, std=None)
        return cls(mean=float(np.mean(known)), std=float(np.std(known, ddof=1)) if len(known) > 1 else None)

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.4f}" + ("" if self.std is None else f" ±{self.std:.4f}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Difference of a metric between two variants on the same impressions, averaged over seeds."""

    mean: float
    ci95: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.ci95[0]:+.4f}, {self.ci95[1]:+.4f}]"


def compare_trials(a: Sequence[Path], b: Sequence[Path], metric: str = "auc") -> Difference:
    """Metric of the trials in folders `b` minus that of `a`, with an interval over users and seeds."""
    values_a, values_b = (np.stack([load_values(path, metric) for path in paths]) for paths in (a, b))
    found = Bootstrap(load_users(a[0]), np.random.default_rng(SEED)).compare(values_a, values_b)
    return Difference(mean=found.mean, ci95=found.ci95)
