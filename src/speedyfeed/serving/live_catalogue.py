"""The news of a feed in memory: what they are, their embeddings, and the search among them.

    row          0    1    2    3   ...      every column grows at its end; a row is never used again
    news         N1   N2   N1'  N3           N1 was changed: row 0 is dead, row 2 is its successor
    is_alive     no   yes  yes  yes

Few news are searched exactly. Many are searched along graphs, and exactly only where a request wants what no graph
knows: a filter, popularity, or more than a graph found. Both answer alike, but for the odd news a graph misses.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speedyfeed.retrieval.hnsw import HnswConfig, HnswIndex
from speedyfeed.serving.journal import News

Rows = NDArray[np.int64]
Embeddings = NDArray[np.float32]

SPARE = 16  # more than are asked for: graphs round scores, so the last of them may be in the wrong order
ADDED_TOGETHER = 8  # into the graphs, which nobody can search meanwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchFilter:
    """Which news may be found. The defaults allow all."""

    categories: frozenset[str] = frozenset()
    """Only these; empty is any."""
    published_since: float | None = None
    """Only news known to be published since then, in seconds since 1970."""
    without: frozenset[int] = frozenset()
    """Not these rows."""
    popularity: float = 0.0
    """Share of popularity in the score, the rest is taste; 0 to 1."""

    @property
    def needs_all(self) -> bool:
        """Whether a graph cannot answer."""
        return bool(self.categories) or self.published_since is not None or self.popularity > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchHits:
    """Rows and their scores, best first."""

    rows: Rows
    scores: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphConfig:
    """When and how news are searched along graphs."""

    graphs_from: int = 20_000
    """With less news than this when the feed is opened, every search is exact."""
    graphs: HnswConfig = field(
        default_factory=lambda: HnswConfig(connectivity=16, expansion_search=96, dtype="bf16")
    )


class LiveCatalogue:
    """News with their embeddings; any thread may read, one at a time may write."""

    def __init__(
        self,
        news: Sequence[News],
        embeddings: Embeddings,
        num_clicks: Sequence[int] | None,
        index: HnswIndex | None,
    ) -> None:
        """`index` holds row + 1 of every news, or is None where all searches are exact."""
        self._news = list(news)
        self._row = {one.news_id: row for row, one in enumerate(self._news)}
        self._embeddings = _with_room(embeddings, len(self._news))
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
        """Where a news stands; None where there is none of that id."""
        return self._row.get(news_id)

    def news(self, row: int) -> News:
        """The news of a row, be it dead by now."""
        return self._news[row]

    def embeddings(self, rows: Sequence[int] | Rows) -> Embeddings:
        """Of those rows."""
        return self._embeddings[np.asarray(rows, np.int64)]

    def alive(self) -> Rows:
        """All rows of today."""
        return np.flatnonzero(self._is_alive)

    def categories(self) -> dict[str, int]:
        """How many news each has, the largest first."""
        counts = np.bincount(self._category[: len(self._is_alive)][self._is_alive], minlength=len(self._code))
        named = {name: int(counts[code]) for name, code in self._code.items() if name and counts[code]}
        return dict(sorted(named.items(), key=lambda pair: -pair[1]))

    def add(self, news: Sequence[News], embeddings: Embeddings) -> None:
        """Put news in, each in the place of an older one of its id; searches find them when it returns."""
        assert len({one.news_id for one in news}) == len(news), "an id twice in one batch"
        for start in range(0, len(news), ADDED_TOGETHER):
            some = slice(start, start + ADDED_TOGETHER)
            self._add(news[some], embeddings[some])

    def remove(self, news_id: str) -> bool:
        """Take a news out; whether it was there."""
        with self._lock:
            return self._remove(news_id)

    def search(self, query_D: Embeddings, k: int, wanted: SearchFilter | None = None) -> SearchHits:
        """The k rows that score highest by inner product, among those wanted."""
        wanted = wanted or SearchFilter()
        if self._index is not None and not wanted.needs_all:
            found = self._search_graphs(self._index, query_D, k, wanted)
            if len(found.rows) == min(k, len(self) - len(wanted.without)):
                return found
        return self._search_all(query_D, k, wanted)

    def score(self, query_D: Embeddings, rows: Sequence[int], wanted: SearchFilter) -> SearchHits:
        """Those of the rows that are wanted, best first."""
        return self._search_all(query_D, len(rows), wanted, among=np.unique(np.array(rows, np.int64)))

    def similar(self, row: int, k: int) -> SearchHits:
        """The k rows at the smallest angle to this one, itself left out; scores are cosines."""
        lengths_V = np.linalg.norm(self._embeddings[: len(self._is_alive)], axis=1)
        scores_V = self._embeddings[: len(lengths_V)] @ self._embeddings[row]
        scores_V /= np.maximum(lengths_V * lengths_V[row], 1e-12)
        allowed = self._allowed(SearchFilter(without=frozenset([row])), len(lengths_V))
        return _best(np.flatnonzero(allowed), scores_V[allowed], k)

    def _add(self, news: Sequence[News], embeddings: Embeddings) -> None:
        rows = np.arange(len(self._news), len(self._news) + len(news))
        if rows[-1] >= len(self._embeddings):  # takes long when there are many; searches go on with the old array
            self._embeddings = _with_room(self._embeddings, len(self._news))
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
            # Searches look at this one first: rows beyond its end do not exist for them.
            self._is_alive = np.concatenate([self._is_alive, np.ones(len(news), bool)])
            self._row |= {one.news_id: row for row, one in zip(rows.tolist(), news, strict=True)}

    def _codes(self, news: Sequence[News]) -> NDArray[np.int64]:
        """Categories as numbers, in the order they were met."""
        return np.array([self._code.setdefault(one.category, len(self._code)) for one in news], np.int64)

    def _remove(self, news_id: str) -> bool:
        row = self._row.pop(news_id, None)
        if row is None:
            return False
        self._is_alive[row] = False
        if self._index is not None:
            self._index.remove(np.array([row + 1]))
        return True

    def _search_graphs(self, index: HnswIndex, query_D: Embeddings, k: int, wanted: SearchFilter) -> SearchHits:
        with self._lock:
            rows = index.search(query_D[None], k + len(wanted.without) + SPARE).ids[0] - 1
        kept = np.array([row >= 0 and row not in wanted.without for row in rows.tolist()], bool)
        return _best(rows[kept], self._embeddings[rows[kept]] @ query_D, k)

    def _search_all(
        self, query_D: Embeddings, k: int, wanted: SearchFilter, among: Rows | None = None
    ) -> SearchHits:
        allowed = self._allowed(wanted, len(self._is_alive))
        if among is None:
            rows = np.flatnonzero(allowed)
            scores = (self._embeddings[: len(allowed)] @ query_D)[rows]
        else:
            rows = among[allowed[among]]
            scores = self._embeddings[rows] @ query_D
        if wanted.popularity > 0 and self.knows_popularity:
            popularity = _standard(self._popularity[rows])
            scores = (1 - wanted.popularity) * _standard(scores) + wanted.popularity * popularity
        return _best(rows, scores, k)

    def _allowed(self, wanted: SearchFilter, num_rows: int) -> NDArray[np.bool_]:
        allowed = self._is_alive[:num_rows].copy()
        if wanted.categories:
            codes = [self._code[name] for name in wanted.categories if name in self._code]
            allowed &= np.isin(self._category[:num_rows], codes)
        if wanted.published_since is not None:
            allowed &= self._published[:num_rows] >= wanted.published_since  # never true of what is not known
        allowed[list(wanted.without)] = False
        return allowed


def build_index(embeddings: Embeddings, config: GraphConfig) -> HnswIndex | None:
    """Graphs over all rows, or None where there are too few to need them."""
    if len(embeddings) < config.graphs_from:
        return None
    return HnswIndex.build(np.arange(1, len(embeddings) + 1), embeddings, config.graphs)


def _best(rows: Rows, scores: NDArray[np.floating], k: int) -> SearchHits:
    k = min(k, len(rows))
    top = np.argpartition(-scores, k - 1)[:k] if k else np.zeros(0, np.int64)
    top = top[np.argsort(-scores[top], kind="stable")]
    return SearchHits(rows=rows[top], scores=scores[top].astype(np.float32))


def _standard(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Mean 0 and deviation 1, so that unlike things can be added."""
    return (values - values.mean()) / max(float(values.std()), 1e-12) if len(values) else values


def _with_room(rows: Embeddings, num_rows: int) -> Embeddings:
    """The first `num_rows` with room for a quarter more after them."""
    roomy = np.zeros((num_rows + max(1024, num_rows // 4), rows.shape[1]), np.float32)
    roomy[:num_rows] = rows[:num_rows]
    return roomy


def _time(news: News) -> float:
    return np.nan if news.published is None else news.published
