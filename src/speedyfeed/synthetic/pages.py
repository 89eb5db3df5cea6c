"""Impressions of one split of a synthetic newsroom, as flat arrays of article numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.synthetic.audience import Visits
from speedyfeed.synthetic.popularity import Floats, Ints
from speedyfeed.synthetic.tastes import Tastes
from speedyfeed.synthetic.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Impressions of a block of users, ordered by user and time."""

    user: Ints
    """Position of the user in the block."""
    time: Ints
    """Seconds since the newsroom opened."""
    slot: Ints
    """Time slot of the impression."""
    history: Ragged
    """Articles the user clicked before the split, by impression, oldest first."""
    candidates: Ragged
    """Articles shown, by impression, in the order shown."""
    is_clicked: NDArray[np.bool_]
    """Whether each candidate was clicked."""

    @property
    def row(self) -> Ints:
        """Index of each candidate's impression."""
        return np.repeat(np.arange(len(self.user)), self.candidates.lengths)

    def pick(self, wanted: NDArray[np.bool_]) -> Ragged:
        """Select the wanted candidates of every impression."""
        lengths = np.bincount(self.row[wanted], minlength=len(self.user))
        return Ragged(values=self.candidates.values[wanted], offsets=offsets_of(lengths))


def build_pages(visits: Visits, *, start: int, end: int, history_end: int, rng: np.random.Generator) -> Pages:
    """Impressions of the visits with a click from second `start` to `end`; histories end at `history_end`."""
    num_clicks = np.bincount(visits.clicked_visit, minlength=len(visits.user))
    chosen = (start <= visits.time) & (visits.time < end) & (num_clicks > 0)
    news = np.concatenate([visits.clicked, visits.skipped])
    visit = np.concatenate([visits.clicked_visit, visits.skipped_visit])
    is_clicked = np.arange(len(news)) < len(visits.clicked)
    order = np.flatnonzero(chosen[visit])
    order = order[np.argsort(visit[order] + rng.random(len(order)))]  # shuffled within each visit
    shown = np.bincount(visit[order], minlength=len(chosen))[chosen]

    is_before = visits.time[visits.clicked_visit] < history_end
    num_before = np.bincount(visits.user[visits.clicked_visit[is_before]], minlength=len(visits.tastes))
    history = Ragged(values=visits.clicked[is_before], offsets=offsets_of(num_before))
    return Pages(
        user=visits.user[chosen],
        time=visits.time[chosen],
        slot=visits.slot[chosen],
        history=history.take(visits.user[chosen]),
        candidates=Ragged(values=news[order], offsets=offsets_of(shown)),
        is_clicked=is_clicked[order],
    )


def score_pages(world: World, pages: Pages, tastes: Tastes) -> tuple[Floats, Floats]:
    """Best possible score of each candidate given `tastes`, and the best one for an unknown user."""
    news, row = pages.candidates.values, pages.row
    anyone = world.score(news, pages.slot[row])
    user = pages.user[row]
    taste = tastes.storyline[user, world.storyline[news]] + tastes.angle[user, world.angle[news]]
    return anyone + taste, anyone


def auc_by_impression(pages: Pages, score: Floats) -> Floats:
    """AUC of every impression with both clicked and skipped articles; a tie counts half."""
    row = pages.row
    order = np.lexsort((score, row))
    row, score, is_clicked = row[order], score[order], pages.is_clicked[order]
    # Tied scores of one impression share the mean of their ranks.
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (row[1:] != row[:-1]) | (score[1:] != score[:-1])
    first = np.flatnonzero(is_new)
    size = np.diff(np.append(first, len(row)))
    rank = np.repeat(first + (size + 1) / 2, size) - pages.candidates.offsets[row]
    clicked = np.bincount(row, weights=is_clicked, minlength=len(pages.user))
    skipped = pages.candidates.lengths - clicked
    rank_sum = np.bincount(row, weights=rank * is_clicked, minlength=len(pages.user))
    both = (clicked > 0) & (skipped > 0)
    return ((rank_sum - clicked * (clicked + 1) / 2)[both] / (clicked * skipped)[both]).astype(np.float64)
