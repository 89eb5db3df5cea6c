"""From embeddings to a score for every candidate, and to the articles retrieved for each user out of all.

Knows no model: news embeddings come as one array, users from a function of histories. Impressions are visited user
by user, so each user is encoded once per pool, whatever the order of the log:

    users [4, 0, 4]  ->  encoded users [0, 4]  ->  scores of impressions 1, 0, 2, returned in log order

Memory holds a few numbers per candidate and one chunk of users.

Shapes: B users, P prefixes of their histories, K vectors of a user or articles found, V all articles, D embedding
width.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import PAD_NEWS, Impressions
from speedyfeed.errors import InputError
from speedyfeed.evaluation.metrics import IN_HISTORY
from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.retrieval.index import BuildIndex, Embeddings, ExactIndex, Index, Neighbours, overlap
from speedyfeed.scoring import OVERSAMPLE, Users

EncodeUsers = Callable[[Ragged, NDArray[np.int64]], Users]
"""A function from histories (oldest click first, may be empty) and their users to `Users` of one prefix each.

Users are rows of `Impressions.histories`.
"""

RETRIEVED = 200
"""Number of articles retrieved for each user."""

_USERS = 1024  # users encoded and searched for at a time
_CANDIDATES = 1 << 16  # candidates scored at a time
_CHECKED_USERS = 500  # users per pool for whom the index is compared with exact search


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieved:
    """Ranks of the clicked articles among all articles of a pool, and the recall of the index."""

    found: NDArray[np.int32]
    """Rank of each clicked candidate among the first `RETRIEVED` for its user, articles of the user's history left
    out; 0 if not retrieved or clicked, `IN_HISTORY` for a click on an article of the history."""
    index_recall: float
    """Fraction of the `RETRIEVED` of exact search that the index finds."""
    num_pools: int
    """Number of pools that were searched."""
    news_per_pool: float
    """Mean number of articles in a pool."""
    index_parameters: Mapping[str, Any]
    """Kind and settings of the index of the largest pool."""
    searches_all: bool = False
    """Whether every pool was all articles of the catalogue, not only candidates."""


def score_candidates(
    impressions: Impressions,
    news_VD: Embeddings,
    encode_users: EncodeUsers,
    *,
    report: progress.Report = progress.silent,
) -> Ragged:
    """Score every candidate for its user; -inf for a candidate without text."""
    scorer = _Scorer(impressions, news_VD)
    for chunk in _visit(impressions, np.arange(len(impressions.users)), encode_users, report):
        scorer.score(chunk)
    return scorer.result()


def add_biases(
    news_VD: Embeddings, encode_users: EncodeUsers, biases_V: NDArray[np.floating]
) -> tuple[Embeddings, EncodeUsers]:
    """Embeddings and users in one more dimension, which adds the bias of each article to its score."""

    def encode(histories: Ragged, users: NDArray[np.int64]) -> Users:
        return encode_users(histories, users).with_constant()

    return np.concatenate([news_VD, biases_V.astype(np.float32)[:, None]], 1), encode


def tie_order(news: NDArray[np.integer]) -> NDArray[np.integer]:
    """Articles in the order in which those of one score are retrieved: any, but the same at every call.

    In the order of their numbers, articles that came first in the log would be retrieved first.
    """
    return np.random.default_rng(0).permutation(news)


def score_and_retrieve(
    impressions: Impressions,
    news_VD: Embeddings,
    encode_users: EncodeUsers,
    build_index: BuildIndex,
    pools: NDArray[np.integer],
    *,
    searches_all: bool = False,
    report: progress.Report = progress.silent,
) -> tuple[Ragged, Retrieved]:
    """Score every candidate, and search the clicked articles among all candidates of the impression's pool.

    Articles of a user's history are not retrieved, and clicks on them are not searched. `pools` is the pool of
    each impression: all 0 for one pool of the whole split, or the day. With `searches_all`, every pool is all rows
    of `news_VD` but row 0.
    """
    scorer = _Scorer(impressions, news_VD)
    found = np.zeros(len(impressions.labels), np.int32)
    sizes: list[int] = []
    parameters: Mapping[str, Any] = {}
    checks: list[tuple[float, int]] = []
    for rows in _rows_by_pool(pools):
        shown = np.unique(impressions.candidates.take(rows).values)
        news = tie_order(np.arange(1, len(news_VD)) if searches_all else shown[shown != PAD_NEWS])
        index, exact = build_index(news, news_VD[news]), ExactIndex.build(news, news_VD[news])
        if len(news) >= max(sizes, default=0):
            parameters = index.parameters
        sizes.append(len(news))
        for number, chunk in enumerate(_visit(impressions, rows, encode_users, report)):
            scorer.score(chunk)
            neighbours = _search(index, chunk.users, news_VD, RETRIEVED + _most_clicked(chunk.histories, news))
            _find_clicks(impressions, chunk, neighbours, found)
            if number == 0:
                some = Neighbours(
                    ids=neighbours.ids[:_CHECKED_USERS, :RETRIEVED],
                    scores=neighbours.scores[:_CHECKED_USERS, :RETRIEVED],
                )
                truth = exact.search_users(chunk.users.take(slice(_CHECKED_USERS)), RETRIEVED)
                checks.append((overlap(some, truth), len(some.ids)))
    recalls, weights = np.array(checks).reshape(-1, 2).T
    retrieved = Retrieved(
        found=found,
        index_recall=float(np.average(recalls, weights=weights)) if checks else np.nan,
        num_pools=len(sizes),
        news_per_pool=float(np.mean(sizes)) if sizes else 0.0,
        index_parameters=parameters,
        searches_all=searches_all,
    )
    return scorer.result(), retrieved


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Some users and the candidates of all their impressions."""

    users: Users
    histories: Ragged
    """All clicks of each user."""
    positions: NDArray[np.int64]
    """Positions of the candidates in the flat arrays of the split."""
    user_of: NDArray[np.int64]
    """Row in `users` of each candidate's user, in rising order."""


