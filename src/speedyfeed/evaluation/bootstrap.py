"""Confidence intervals of means over impressions, and of differences between runs: a seeded percentile bootstrap.

Impressions of one user are alike, so users are drawn, not impressions: each resample takes as many users as there
are, with replacement, and all impressions of each. Where runs were trained with several seeds, every resample also
draws seeds, so that an interval says what other users *and* other seeds could have given:

    users    0 1 2 3   drawn   2 0 0 3   means of every run over the impressions of these
    seeds    0 1 2     drawn   1 1 2     mean over these runs

A and B of a comparison share the drawn users, since both rank the same impressions, but not the drawn seeds. Many
users are first put into groups at random, so an interval costs the same for ten thousand and for ten million.
Shapes: I impressions   S seeds   G users or groups of users   R resamples
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
MAX_GROUPS = 4096
"""Largest number of groups of users that are drawn: it makes the width of an interval uncertain by one percent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over impressions with its 95% interval; NaN when there were no impressions."""

    mean: float
    """Mean of the values."""
    ci95: tuple[float, float]
    """Lower and upper bound of the 95% interval."""
    num_impressions: int
    """Number of impressions with a value."""


class Bootstrap:
    """Resamples of the users of some impressions, drawn once for all metrics of these impressions."""

    def __init__(self, users_I: NDArray[np.integer], rng: np.random.Generator, resamples: int = RESAMPLES) -> None:
        """`users_I` is the user of each impression, as any number."""
        _, self._groups_I = np.unique(users_I, return_inverse=True)
        self._rng = rng
        num_users = num_groups = int(self._groups_I.max(initial=-1)) + 1
        if num_users > MAX_GROUPS:
            num_groups = MAX_GROUPS
            self._groups_I = (rng.permutation(num_users) % num_groups)[self._groups_I]
        self._counts_RG = np.zeros((resamples, num_groups), np.float32)
        for counts_G in self._counts_RG:
            counts_G[:] = np.bincount(rng.integers(0, num_groups, num_groups), minlength=num_groups)

    def estimate(self, values: NDArray[np.float64]) -> Estimate:
        """Mean and interval of the values of a run (I), or of runs with several seeds (S, I).

        NaN marks an impression without a value, which is left out.
        """
        return self._estimate([(1.0, np.atleast_2d(values))])

    def compare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Estimate:
        """Mean of B - A and its interval, paired by impression; those where either is NaN are left out.

        Each is one run (I), or runs with several seeds (S, I); their numbers of seeds may differ.
        """
        return self._estimate([(-1.0, np.atleast_2d(a)), (1.0, np.atleast_2d(b))])

    def _estimate(self, terms: Sequence[tuple[float, NDArray[np.float64]]]) -> Estimate:
        """Sum of the means of these runs, each times its sign."""
        assert all(values_SI.shape[1] == len(self._groups_I) for _, values_SI in terms)
        has_value_I = ~np.any([np.isnan(values_SI).any(0) for _, values_SI in terms], axis=0)
        num_impressions = int(has_value_I.sum())
        if not num_impressions:
            return Estimate(mean=np.nan, ci95=(np.nan, np.nan), num_impressions=0)
        groups = self._groups_I[has_value_I]
        num_drawn_R = self._counts_RG @ self._sum_by_group(np.ones(num_impressions), groups)
        mean, means_R = 0.0, np.zeros(len(num_drawn_R))
        for sign, values_SI in terms:
            values_SI = values_SI[:, has_value_I]
            sums_GS = np.stack([self._sum_by_group(values_I, groups) for values_I in values_SI], axis=1)
            with np.errstate(invalid="ignore"):  # a resample without any of the impressions is NaN
                means_RS = self._counts_RG @ sums_GS / num_drawn_R[:, None]
            mean += sign * float(values_SI.mean())
            means_R += sign * (self._draw_seeds(len(values_SI)) * means_RS).sum(1)
        low, high = np.nanquantile(means_R, [0.025, 0.975])
        return Estimate(mean=mean, ci95=(float(low), float(high)), num_impressions=num_impressions)

    def _sum_by_group(self, values_I: NDArray[np.float64], groups_I: NDArray[np.integer]) -> NDArray[np.float64]:
        return np.bincount(groups_I, values_I, minlength=self._counts_RG.shape[1]).astype(np.float64)

    def _draw_seeds(self, num_seeds: int) -> NDArray[np.float64]:
        """Weights of the seeds in every resample, (R, S).

        A bootstrap of S values has only (S - 1) / S of their variance, a third less for three seeds: deviations
        from equal weights are widened by as much.
        """
        if num_seeds == 1:
            return np.ones((len(self._counts_RG), 1))
        equal = np.full(num_seeds, 1 / num_seeds)
        drawn_RS = self._rng.multinomial(num_seeds, equal, size=len(self._counts_RG)) / num_seeds
        return np.asarray(equal + math.sqrt(num_seeds / (num_seeds - 1)) * (drawn_RS - equal))


def verdict(difference: Estimate) -> str:
    """Describe the difference that `Bootstrap.compare` found in one sentence."""
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
