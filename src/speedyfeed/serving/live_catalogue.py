"""The articles of a feed in memory, with their embeddings; they can be searched while they are added and removed.

    row          0    1    2    3   ...      every column grows at its end; a row is never reused
    news         N1   N2   N1'  N3           N1 was replaced: row 0 is dead, row 2 holds the new version
    is_alive     no   yes  yes  yes

A small catalogue is searched exactly. A large one is searched with HNSW graphs, and exactly only if the request
needs what the graphs lack: a filter, popularity, or more hits than the graphs returned. Results agree, apart from
the few articles that approximate search misses.

Shapes: V rows, D embedding width.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.retrieval.hnsw import HnswConfig, HnswIndex
from speedyfeed.scoring import Users
from speedyfeed.serving.journal import News

Rows = NDArray[np.int64]
Embeddings = NDArray[np.float32]

SPARE_HITS = 16
"""Hits fetched from the graphs beyond k: graphs score in low precision, so the order of the last may be wrong."""
OVERSAMPLE, MIN_CLOSE = 5, 200
"""Rows that are scored for a user with several vectors: so many for each of the k best, and at least so many."""
INSERT_BATCH = 8
"""Articles inserted into the graphs at once; searches wait meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchFilter:
    """Which articles a search may return, and how popularity counts; by default all, and not at all."""

    categories: frozenset[str] = frozenset()
    """Categories to search in; empty means all."""
    published_since: float | None = None
    """Earliest publication time in seconds since 1970; articles of unknown age are left out."""
    excluded_rows: frozenset[int] = frozenset()
    """Rows of the catalogue that must not be returned."""
    popularity: float = 0.0
    """Weight of popularity in the score, from 0 to 1; the rest is the inner product with the user."""

    @property
    def needs_exact_search(self) -> bool:
        """Whether the graphs cannot apply this filter."""
        return bool(self.categories) or self.published_since is not None or self.popularity > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchHits:
    """Rows of the catalogue and their scores, best first."""

    rows: Rows
    scores: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphConfig:
    """When and how articles are searched with HNSW graphs."""

    graphs_from: int = 20_000
    """Number of articles from which graphs are built when the feed is opened; below it every search is exact."""
    graphs: HnswConfig = field(
        default_factory=lambda: HnswConfig(connectivity=16, expansion_search=96, dtype="bf16")
    )
    """Size and precision of the HNSW graphs."""


