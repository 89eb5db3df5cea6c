"""Tastes of the users of a synthetic newsroom: for sections, subtopics, entities and angles.

A user has a few interests, drawn from a normal distribution. Each interest speaks for or against many subtopics
or entities, whatever their sections: who likes tennis and baking may dislike markets and one mayor. So a short
history tells much, and what goes together is learned from clicks, not from the meaning of words. Only the
section is written on an article; all other parts show in its words alone.
"""

from dataclasses import dataclass

import numpy as np

from speedyfeed.synthetic.popularity import Floats, Ints
from speedyfeed.synthetic.storylines import Storylines

TASTE_VARIANCE = 3.5
"""Variance of a user's taste over articles: the log of how much more likely one is clicked than another."""
SHARES = {"section": 0.15, "subtopic": 0.35, "entity": 0.35, "angle": 0.15}
"""Share of each part in the variance of tastes."""
NUM_INTERESTS = {"section": 4, "subtopic": 6, "entity": 6, "angle": 3}
"""Number of independent interests behind each part of a taste."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interests:
    """How much each interest speaks for a storyline, and for an angle."""

    storyline: Floats
    """(storylines, interests) loadings of the interests in sections, subtopics and entities."""
    angle: Floats
    """(angles, interests) loadings of the interests in angles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tastes:
    """Tastes of some users; the taste for an article is that for its storyline plus that for its angle."""

    storyline: Floats
    """(users, storylines) sum of the tastes for section, subtopic and entity."""
    angle: Floats
    """(users, angles) taste for the way a story is told."""

    def __len__(self) -> int:
        return len(self.storyline)


def draw_interests(storylines: Storylines, rng: np.random.Generator) -> Interests:
    """Draw the loadings of all interests."""
    labels = {"section": storylines.section, "subtopic": storylines.subtopic, "entity": storylines.entity}
    parts = [_draw_loadings(part, label, rng) for part, label in labels.items()]
    angle = _draw_loadings("angle", np.arange(storylines.num_angles), rng)
    return Interests(storyline=np.hstack(parts), angle=angle)


def draw_tastes(num_users: int, interests: Interests, rng: np.random.Generator) -> Tastes:
    """Draw the tastes of some users."""
    for_storylines = rng.standard_normal((num_users, interests.storyline.shape[1]))
    for_angles = rng.standard_normal((num_users, interests.angle.shape[1]))
    return Tastes(storyline=for_storylines @ interests.storyline.T, angle=for_angles @ interests.angle.T)


def _draw_loadings(part: str, label: Ints, rng: np.random.Generator) -> Floats:
    """Draw one loading for each label and interest; every label has the same variance of tastes."""
    loadings = rng.standard_normal((label.max() + 1, NUM_INTERESTS[part]))
    loadings -= loadings.mean(axis=0)  # an interest in everything would be none
    loadings *= (TASTE_VARIANCE * SHARES[part]) ** 0.5 / np.linalg.norm(loadings, axis=1, keepdims=True)
    drawn: Floats = loadings[label]
    return drawn
