"""The news of a synthetic newsroom: when each is born, what it is about, who would click it and who is shown it.

News are numbered by (birth slot, subtopic), so the news of one slot, or of one subtopic in it, are neighbours
and a draw among them is one search in running sums:

    slot      0         0         0      1         1
    subtopic  football  football  music  football  wine
    news      0         1         2      3         4

A click is drawn from P(news | user, time), proportional to weight x appetite x fade(age). What else a visit
shows is drawn from Q(news | time), proportional to weight^EXPOSURE x a slower fade, Poisson(SHOWN) times, so
that a news is among it with chance 1 - exp(-SHOWN x Q), independently of the others. Given the candidates of
a visit, the chance that a news is the clicked one is then in proportion to P / (1 - exp(-SHOWN x Q)): the best
score a ranking can use. Memory is a few arrays as long as the news; a draw costs about half a microsecond.
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
"""Draws of news shown beside the clicked ones in a visit; repeats among them count once."""
EXPOSURE = 0.9
"""Exponent: a popular news is shown more, but not as much more as it is clicked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All news of a newsroom and the tables to draw them from. Slots count from LIFE before the users come."""

    born: Ints
    """Birth slot of each news, ascending."""
    subtopic: Ints
    """Subtopic of each news, ascending within a slot."""
    weight: Floats
    """Popularity of each news."""
    clicked: "CellDraw"
    """By subtopic."""
    shown: "CellDraw"
    """All subtopics together, as one kind."""

    def draw_clicked(self, appetite: Floats, slot: Ints, rng: np.random.Generator) -> Ints:
        """One news a row, clicked by a user with the appetite (rows, subtopics) of that row."""
        sums = (appetite * self.clicked.mass[slot]).cumsum(axis=1)
        target = rng.random(len(slot)) * sums[:, -1]
        return self.clicked.draw(slot, (sums <= target[:, None]).sum(axis=1), rng)

    def draw_shown(self, slot: Ints, rng: np.random.Generator) -> Ints:
        """One news a row, shown whoever is reading."""
        return self.shown.draw(slot, np.zeros_like(slot), rng)

    def score(self, news: Ints, slot: Ints) -> Floats:
        """The best score for a user nobody knows; a user's taste adds to it."""
        age, weight = slot - self.born[news], self.weight[news]
        draws = SHOWN * weight**EXPOSURE * FADE_SHOWN[age] / self.shown.mass[slot, 0]
        score: Floats = np.log(weight * FADE_CLICKED[age] / -np.expm1(-draws))
        return score


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDraw:
    """Draws living news of a kind: first their age, then one of the cell (slot, kind) that it names."""

    mass: Floats
    """(slots, kinds): what all living news of a kind weigh together."""
    age_sums: Floats
    """(slots, kinds, LIFE): running sums of the same over age."""
    first: Ints
    """(slots x kinds + 1): where each cell begins."""
    sums: Floats
    """(news + 1): running sums of all weights."""

    def draw(self, slot: Ints, kind: Ints, rng: np.random.Generator) -> Ints:
        """One news of each kind at each slot."""
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
    """News from LIFE slots before the users come until the end of the last day.

    `tastes` (users, subtopics) and `num_clicks` are a sample of users, to fit popularity to.
    """
    num_slots, num_subtopics = num_slots_of(days), tastes.shape[1]
    # Popular news are dealt out like cards, so that no slot gets many more of them than another.
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
    """Slots in which news are born: the period, and one life before it."""
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
