"""Popularity of the articles of a synthetic newsroom: a long tail like the paper's, fading with age.

The number of articles and a sample of users give one weight per article, such that the expected clicks of these
users follow the paper's table "long-tail property". Takes seconds at any size.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SLOT_SECONDS = 3 * 3600
SLOTS_PER_DAY = 24 * 3600 // SLOT_SECONDS
LIFE = 3 * SLOTS_PER_DAY
"""Slots for which an article is shown."""
FADE_CLICKED = np.exp(-np.arange(LIFE) / 5.0)
"""Attractiveness of an article by its age in slots."""
FADE_SHOWN = np.exp(-np.arange(LIFE) / 5.5)
"""Exposure of an article by its age in slots."""

# The paper's click shares (top 1% of articles: 59.53% ... top 30%: 98.97%) are, within 0.3 points,
# share(top x) = cdf(A + B ppf(x)) of the normal distribution.
TAIL_A, TAIL_B = 2.918, 1.151
# Within the top 1%, where the paper gives no detail, popularity falls exponentially by exp(HEAD_FALL) in all,
# which meets the curve where the head ends.
HEAD, HEAD_FALL = 0.01, 2.14
PPF = NormalDist().inv_cdf

FIT_ROUNDS = 30


def long_tail(num_news: int, sharpness: float) -> Floats:
    """Click shares of the articles, most popular first; sharpness 1 gives the paper's."""
    left = np.array([_share_left(x) for x in np.linspace(0, 1, num_news + 1)])
    share = (left[:-1] - left[1:]) ** sharpness
    return np.asarray(share / share.sum())


def _share_left(x: float) -> float:
    """Share of all clicks that are not on the top fraction x of the articles; exact where it is tiny."""
    if x >= 1:
        return 0.0
    left = math.erfc((TAIL_A + TAIL_B * PPF(max(x, HEAD))) / math.sqrt(2)) / 2
    if x >= HEAD:
        return left
    return 1 - (1 - left) * (1 - math.exp(-HEAD_FALL * x / HEAD)) / (1 - math.exp(-HEAD_FALL))


def allow_for_repeats(share: Floats, appetite: Floats, num_clicks: Ints) -> Floats:
    """Correct click shares for users who draw an article several times but click it only once.

    A user draws an article Poisson(clicks x appetite x share) times and clicks it if that is not zero.
    """
    drawn = num_clicks[:, None] * appetite / appetite.mean(axis=1, keepdims=True)
    needed = np.geomspace(share.min(), 10 * share.max(), 100)
    found = np.array([-np.expm1(-drawn * x).mean() for x in needed]) / num_clicks.mean()
    return np.interp(share, found, needed)


def fit_weights(share: Floats, born: Ints, storyline: Ints, *, num_slots: int, appetite: Floats) -> Floats:
    """Fit weights with which the expected clicks of each article are proportional to `share`.

    Expected clicks are weight x reach. The reach of a cell (slot, storyline) is the users' appetite for it
    relative to all competing articles, which depends on the weights: a fixed point, found by damped iterations.
    """
    mass = np.zeros((num_slots, appetite.shape[1]))
    np.add.at(mass, (born, storyline), share)
    correction = np.ones_like(mass)
    for _ in range(FIT_ROUNDS):
        living = np.zeros_like(mass)
        for age in range(LIFE):
            living[age:] += FADE_CLICKED[age] * (mass * correction)[: num_slots - age]
        chance = (1 / (living @ appetite.T)) @ appetite
        chance[:LIFE] = chance[LIFE:].mean(axis=0)  # as if there had been users before the log begins
        reach, lived = np.zeros_like(mass), np.zeros((num_slots, 1))
        for age in range(LIFE):
            reach[: num_slots - age] += FADE_CLICKED[age] * chance[age:]
            lived[: num_slots - age] += FADE_CLICKED[age]
        expected = correction * reach / lived
        correction *= np.sqrt(expected.mean() / expected)
    weights: Floats = share * correction[born, storyline]
    return weights
