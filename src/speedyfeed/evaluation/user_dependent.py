"""Scores and recall of user-dependent models, whose embeddings of articles differ for every user; no index.

For each user, all articles are encoded, the candidates scored, and the clicked articles ranked among all
candidates of the pool by exact search. The cost is one pass over all articles per user.

Shapes: V all articles, P articles of a pool, C candidates, D embedding width.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import PAD_NEWS, Impressions
from speedyfeed.evaluation.metrics import IN_HISTORY
from speedyfeed.evaluation.ranking import RETRIEVED, Retrieved, tie_order
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.index import Embeddings

EncodeForUser = Callable[[int, NDArray[np.integer]], tuple[Embeddings, Embeddings]]
"""A function from a user (row of `Impressions.histories`) and their history to news_VD and user_D."""


def score_and_retrieve_user_dependent(
    impressions: Impressions,
    encode_for_user: EncodeForUser,
    pools: NDArray[np.integer],
    *,
    searches_all: bool = False,
    report: progress.Report = progress.silent,
) -> tuple[Ragged, Retrieved]:
    """Score every candidate and rank the clicked articles in their pool, as `score_and_retrieve` does."""
    candidates = impressions.candidates
    scores = np.full(len(candidates.values), -np.inf, np.float32)
    found = np.zeros(len(candidates.values), np.int32)
    pool_news = {int(pool): _news(candidates, np.flatnonzero(pools == pool)) for pool in np.unique(pools)}
    users = np.unique(impressions.users)
    num_news, place_V = 0, np.zeros(0, np.int64)
    for done, user in enumerate(users.tolist()):
        report("rank", done, len(users))
        news_VD, user_D = encode_for_user(user, impressions.histories[user])
        scores_V = news_VD @ user_D
        num_news = len(news_VD) - 1
        if not len(place_V):
            place_V = np.append(0, 1 + np.argsort(tie_order(np.arange(num_news))))
        own = impressions.histories[user]
        for row in np.flatnonzero(impressions.users == user).tolist():
            positions = slice(*candidates.offsets[row : row + 2])
            shown = candidates.values[positions]
            pool = np.arange(1, len(news_VD)) if searches_all else pool_news[int(pools[row])]
            scores[positions] = np.where(shown == PAD_NEWS, -np.inf, scores_V[shown])
            is_clicked = (impressions.labels[positions] == 1) & (shown != PAD_NEWS)
            others = pool[~np.isin(pool, own)]
            rank = 1 + _are_before(scores_V[others], place_V[others], scores_V[shown], place_V[shown]).sum(axis=1)
            found[positions] = np.where(is_clicked & (rank <= RETRIEVED), rank, 0)
            found[positions][is_clicked & np.isin(shown, own)] = IN_HISTORY
    report("rank", len(users), len(users))
    sizes = [num_news if searches_all else len(news) for news in pool_news.values()]
    retrieved = Retrieved(
        found=found,
        index_recall=1.0,
        num_pools=len(pool_news),
        news_per_pool=float(np.mean(sizes)) if sizes else 0.0,
        index_parameters={"kind": "exact"},
        searches_all=searches_all,
    )
    return Ragged(values=scores, offsets=candidates.offsets), retrieved


def _are_before(
    scores_P: NDArray[np.float32], places_P: NDArray[np.int64], scores_C: Embeddings, places_C: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each of P articles is retrieved before each of C, C x P: by score, then by its place among ties."""
    is_tied = scores_P == scores_C[:, None]
    return np.asarray((scores_P > scores_C[:, None]) | (is_tied & (places_P < places_C[:, None])))


def _news(candidates: Ragged, rows: NDArray[np.int64]) -> NDArray[np.integer]:
    news = np.unique(candidates.take(rows).values)
    return np.asarray(news[news != PAD_NEWS])
