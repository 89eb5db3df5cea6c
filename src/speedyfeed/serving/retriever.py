"""The candidates of a list: close to the user or an interest, popular, new or boosted; found, and scored once.

    user, interests --all of a small catalogue, or searches--> close --score--> best, popular, new, boosted

A user with one vector is searched for by it. A soft maximum has no single vector to search by: the mean of many
clicks is close to few of them. A small catalogue is scored whole; in a large one, articles are searched for near
the centres of several groups of clicks, more of them than there are interests.

Shapes: Q queries (the user, then each interest), K vectors of the user, C groups of them, N candidates, V rows,
D embedding width.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.retrieval.interests import group_clicks
from speedyfeed.retrieval.rerank import RerankConfig, UserClicks, popularity_weight, retrieval_size, shortlist
from speedyfeed.scoring import Users
from speedyfeed.serving.live_catalogue import Embeddings, LiveCatalogue, Rows, SearchFilter
from speedyfeed.serving.rules import Rules

SCORE_ALL = 10_000
"""Number of articles up to which all are scored for users with several vectors."""
CENTRES = 8
"""Number of groups of clicks, at most, near which articles are searched for in larger catalogues."""

MIN_CLOSE = 40
"""Number of articles fetched for each of these groups, at least; graphs look at more than that anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retriever:
    """Search in a live catalogue for what a list is chosen from."""

    catalogue: LiveCatalogue
    added: NDArray[np.float32]
    """Number that is added to every score of the rows a model was saved with."""
    adds_biases: bool
    """Whether these numbers are learned popularity, so that popular rows are candidates for every user."""

    def retrieve(
        self,
        users: Users,
        k: int,
        config: RerankConfig,
        reads: UserClicks,
        search_filter: SearchFilter,
        rules: Rules,
    ) -> tuple[Rows, Embeddings]:
        """Rows that a list of k is chosen from, and their scores for the user and each interest, scores_NQ."""
        size = retrieval_size(k, config)
        wanted = self._boosted(users, k, search_filter, rules)
        if self.adds_biases or popularity_weight(config, reads.num_clicks) > 0:
            nobody = np.zeros((0, users.vectors_BKD.size(2)), np.float32)
            wanted.append(self.catalogue.retrieve(nobody, size, search_filter, popular=True))
        if config.freshness:
            wanted.append(self.catalogue.latest(size, search_filter))
        rows, scores_NQ = self._close(users, size, search_filter, wanted)
        is_kept = np.isin(rows, np.concatenate([rows[:0], *wanted]))
        is_kept[shortlist(scores_NQ, self.catalogue.sections(rows), k, config, reads)] = True
        return rows[is_kept], scores_NQ[is_kept]

    def score(self, users: Users, rows: Rows) -> Embeddings:
        """Scores of these rows for the user and each interest, scores_NQ."""
        return self._score(users, self.catalogue.embeddings(rows)) + self._biases(rows)

    def _close(
        self, users: Users, size: int, search_filter: SearchFilter, wanted: list[Rows]
    ) -> tuple[Rows, Embeddings]:
        """Rows with the highest scores, and the wanted ones, with their scores; in the order of rows."""
        if users.weights_BPK is None:
            queries_QD, num_close = users.means_BPD[0].numpy(), size
        elif len(self.catalogue) <= SCORE_ALL:
            rows = self.catalogue.allowed(search_filter)
            return rows, self._score(users, self.catalogue.all_embeddings())[rows] + self._biases(rows)
        else:
            queries_QD, num_close = _centres(users), max(size, MIN_CLOSE)
        found = self.catalogue.retrieve(queries_QD, num_close, search_filter)
        rows = np.unique(np.concatenate([found, *wanted]))
        return rows, self.score(users, rows)

    def _score(self, users: Users, news_ND: Embeddings) -> Embeddings:
        scores_NQ: Embeddings = users.score_all(torch.from_numpy(news_ND))[0].numpy().T
        return scores_NQ

    def _biases(self, rows: Rows) -> NDArray[np.float32]:
        """Number that is added to every score of these rows, (N, 1); 0 for articles that were added since."""
        biases_N = np.where(rows < len(self.added), self.added[np.minimum(rows, len(self.added) - 1)], 0)
        return np.asarray(biases_N[:, None])

    def _boosted(self, users: Users, k: int, search_filter: SearchFilter, rules: Rules) -> list[Rows]:
        """Boosted articles, and the best k of each boosted category."""
        found = []
        for rule in rules.boosts:
            if rule.news_id is not None:
                row = self.catalogue.row(rule.news_id)
                found.append(self.catalogue.passing([] if row is None else [row], search_filter))
            elif rule.category and (not search_filter.categories or rule.category in search_filter.categories):
                only = replace(search_filter, categories=frozenset([rule.category]))
                found.append(self.catalogue.retrieve(users.means_BPD[0, :1].numpy(), k, only))
        return found


def _centres(users: Users) -> Embeddings:
    """Weighted means of groups of like vectors of the user: what articles with high scores are close to."""
    assert users.weights_BPK is not None
    weights_K = users.weights_BPK[0, 0].numpy()
    vectors_KD, weights_K = users.vectors_BKD[0].numpy()[weights_K > 0], weights_K[weights_K > 0]
    groups = group_clicks(vectors_KD, CENTRES)
    weights_CK = np.zeros((len(groups), len(vectors_KD)), np.float32)
    for number, group in enumerate(groups):
        weights_CK[number, group] = weights_K[group] / weights_K[group].sum()
    return np.asarray(weights_CK @ vectors_KD)
