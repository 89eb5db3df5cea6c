"""Rungs between chance and the best possible AUC of a synthetic newsroom, from the true click model alone.

No text is read. Each rung ranks the dev impressions with what a recommender of a certain skill would know:

    popularity       weight and age of an article, nothing of the user
    sections         how often the user clicked the section of an article, as published: some are wrong or missing
    true labels      tastes estimated from the history, with the true subtopic, entity and angle of every article
    best possible    the true tastes, and popularity

The estimate is the mode of the posterior under the click model, found by Newton's method for all users at once.
"""

from dataclasses import dataclass, field

import numpy as np

from speedyfeed.synthetic.audience import Visits
from speedyfeed.synthetic.pages import Pages, auc_by_impression, score_pages
from speedyfeed.synthetic.popularity import Floats, Ints
from speedyfeed.synthetic.tastes import Tastes
from speedyfeed.synthetic.world import MISSING, World

CHANCE = 0.5
MOST_USERS = 8192
"""Number of users, the first of the log, on whose dev impressions the rungs are measured."""
SMOOTHING = 1.0
"""Clicks added to those counted in every section."""
NEWTON_STEPS, DAMPING = 12, 0.8
TINY = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One way to rank the dev impressions, and the AUC it reaches."""

    name: str
    auc: float


@dataclass(kw_only=True, slots=True)
class Ladder:
    """AUCs of all rungs, collected block by block."""

    world: World
    num_users: int = 0
    aucs: dict[str, list[Floats]] = field(default_factory=dict)
    """AUCs of the impressions of each block, by the name of the rung."""

    def add_users(self, visits: Visits, dev: Pages, history_end: int) -> None:
        """Rank the dev impressions of a block of users in every way; enough users seen, do nothing."""
        if self.num_users >= MOST_USERS:
            return
        self.num_users += len(visits.tastes)
        best, popularity = score_pages(self.world, dev, visits.tastes)
        labelled, _ = score_pages(self.world, dev, estimate_tastes(self.world, visits, history_end))
        scores = {
            "popularity": popularity,
            "sections": count_sections(self.world, dev),
            "true labels": labelled - popularity,
            "true labels and popularity": labelled,
            "best possible": best,
        }
        for name, score in scores.items():
            self.aucs.setdefault(name, []).append(auc_by_impression(dev, score))

    def rungs(self) -> tuple[Rung, ...]:
        """All rungs, from chance to the best possible."""
        found = [Rung(name=name, auc=float(np.concatenate(aucs).mean())) for name, aucs in self.aucs.items()]
        return (Rung(name="chance", auc=CHANCE), *found)


def count_sections(world: World, pages: Pages) -> Floats:
    """Score each candidate by the share of its section in the user's history, or by the mean share."""
    num_sections = int(world.section.max()) + 1
    counts = np.full((len(pages.user), num_sections), SMOOTHING)
    row = np.repeat(np.arange(len(pages.user)), pages.history.lengths)
    clicked = world.section[pages.history.values]
    np.add.at(counts, (row[clicked != MISSING], clicked[clicked != MISSING]), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    section = world.section[pages.candidates.values]
    score: Floats = np.where(section == MISSING, 1 / num_sections, shares[pages.row, section])
    return score


def estimate_tastes(world: World, visits: Visits, history_end: int) -> Tastes:
    """Estimate the tastes of all users from their clicks before second `history_end`, by the true labels."""
    is_before = visits.time[visits.clicked_visit] < history_end
    visit, news = visits.clicked_visit[is_before], visits.clicked[is_before]
    user, slot, num_users = visits.user[visit], visits.slot[visit], len(visits.tastes)
    lines, mass = world.storylines, world.clicked.mass

    clicks = _count(user, world.storyline[news], (num_users, mass.shape[1]))
    slots = _count(user, slot, (num_users, len(mass)))
    offered = slots @ (mass / mass.sum(axis=1, keepdims=True))  # what the user could have clicked
    angles = _count(user, world.angle[news], (num_users, lines.num_angles))
    return Tastes(
        storyline=_fit(clicks, offered, world.interests.storyline),
        angle=_fit(angles, np.ones_like(angles), world.interests.angle),
    )


def _fit(clicks: Floats, offered: Floats, loadings: Floats) -> Floats:
    """Posterior mode of tastes (users, kinds) = interests @ loadings.T, with normal interests.

    Of a user's clicks a kind is expected to get a share in proportion to offered x exp(taste).
    """
    num_interests = loadings.shape[1]
    num_clicks = clicks.sum(axis=1, keepdims=True)
    products = (loadings[:, :, None] * loadings[:, None]).reshape(len(loadings), -1)
    interests = np.zeros((len(clicks), num_interests))
    for _ in range(NEWTON_STEPS):
        taste = interests @ loadings.T
        share = (offered + TINY) * np.exp(taste - taste.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        mean = share @ loadings
        slope = clicks @ loadings - num_clicks * mean - interests
        spread = (share @ products).reshape(-1, num_interests, num_interests) - mean[:, :, None] * mean[:, None]
        curvature = num_clicks[:, :, None] * spread + np.eye(num_interests)
        interests += DAMPING * np.linalg.solve(curvature, slope[:, :, None])[:, :, 0]
    fitted: Floats = interests @ loadings.T
    return fitted


def _count(row: Ints, column: Ints, shape: tuple[int, int]) -> Floats:
    """Number of times each pair of row and column occurs."""
    return np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