class LiveCatalogue:
    """Articles with their embeddings; any number of threads may read while one writes."""

    def __init__(
        self,
        news: Sequence[News],
        embeddings: Embeddings,
        num_clicks: Sequence[int] | None,
        index: HnswIndex | None,
    ) -> None:
        """`index` holds every article under the id row + 1; None makes all searches exact."""
        self._news = list(news)
        self._row = {one.news_id: row for row, one in enumerate(self._news)}
        self._embeddings = _with_spare_rows(embeddings, len(self._news))
        self._is_alive = np.ones(len(self._news), bool)
        self._published = np.array([_time(one) for one in self._news], np.float64)
        self._code: dict[str, int] = {}
        self._category = self._codes(self._news)
        self.knows_popularity = num_clicks is not None
        self._popularity = np.log1p(np.array(num_clicks or [0] * len(self._news), np.float64))
        self._index = index
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._row)

    def row(self, news_id: str) -> int | None:
        """Row of the article with this id, or None if there is none."""
        return self._row.get(news_id)

    def news(self, row: int) -> News:
        """Article of a row, also if it was removed or replaced since."""
        return self._news[row]

    def embeddings(self, rows: Sequence[int] | Rows) -> Embeddings:
        """Embeddings of these rows, (rows, D)."""
        return self._embeddings[np.asarray(rows, np.int64)]

    def alive(self) -> Rows:
        """Rows of all articles that are neither removed nor replaced."""
        return np.flatnonzero(self._is_alive)

    def categories(self) -> dict[str, int]:
        """Number of articles in each category, largest first."""
        counts = np.bincount(self._category[: len(self._is_alive)][self._is_alive], minlength=len(self._code))
        named = {name: int(counts[code]) for name, code in self._code.items() if name and counts[code]}
        return dict(sorted(named.items(), key=lambda pair: -pair[1]))

    def add(self, news: Sequence[News], embeddings: Embeddings) -> None:
        """Add articles, replacing those with the same id; searches find them once this returns."""
        assert len({one.news_id for one in news}) == len(news), "an id occurs twice in one call"
        for start in range(0, len(news), INSERT_BATCH):
            some = slice(start, start + INSERT_BATCH)
            self._add(news[some], embeddings[some])

    def remove(self, news_id: str) -> bool:
        """Remove an article; False if there is none with this id."""
        with self._lock:
            return self._remove(news_id)

    def search(self, users: Users, k: int, search_filter: SearchFilter | None = None) -> SearchHits:
        """The k rows with the highest scores for one user among those that pass the filter.

        For a user with several vectors, the rows closest to their mean are scored, `OVERSAMPLE` times as many.
        """
        search_filter = search_filter or SearchFilter()
        if self._index is not None and not search_filter.needs_exact_search:
            hits = self._search_graphs(self._index, users, k, search_filter)
            if len(hits.rows) == min(k, len(self) - len(search_filter.excluded_rows)):
                return hits
        return self._search_all(users, k, search_filter)

    def score(self, users: Users, rows: Sequence[int], search_filter: SearchFilter) -> SearchHits:
        """Score these rows for one user, best first; rows that do not pass the filter are left out."""
        return self._search_all(users, len(rows), search_filter, among=np.unique(np.array(rows, np.int64)))

    def similar(self, row: int, k: int) -> SearchHits:
        """The k other rows with the highest cosine similarity to this one."""
        norms_V = np.linalg.norm(self._embeddings[: len(self._is_alive)], axis=1)
        scores_V = self._embeddings[: len(norms_V)] @ self._embeddings[row]
        scores_V /= np.maximum(norms_V * norms_V[row], 1e-12)
        allowed = self._allowed(SearchFilter(excluded_rows=frozenset([row])), len(norms_V))
        return _top_k(np.flatnonzero(allowed), scores_V[allowed], k)

    def _add(self, news: Sequence[News], embeddings: Embeddings) -> None:
        rows = np.arange(len(self._news), len(self._news) + len(news))
        if rows[-1] >= len(self._embeddings):  # slow if there are many; searches go on in the old array
            self._embeddings = _with_spare_rows(self._embeddings, len(self._news))
        self._embeddings[rows] = embeddings
        with self._lock:
            for one in news:
                self._remove(one.news_id)
            self._published = np.concatenate([self._published, [_time(one) for one in news]])
            self._category = np.concatenate([self._category, self._codes(news)])
            self._popularity = np.concatenate([self._popularity, np.zeros(len(news))])
            self._news.extend(news)
            if self._index is not None:
                self._index.add(rows + 1, embeddings)
            # Last, because searches take the number of rows from it.
            self._is_alive = np.concatenate([self._is_alive, np.ones(len(news), bool)])
            self._row |= {one.news_id: row for row, one in zip(rows.tolist(), news, strict=True)}

    def _codes(self, news: Sequence[News]) -> NDArray[np.int64]:
        """Category of each article as a number, counted in order of first appearance."""
        return np.array([self._code.setdefault(one.category, len(self._code)) for one in news], np.int64)

    def _remove(self, news_id: str) -> bool:
        row = self._row.pop(news_id, None)
        if row is None:
            return False
        self._is_alive[row] = False
        if self._index is not None:
            self._index.remove(np.array([row + 1]))
        return True

    def _search_graphs(self, index: HnswIndex, users: Users, k: int, search_filter: SearchFilter) -> SearchHits:
        with self._lock:
            num_hits = _num_close(users, k) + len(search_filter.excluded_rows) + SPARE_HITS
            rows = index.search(_mean(users)[None], num_hits).ids[0] - 1
        is_hit = np.array([row >= 0 and row not in search_filter.excluded_rows for row in rows.tolist()], bool)
        return _top_k(rows[is_hit], self._scores(users, rows[is_hit]), k)

    def _search_all(
        self, users: Users, k: int, search_filter: SearchFilter, among: Rows | None = None
    ) -> SearchHits:
        allowed = self._allowed(search_filter, len(self._is_alive))
        if among is None:
            rows = np.flatnonzero(allowed)
            scores = (self._embeddings[: len(allowed)] @ _mean(users))[rows]
            if users.weights_BPK is not None:
                rows = _top_k(
                    rows, scores, len(rows) if search_filter.popularity > 0 else _num_close(users, k)
                ).rows
                scores = self._scores(users, rows)
        else:
            rows = among[allowed[among]]
            scores = self._scores(users, rows)
        if search_filter.popularity > 0 and self.knows_popularity:
            popularity = _standardize(self._popularity[rows])
            scores = (1 - search_filter.popularity) * _standardize(scores) + search_filter.popularity * popularity
        return _top_k(rows, scores, k)

    def _scores(self, users: Users, rows: Rows) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = users.score_all(torch.from_numpy(self._embeddings[rows]))[0, 0].numpy()
        return scores

    def _allowed(self, search_filter: SearchFilter, num_rows: int) -> NDArray[np.bool_]:
        allowed = self._is_alive[:num_rows].copy()
        if search_filter.categories:
            codes = [self._code[name] for name in search_filter.categories if name in self._code]
            allowed &= np.isin(self._category[:num_rows], codes)
        if search_filter.published_since is not None:
            # An unknown time is NaN, which never passes.
            allowed &= self._published[:num_rows] >= search_filter.published_since
        allowed[list(search_filter.excluded_rows)] = False
        return allowed


