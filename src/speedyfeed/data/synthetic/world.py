"""The news of a synthetic newsroom: when each is born, what it is about, how popular it is and how it fades.

News are numbered by (birth slot, subtopic), so the news of one slot, or of one subtopic in it, are neighbours:

    slot      0        0        0      1        1
    subtopic  football football music  football wine
    news      0        1        2      3        4        -> a draw within a cell is one search in running sums

Clicked news are drawn from P(news | reader, time), proportional to weight x appetite x fade(age), and skipped
news from Q(news | time), proportional to weight^EXPOSURE x slower fade. Both draws are exact, and log P/Q is
the best score any ranking of clicked against skipped news can use (Neyman-Pearson). Memory is a few arrays as
long as the news; a draw costs about a microsecond.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SLOT_SECONDS = 3 * 3600
SLOTS_PER_DAY = 24 * 3600 // SLOT_SECONDS
LIFE = 3 * SLOTS_PER_DAY
"""Slots after which a news is no longer shown."""
FADE_CLICKED = np.exp(-np.arange(LIFE) / 5.0)
FADE_SKIPPED = np.exp(-np.arange(LIFE) / 5.5)
MEAN_SKIPPED = 15.0
EXPOSURE = 0.9
"""How much of its popularity a news is shown by; the rest is earned by clicks."""

# The paper's click shares (top 1% of news: 59.53% ... top 30%: 98.97%) are, within 0.8 points,
# share(top x) = cdf(A + B ppf(x)) of the normal distribution.
NORMAL = NormalDist()
TAIL_A, TAIL_B = 2.918, 1.151
# Within the top 1%, of which it says no more, popularity falls exponentially, by exp(HEAD_FALL) in all.
HEAD, HEAD_FALL = 0.01, 2.14
FIT_ROUNDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All news of a newsroom and the tables to draw them from. Time counts in slots; readers come at LIFE."""

    born: Ints
    """Birth slot of each news, ascending."""
    subtopic: Ints
    """Subtopic of each news, ascending within a slot."""
    weight: Floats
    """Popularity of each news."""
    clicked: "CellDraw"
    skipped: "CellDraw"

    def draw_clicked(self, appetite: Floats, slot: Ints, rng: np.random.Generator) -> Ints:
        """One click a row, for readers with these appetites (rows, subtopics)."""
        sums = (appetite * self.clicked.kind_mass[slot]).cumsum(axis=1)
        target = rng.random(len(slot)) * sums[:, -1]
        return self.clicked.draw(slot, (sums <= target[:, None]).sum(axis=1), rng)

    def draw_skipped(self, slot: Ints, rng: np.random.Generator) -> Ints:
        """One news a row that was shown whoever was reading."""
        return self.skipped.draw(slot, np.zeros_like(slot), rng)

    def score(self, news: Ints, slot: Ints) -> Floats:
        """The part of log P/Q that is the same for every reader: popularity and freshness."""
        age, weight = slot - self.born[news], self.weight[news]
        draws = MEAN_SKIPPED * weight**EXPOSURE * FADE_SKIPPED[age] / self.skipped.kind_mass[slot, 0]
        score: Floats = np.log(weight * FADE_CLICKED[age] / -np.expm1(-draws))
        return score


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDraw:
    """Draws news by kind, then age, then within the cell (slot, kind) that these two name."""

    kind_mass: Floats
    """(slots, kinds): what all living news of a kind weigh together."""
    age_sums: Floats
    """(slots, kinds, LIFE): running sums of the same over age."""
    first: Ints
    """(slots x kinds + 1): where each cell begins."""
    sums: Floats
    """(news + 1): running sums of all weights."""

    def draw(self, slot: Ints, kind: Ints, rng: np.random.Generator) -> Ints:
        """One living news of each kind at each slot."""
        ages = self.age_sums[slot, kind]
        target = rng.random(len(slot)) * ages[:, -1]
        age = (ages <= target[:, None]).sum(axis=1)
        cell = (slot - age) * self.kind_mass.shape[1] + kind
        low, high = self.first[cell], self.first[cell + 1]
        target = self.sums[low] + rng.random(len(slot)) * (self.sums[high] - self.sums[low])
        news: Ints = np.searchsorted(self.sums, target, side="right") - 1
        return np.clip(news, low, high - 1)


