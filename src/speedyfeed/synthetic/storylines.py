"""Storylines of a synthetic newsroom: which person, place, team or company is in the news for what, and when.

A storyline is a subtopic and an entity. An entity has storylines in several sections, so who follows it reads
across sections. A storyline is written about for some days, rests, and comes back; some entities appear only
after a part of the log, some leave before its end.

    storyline  0         1         2         3
    subtopic   football  football  markets   storms
    entity     Ashbury   Comets    Comets    Ashbury
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speedyfeed.synthetic.lexicon import Lexicon
from speedyfeed.synthetic.popularity import LIFE, SLOTS_PER_DAY, Floats, Ints

STORYLINES_PER_SUBTOPIC = 5
ACTIVE_DAYS, RESTING_DAYS = 6, 4
"""Days for which a storyline is written about, and days until it comes back."""
SHARE_ARRIVING, SHARE_LEAVING = 0.2, 0.2
"""Shares of the entities that appear, or leave, in the middle half of the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storylines:
    """All storylines, ordered by subtopic."""

    section: Ints
    """Section of each storyline."""
    subtopic: Ints
    """Subtopic of each storyline."""
    entity: Ints
    """Entity of each storyline."""
    num_angles: int
    """Number of angles from which a story can be told."""
    is_active: NDArray[np.bool_]
    """(slots, storylines) whether articles of a storyline are published in a slot."""

    def draw(self, slot: Ints, rng: np.random.Generator) -> Ints:
        """Draw one active storyline for each slot."""
        active_first = np.argsort(~self.is_active, axis=1, kind="stable")
        pick = (rng.random(len(slot)) * self.is_active.sum(axis=1)[slot]).astype(np.int64)
        drawn: Ints = active_first[slot, pick]
        return drawn


def build_storylines(lexicon: Lexicon, *, days: int, rng: np.random.Generator) -> Storylines:
    """Assign the entities to the subtopics, and draw the days of each storyline."""
    subtopic = np.repeat(np.arange(len(lexicon.topic)), STORYLINES_PER_SUBTOPIC)
    num_entities = len(lexicon.entities)
    # Neighbouring subtopics, which share a section, get different entities.
    rounds = -(-len(subtopic) // num_entities)
    entity = np.concatenate([rng.permutation(num_entities) for _ in range(rounds)])[: len(subtopic)]
    day = np.arange(LIFE + days * SLOTS_PER_DAY) / SLOTS_PER_DAY
    phase = rng.random(len(subtopic)) * (ACTIVE_DAYS + RESTING_DAYS)
    is_written = (day[:, None] + phase) % (ACTIVE_DAYS + RESTING_DAYS) < ACTIVE_DAYS
    first, last = _draw_lives(num_entities, days, rng)
    is_alive = (first[entity] <= day[:, None]) & (day[:, None] < last[entity])
    is_active = is_written & is_alive
    is_active |= ~is_active.any(axis=1, keepdims=True)  # no slot is without a storyline
    return Storylines(
        section=lexicon.topic[subtopic],
        subtopic=subtopic,
        entity=entity,
        num_angles=len(lexicon.angles),
        is_active=is_active,
    )


def _draw_lives(num_entities: int, days: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw first and last day of each entity, counted from the first article; most are there all the time."""
    chance = rng.random(num_entities)
    middle = LIFE / SLOTS_PER_DAY + days * (0.25 + 0.5 * rng.random(num_entities))
    first = np.where(chance < SHARE_ARRIVING, middle, -np.inf)
    last = np.where(chance > 1 - SHARE_LEAVING, middle, np.inf)
    return first, last