class _Scorer:
    def __init__(self, impressions: Impressions, news_VD: Embeddings) -> None:
        self._candidates = impressions.candidates
        self._news_VD = news_VD
        self._scores = np.full(len(impressions.candidates.values), -np.inf, np.float32)

    def score(self, chunk: _Chunk) -> None:
        if chunk.users.weights_BPK is not None:
            return self._score_softly(chunk)
        users_BD = chunk.users.vectors_BKD[:, 0].numpy()
        for start in range(0, len(chunk.positions), _CANDIDATES):
            positions = chunk.positions[start : start + _CANDIDATES]
            news = self._candidates.values[positions]
            users = users_BD[chunk.user_of[start : start + _CANDIDATES]]
            scores = np.einsum("cd,cd->c", users, self._news_VD[news])
            self._scores[positions] = np.where(news == PAD_NEWS, -np.inf, scores)

    def _score_softly(self, chunk: _Chunk) -> None:
        """Score the candidates of one user after another: one product with all vectors of the user."""
        ends = np.searchsorted(chunk.user_of, np.arange(1, len(chunk.users) + 1))
        for user, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            positions = chunk.positions[start:end]
            news = self._candidates.values[positions]
            scores = chunk.users.take(slice(user, user + 1)).score_all(torch.from_numpy(self._news_VD[news]))
            self._scores[positions] = np.where(news == PAD_NEWS, -np.inf, scores[0, 0].numpy())

    def result(self) -> Ragged:
        if np.isnan(self._scores).any():
            raise InputError("scores are NaN: the model has diverged; train with a lower learning rate")
        return Ragged(values=self._scores, offsets=self._candidates.offsets)