def build_world(
    *, num_news: int, days: int, tastes: Floats, num_clicks: Ints, sharpness: float, rng: np.random.Generator
) -> World:
    """News from LIFE slots before the readers come until the end of the last day.

    `tastes` (readers, subtopics) and `num_clicks` are a sample of readers: weights are fitted so that with
    such readers the expected clicks of the news follow the paper's long tail.
    """
    num_slots, num_subtopics = num_slots_of(days), tastes.shape[1]
    # Popular news are dealt out like cards, so that no slot gets much more of them than another.
    rounds = np.tile(np.arange(num_slots), (-(-num_news // num_slots), 1))
    born = rng.permuted(rounds, axis=1).ravel()[:num_news]
    subtopic = rng.integers(num_subtopics, size=num_news)
    order = np.lexsort((subtopic, born))
    born, subtopic = born[order], subtopic[order]
    share = _undo_no_repeats(long_tail(num_news, sharpness)[order], tastes, num_clicks)
    weight = _fit_weight(born, subtopic, share, num_slots, tastes)
    return World(
        born=born,
        subtopic=subtopic,
        weight=weight,
        clicked=_cell_draw(born, subtopic, weight, num_slots, num_subtopics, FADE_CLICKED),
        skipped=_cell_draw(born, np.zeros_like(born), weight**EXPOSURE, num_slots, 1, FADE_SKIPPED),
    )


def _undo_no_repeats(share: Floats, tastes: Floats, num_clicks: Ints) -> Floats:
    """The shares news would need if readers clicked a news as often as they are drawn to it, not just once."""
    appetite = np.exp(tastes)
    drawn = num_clicks[:, None] * appetite / appetite.mean(axis=1, keepdims=True)
    wanted = np.geomspace(share.min(), 100 * share.max(), 200)
    found = np.array([-np.expm1(-drawn * x).mean() for x in wanted]) / num_clicks.mean()
    return np.interp(share, found, wanted)


def _fit_weight(born: Ints, subtopic: Ints, clicks: Floats, num_slots: int, tastes: Floats) -> Floats:
    """Weights with which the expected clicks of each news are in proportion to `clicks`.

    A news gets weight x reach, where its cell's reach tells how open its readers are to it and how strong
    the competition is, which depends on the weights: a fixed point.
    """
    num_subtopics = tastes.shape[1]
    cell = born * num_subtopics + subtopic
    mass = np.zeros((num_slots, num_subtopics))
    np.add.at(mass, (born, subtopic), clicks)
    appetite = np.exp(tastes)
    correction = np.ones_like(mass)
    for _ in range(FIT_ROUNDS):
        living = np.zeros_like(mass)
        for age in range(LIFE):
            living[age:] += FADE_CLICKED[age] * (mass * correction)[: num_slots - age]
        chance = (1 / (living @ appetite.T)) @ appetite
        chance[:LIFE] = chance[LIFE:].mean(axis=0)  # as if there had been readers already
        reach, lived = np.zeros_like(mass), np.zeros((num_slots, 1))
        for age in range(LIFE):
            reach[: num_slots - age] += FADE_CLICKED[age] * chance[age:]
            lived[: num_slots - age] += FADE_CLICKED[age]
        reach /= lived
        expected = correction * reach
        correction *= (expected.mean() / expected) ** 0.5
    weight: Floats = clicks * correction.ravel()[cell]
    return weight


def num_slots_of(days: int) -> int:
    """Slots in which news are born: the period, and one life before it."""
    return LIFE + days * SLOTS_PER_DAY


def long_tail(num_news: int, sharpness: float) -> Floats:
    """Click shares of the news, most popular first, as in the paper's table (for sharpness 1)."""
    share = np.diff([_share_of_top(x) for x in np.linspace(0, 1, num_news + 1)]) ** sharpness
    return np.asarray(share / share.sum())


def _share_of_top(x: float) -> float:
    """Share of all clicks that go to the top fraction x of the news."""
    if x >= 1:
        return 1.0
    share = NORMAL.cdf(TAIL_A + TAIL_B * NORMAL.inv_cdf(max(x, HEAD)))
    return share if x >= HEAD else share * (1 - math.exp(-HEAD_FALL * x / HEAD)) / (1 - math.exp(-HEAD_FALL))


def _cell_draw(born: Ints, kind: Ints, weight: Floats, num_slots: int, num_kinds: int, fade: Floats) -> CellDraw:
    cell = born * num_kinds + kind
    mass = np.bincount(cell, weights=weight, minlength=num_slots * num_kinds).reshape(num_slots, num_kinds)
    living = np.zeros((num_slots, num_kinds, LIFE))
    for age in range(LIFE):
        living[age:, :, age] = mass[: num_slots - age] * fade[age]
    age_sums = living.cumsum(axis=2)
    return CellDraw(
        kind_mass=age_sums[:, :, -1],
        age_sums=age_sums,
        first=np.searchsorted(cell, np.arange(num_slots * num_kinds + 1)),
        sums=np.concatenate([[0.0], weight.cumsum()]),
    )
