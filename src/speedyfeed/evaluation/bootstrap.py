"""Confidence intervals of means over impressions and of differences of two runs: a seeded percentile bootstrap.

A resample of n impressions is drawn as counts over a histogram of their values, not one by one, so an interval
costs the same for a thousand impressions and for a hundred million. Impressions are assumed independent.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
_BINS = 1024  # a bin spans 1/1024 of the range of the values: the variance inside it is negligible


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over impressions with its 95% interval; NaN when there were no impressions."""

    mean: float
    """Mean of the values."""
    ci95: tuple[float, float]
    """Lower and upper bound of the 95% interval."""
    num_impressions: int
    """Number of impressions with a value."""


def estimate(values: NDArray[np.float64], rng: np.random.Generator, resamples: int = RESAMPLES) -> Estimate:
    """Mean and interval of the values; NaN marks impressions without a value, which are left out."""
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return Estimate(mean=np.nan, ci95=(np.nan, np.nan), num_impressions=0)
    low, high = np.quantile(_resampled_means(values, rng, resamples), [0.025, 0.975])
    return Estimate(mean=float(values.mean()), ci95=(float(low), float(high)), num_impressions=len(values))


def compare(
    a: NDArray[np.float64], b: NDArray[np.float64], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Estimate:
    """Mean of B - A and its interval, paired by impression; those where either is NaN are left out."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return estimate(b - a, rng, resamples)


def verdict(difference: Estimate) -> str:
    """Describe the difference that `compare` found in one sentence."""
    mean, (low, high) = difference.mean, difference.ci95
    if difference.num_impressions == 0:
        return "nothing to compare: no impression was scored in both"
    if mean == low == high == 0:
        return "A and B are the same"
    interval = f"{mean:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
    if low > 0:
        return f"B is better ({interval})"
    if high < 0:
        return f"A is better ({interval})"
    return f"no difference shown ({interval})"


def _resampled_means(values: NDArray[np.float64], rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    """Means of `resamples` bootstrap samples.

    Every bin is represented by the mean of its members, so the mean of all values is exact.
    """
    counts, edges = np.histogram(values, _BINS)
    sums, _ = np.histogram(values, edges, weights=values)
    filled = counts > 0
    counts, means = counts[filled], sums[filled] / counts[filled]
    drawn = rng.multinomial(len(values), counts / len(values), size=resamples)
    return np.asarray(drawn @ means / len(values))
