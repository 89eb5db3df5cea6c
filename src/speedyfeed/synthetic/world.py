"""Articles of a synthetic newsroom: when each is published, what it is about, who would click it, who is shown it.

Articles are numbered by (birth slot, storyline), so those of one slot, or of one storyline in it, are consecutive
and a draw among them is one search in cumulative sums:

    slot       0   0   0   1   1
    storyline  7   7   30  7   12
    news       0   1   2   3   4

A click is drawn from P(news | user, time), proportional to weight x exp(taste) x fade(age): an article is drawn
by the taste for its storyline and accepted by that for its angle. The other articles of a visit are drawn from
Q(news | time), proportional to weight^EXPOSURE x a slower fade, Poisson(SHOWN) times, so an article is among
them with probability 1 - exp(-SHOWN x Q), independently of the others. Given the candidates of a visit, the
probability that an article is the clicked one is then proportional to P / (1 - exp(-SHOWN x Q)): the best
possible score. Memory is a few numbers per article; a draw costs about half a microsecond.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from speedyfeed.synthetic.storylines import Storylines
from speedyfeed.synthetic.tastes import Interests, Tastes

SHOWN = 15.0
"""Mean number of draws of articles shown with the clicked ones in a visit; repeats count once."""
EXPOSURE = 0.9
"""Exponent of exposure: popular articles are shown more, but less than in proportion to their clicks."""
MISSING = -1
"""Section of an article that is published without one."""
SHARE_WRONG, SHARE_MISSING = 0.1, 0.15
"""Shares of the articles whose section is drawn at random, or missing."""
TOP_SHARE, LOUD_TOP, LOUD_OTHERS = 0.2, 0.6, 0.1
"""Share of the articles that are popular, and how many of these and of the others say so in their text."""
ROWS_PER_DRAW = 16_384
"""Number of clicks drawn at once, which bounds the memory of a draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All articles of a newsroom and the tables to draw them from; slots count from LIFE before the log begins."""

    born: Ints
    """Birth slot of each article, ascending."""
    storyline: Ints
    """Storyline of each article, ascending within a slot."""
    angle: Ints
    """Angle from which each article tells its story."""
    section: Ints
    """Section each article is published in: mostly that of its storyline, else a wrong one or MISSING."""
    is_loud: NDArray[np.bool_]
    """Whether the text of each article says that many want to read it."""
    weight: Floats
    """Popularity of each article."""
    clicked: "CellDraw"
    """Table of clicked articles, by storyline."""
    shown: "CellDraw"
    """Table of shown articles, all storylines together."""
    storylines: Storylines
    interests: Interests

    def draw_clicked(self, tastes: Tastes, user: Ints, slot: Ints, rng: np.random.Generator) -> Ints:
        """Draw one article for each pair of a user, a row of `tastes`, and a slot."""
        appetite = np.exp(tastes.storyline)
        chance = np.exp(tastes.angle - tastes.angle.max(axis=1, keepdims=True))
        news = np.empty_like(user)
        waiting = np.arange(len(user))
        while len(waiting):
            rows = waiting[:ROWS_PER_DRAW]
            sums = (appetite[user[rows]] * self.clicked.mass[slot[rows]]).cumsum(axis=1)
            target = rng.random(len(rows)) * sums[:, -1]
            news[rows] = self.clicked.draw(slot[rows], (sums <= target[:, None]).sum(axis=1), rng)
            is_rejected = rng.random(len(rows)) >= chance[user[rows], self.angle[news[rows]]]
            waiting = np.concatenate([rows[is_rejected], waiting[ROWS_PER_DRAW:]])
        return news

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
    *,
    num_news: int,
    days: int,
    storylines: Storylines,
    interests: Interests,
    tastes: Tastes,
    num_clicks: Ints,
    sharpness: float,
    rng: np.random.Generator,
) -> World:
    """Build the articles from LIFE slots before the log begins until the end of its last day.

    `tastes` and `num_clicks` are of a sample of users that popularity is fitted to.
    """
    num_slots, num_storylines = num_slots_of(days), len(storylines.subtopic)
    # Popular articles are distributed evenly, so that no slot gets many more of them than another.
    rounds = np.tile(np.arange(num_slots), (-(-num_news // num_slots), 1))
    born = rng.permuted(rounds, axis=1).ravel()[:num_news]
    storyline = storylines.draw(born, rng)
    order = np.lexsort((storyline, born))
    born, storyline = born[order], storyline[order]
    appetite = np.exp(tastes.storyline)
    angles = np.exp(tastes.angle)[:, np.arange(num_storylines) % storylines.num_angles]
    share = allow_for_repeats(long_tail(num_news, sharpness)[order], appetite * angles, num_clicks)
    weight = fit_weights(share, born, storyline, num_slots=num_slots, appetite=appetite)
    is_top = order < TOP_SHARE * num_news
    return World(
        born=born,
        storyline=storyline,
        angle=rng.integers(storylines.num_angles, size=num_news),
        section=_draw_sections(storylines.section[storyline], rng),
        is_loud=rng.random(num_news) < np.where(is_top, LOUD_TOP, LOUD_OTHERS),
        weight=weight,
        clicked=_cell_draw(born, storyline, weight, FADE_CLICKED, (num_slots, num_storylines)),
        shown=_cell_draw(born, np.zeros_like(born), weight**EXPOSURE, FADE_SHOWN, (num_slots, 1)),
        storylines=storylines,
        interests=interests,
    )


def _draw_sections(true: Ints, rng: np.random.Generator) -> Ints:
    """Draw the section each article is published in."""
    chance = rng.random(len(true))
    anywhere = rng.integers(true.max() + 1, size=len(true))
    section: Ints = np.where(chance < SHARE_WRONG, anywhere, true)
    section[chance > 1 - SHARE_MISSING] = MISSING
    return section


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