def build_index(embeddings: Embeddings, config: GraphConfig) -> HnswIndex | None:
    """Build HNSW graphs over all rows, or return None if exact search is fast enough."""
    if len(embeddings) < config.graphs_from:
        return None
    return HnswIndex.build(np.arange(1, len(embeddings) + 1), embeddings, config.graphs)


def _mean(users: Users) -> NDArray[np.float32]:
    """Mean of the vectors of one user."""
    mean_D: NDArray[np.float32] = users.means_BPD[0, 0].numpy()
    return mean_D


def _num_close(users: Users, k: int) -> int:
    """Number of rows closest to the mean of a user's vectors that may be among the k best."""
    return k if users.weights_BPK is None else max(MIN_CLOSE, OVERSAMPLE * k)


def _top_k(rows: Rows, scores: NDArray[np.floating], k: int) -> SearchHits:
    """The k rows with the highest scores, best first."""
    k = min(k, len(rows))
    top = np.argpartition(-scores, k - 1)[:k] if k else np.zeros(0, np.int64)
    top = top[np.argsort(-scores[top], kind="stable")]
    return SearchHits(rows=rows[top], scores=scores[top].astype(np.float32))


def _standardize(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Shift and scale to mean 0 and standard deviation 1, so that scores and popularity can be added."""
    return (values - values.mean()) / max(float(values.std()), 1e-12) if len(values) else values


def _with_spare_rows(rows: Embeddings, num_rows: int) -> Embeddings:
    """Copy the first `num_rows` rows into an array with room for a quarter more, at least 1024."""
    larger = np.zeros((num_rows + max(1024, num_rows // 4), rows.shape[1]), np.float32)
    larger[:num_rows] = rows[:num_rows]
    return larger


def _time(news: News) -> float:
    """Publication time in seconds since 1970; NaN if unknown."""
    return np.nan if news.published is None else news.published