def _visit(
    impressions: Impressions,
    rows: NDArray[np.int64],
    encode_users: EncodeUsers,
    report: progress.Report,
) -> Iterator[_Chunk]:
    """Visit impressions, a chunk of users at a time."""
    users, row_of = np.unique(impressions.users[rows], return_inverse=True)
    rows, row_of = rows[order := np.argsort(row_of, kind="stable")], row_of[order]
    for start in range(0, len(users), _USERS):
        report("rank", start, len(users))
        first, end = np.searchsorted(row_of, [start, start + _USERS])
        histories = impressions.histories.take(users[start : start + _USERS])
        starts = impressions.candidates.offsets[rows[first:end]]
        lengths = impressions.candidates.offsets[rows[first:end] + 1] - starts
        yield _Chunk(
            users=encode_users(histories, users[start : start + _USERS]),
            histories=histories,
            positions=_ranges(starts, lengths),
            user_of=np.repeat(row_of[first:end] - start, lengths),
        )
    report("rank", len(users), len(users))


def _search(index: Index, users: Users, news_VD: Embeddings, k: int) -> Neighbours:
    """Find the k best articles of each user; ids are rows of `news_VD`.

    An index that knows inner products only finds more by the mean of a user's vectors, which are scored then.
    """
    if isinstance(index, ExactIndex):
        return index.search_users(users, k)
    means_BD = users.means_BPD[:, 0].numpy()
    if users.weights_BPK is None:
        return index.search(means_BD, k)
    found = index.search(means_BD, OVERSAMPLE * k)
    k = min(k, found.ids.shape[1])
    ids, scores = np.zeros((len(users), k), np.int64), np.zeros((len(users), k), np.float32)
    for user, found_K in enumerate(found.ids):
        scores_K = users.take(slice(user, user + 1)).score_all(torch.from_numpy(news_VD[found_K]))[0, 0]
        best = scores_K.masked_fill(torch.from_numpy(found_K == PAD_NEWS), -torch.inf).topk(k)
        ids[user], scores[user] = found_K[best.indices.numpy()], best.values.numpy()
    return Neighbours(ids=ids, scores=scores)


def _find_clicks(
    impressions: Impressions, chunk: _Chunk, neighbours: Neighbours, found: NDArray[np.int32]
) -> None:
    """Write the rank of each clicked candidate among its user's neighbours, less those of the history."""
    rows_BK = np.arange(len(neighbours.ids))[:, None]
    ranks_BK = np.cumsum(~is_in_history(chunk.histories, rows_BK, neighbours.ids), axis=1)
    clicked = np.flatnonzero(impressions.labels[chunk.positions] == 1)
    for start in range(0, len(clicked), _CANDIDATES):
        some = clicked[start : start + _CANDIDATES]
        positions = chunk.positions[some]
        news = impressions.candidates.values[positions]
        users = chunk.user_of[some]
        is_here = neighbours.ids[users] == np.where(news == PAD_NEWS, -1, news)[:, None]
        rank = np.zeros(len(some), np.int64)
        if is_here.shape[1]:
            rank = ranks_BK[users, is_here.argmax(axis=1)]
        found[positions] = np.where(is_here.any(axis=1) & (rank <= RETRIEVED), rank, 0)
        found[positions[is_in_history(chunk.histories, users, news)]] = IN_HISTORY


def _most_clicked(histories: Ragged, news: NDArray[np.integer]) -> int:
    """Largest number of clicks of a history on these articles, repeated clicks included."""
    rows = np.repeat(np.arange(len(histories)), histories.lengths)
    return int(np.bincount(rows[np.isin(histories.values, news)]).max(initial=0))


def is_in_history(histories: Ragged, rows: NDArray[np.int64], news: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether each article is in the history of its row; articles without text are in none."""
    size = 1 + max(int(histories.values.max(initial=0)), int(news.max(initial=0)))
    own = np.repeat(np.arange(len(histories)), histories.lengths) * size + histories.values
    return np.asarray(np.isin(rows * size + news, own) & (news != PAD_NEWS))


def _rows_by_pool(pools: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    order = np.argsort(pools, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(pools[order])) + 1)
    return [rows for rows in parts if len(rows)]


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[5, 0], [2, 3] -> [5, 6, 0, 1, 2]"""
    offsets = offsets_of(lengths)
    return np.asarray(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths))
