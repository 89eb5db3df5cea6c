"""Articles of a synthetic newsroom: when each is published, its subtopic, who would click it and who is shown it.

Articles are numbered by (birth slot, subtopic), so those of one slot, or of one subtopic in it, are consecutive
and a draw among them is one search in cumulative sums:

    slot      0         0         0      1         1
    subtopic  football  football  music  football  wine
    news      0         1         2      3         4

A click is drawn from P(news | user, time), proportional to weight x appetite x fade(age). The other articles of
a visit are drawn from Q(news | time), proportional to weight^EXPOSURE x a slower fade, Poisson(SHOWN) times, so
an article is among them with probability 1 - exp(-SHOWN x Q), independently of the others. Given the candidates
of a visit, the probability that an article is the clicked one is then proportional to P / (1 - exp(-SHOWN x Q)):
the best possible score. Memory is a few numbers per article; a draw costs about half a microsecond.
"""

from dataclasses import dataclass

import numpy as np

from speedyfeed.synthetic.popularity import (
    FADE_CLICKED,
    FADE_SHOWN,
    LIFE,
    SLOTS_PER_DAY,
    Floats,
    Ints,
    allow_for_repeats,
    fit_weights,
    long_tail,
)

SHOWN = 15.0
"""Mean number of draws of articles shown with the clicked ones in a visit; repeats count once."""
EXPOSURE = 0.9
"""Exponent of exposure: popular articles are shown more, but less than in proportion to their clicks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All articles of a newsroom and the tables to draw them from; slots count from LIFE before the log begins."""

    born: Ints
    """Birth slot of each article, ascending."""
    subtopic: Ints
    """Subtopic of each article, ascending within a slot."""
    weight: Floats
    """Popularity of each article."""
    clicked: "CellDraw"
    """Table of clicked articles, by subtopic."""
    shown: "CellDraw"
    """Table of shown articles, all subtopics together."""

    def draw_clicked(self, appetite: Floats, slot: Ints, rng: np.random.Generator) -> Ints:
        """Draw one article per row, clicked by a user with the appetite (rows, subtopics) of that row."""
        sums = (appetite * self.clicked.mass[slot]).cumsum(axis=1)
        target = rng.random(len(slot)) * sums[:, -1]
        return self.clicked.draw(slot, (sums <= target[:, None]).sum(axis=1), rng)

    def draw_shown(self, slot: Ints, rng: np.random.Generator) -> Ints:
        """Draw one article per row, shown to any user."""
        return self.shown.draw(slot, np.zeros_like(slot), rng)

    def score(self, news: Ints, slot: Ints) -> Floats:
        """Best possible score for an unknown user; add a known user's taste to it."""
        age, weight = slot - self.born[news], self.weight[news]
        draws = SHOWN * weight**EXPOSURE * FADE_SHOWN[age] / self.shown.mass[slot, 0]
        score: Floats = np.log(weight * FADE_CLICKED[age] / -np.expm1(-draws))
        return score


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDraw:
    """Draws living articles of a kind: first the age, then an article of that cell (slot, kind)."""

    mass: Floats
    """(slots, kinds) total weight of the living articles of a kind."""
    age_sums: Floats
    """(slots, kinds, LIFE) cumulative sums of that weight over age."""
    first: Ints
    """(slots x kinds + 1) first article of each cell."""
    sums: Floats
    """(news + 1) cumulative sums of all weights."""

    def draw(self, slot: Ints, kind: Ints, rng: np.random.Generator) -> Ints:
        """Draw one article for each pair of slot and kind."""
        ages = self.age_sums[slot, kind]
        target = rng.random(len(slot)) * ages[:, -1]
        age = (ages <= target[:, None]).sum(axis=1)
        cell = (slot - age) * self.mass.shape[1] + kind
        low, high = self.first[cell], self.first[cell + 1]
        target = self.sums[low] + rng.random(len(slot)) * (self.sums[high] - self.sums[low])
        news: Ints = np.searchsorted(self.sums, target, side="right") - 1
        return np.clip(news, low, high - 1)


def build_world(
    *, num_news: int, days: int, tastes: Floats, num_clicks: Ints, sharpness: float, rng: np.random.Generator
) -> World:
    """Build the articles from LIFE slots before the log begins until the end of its last day.

    `tastes` (users, subtopics) and `num_clicks` are of a sample of users that popularity is fitted to.
    """
    num_slots, num_subtopics = num_slots_of(days), tastes.shape[1]
    # Popular articles are distributed evenly, so that no slot gets many more of them than another.
    rounds = np.tile(np.arange(num_slots), (-(-num_news // num_slots), 1))
    born = rng.permuted(rounds, axis=1).ravel()[:num_news]
    subtopic = rng.integers(num_subtopics, size=num_news)
    order = np.lexsort((subtopic, born))
    born, subtopic = born[order], subtopic[order]
    appetite = np.exp(tastes)
    share = allow_for_repeats(long_tail(num_news, sharpness)[order], appetite, num_clicks)
    weight = fit_weights(share, born, subtopic, num_slots=num_slots, appetite=appetite)
    return World(
        born=born,
        subtopic=subtopic,
        weight=weight,
        clicked=_cell_draw(born, subtopic, weight, FADE_CLICKED, (num_slots, num_subtopics)),
        shown=_cell_draw(born, np.zeros_like(born), weight**EXPOSURE, FADE_SHOWN, (num_slots, 1)),
    )


def num_slots_of(days: int) -> int:
    """Slots in which articles are published: the log, and one life before it."""
    return LIFE + days * SLOTS_PER_DAY


def _cell_draw(born: Ints, kind: Ints, weight: Floats, fade: Floats, shape: tuple[int, int]) -> CellDraw:
    num_slots, num_kinds = shape
    cell = born * num_kinds + kind
    mass = np.bincount(cell, weights=weight, minlength=num_slots * num_kinds).reshape(shape)
    living = np.zeros((*shape, LIFE))
    for age in range(LIFE):
        living[age:, :, age] = mass[: num_slots - age] * fade[age]
    age_sums = living.cumsum(axis=2)
    return CellDraw(
        mass=age_sums[:, :, -1],
        age_sums=age_sums,
        first=np.searchsorted(cell, np.arange(num_slots * num_kinds + 1)),
        sums=np.concatenate([[0.0], weight.cumsum()]),
    )
