"""The articles of a feed in memory, with their embeddings; they can be searched while they are added and removed.

    row          0    1    2    3   ...      every column grows at its end; a row is never reused
    news         N1   N2   N1'  N3           N1 was replaced: row 0 is dead, row 2 holds the new version
    is_alive     no   yes  yes  yes

A small catalogue is searched exactly. A large one is searched with HNSW graphs, and exactly only if the request
needs what the graphs lack: a filter, or more hits than the graphs returned. Results agree, apart from the few
articles that approximate search misses.

Shapes: V rows, Q queries, K hits, D embedding width.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speedyfeed.data.headlines import headline_codes
from speedyfeed.retrieval.hnsw import HnswConfig, HnswIndex
from speedyfeed.retrieval.rerank import NO_SECTION, top_positions
from speedyfeed.serving.growing_rows import GrowingRows
from speedyfeed.serving.journal import News

Rows = NDArray[np.int64]
Embeddings = NDArray[np.float32]

SPARE_HITS = 16
"""Hits fetched from the graphs beyond k: graphs score in low precision, so the order of the last may be wrong."""
MOST_POPULAR = 2000
"""Number of most clicked rows that are remembered between searches."""
INSERT_BATCH = 8
"""Articles inserted into the graphs at once; searches wait meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchFilter:
    """Which articles a search may return; by default all."""

    categories: frozenset[str] = frozenset()
    """Categories to search in; empty means all."""
    published_since: float | None = None
    """Earliest publication time in seconds since 1970; articles of unknown age are left out."""
    excluded_rows: frozenset[int] = frozenset()
    """Rows of the catalogue that must not be returned."""
    excluded_categories: frozenset[str] = frozenset()
    """Categories that must not be returned."""

    @property
    def needs_exact_search(self) -> bool:
        """Whether the graphs cannot apply this filter."""
        return bool(self.categories or self.excluded_categories) or self.published_since is not None


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
        # A large catalogue stays where it is: mapped from the run's file, its memory is that of all processes.
        self._embeddings = GrowingRows(embeddings, is_copied=index is None)
        self._is_alive = np.ones(len(self._news), bool)
        self._published = np.array([_time(one) for one in self._news], np.float64)
        self._code: dict[str, int] = {"": NO_SECTION}
        self._category = self._codes(self._news)
        self._headlines = headline_codes(one.title for one in self._news)
        self.knows_popularity = num_clicks is not None
        self._clicks = np.array(num_clicks or [0] * len(self._news), np.float64)
        self._section_clicks = np.zeros(len(self._code))
        np.add.at(self._section_clicks, self._category, 1 + self._clicks)
        self._popular: Rows | None = None
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
        return self._embeddings.take(np.asarray(rows, np.int64))

    def all_embeddings(self) -> Embeddings:
        """Embeddings of all rows, dead ones included, (V, D): a view if searches are exact, else a copy."""
        blocks = self._embeddings.blocks(len(self._is_alive))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def alive(self) -> Rows:
        """Rows of all articles that are neither removed nor replaced."""
        return np.flatnonzero(self._is_alive)

    def clicks(self, rows: Rows) -> NDArray[np.float64] | None:
        """Number of clicks on these rows, in the training log and since; None where the log's are unknown."""
        return self._clicks[rows] if self.knows_popularity else None

    def sections(self, rows: Sequence[int] | Rows) -> NDArray[np.int64]:
        """Category of these rows as a number; `NO_SECTION` for none."""
        return self._category[np.asarray(rows, np.int64)]

    def headlines(self, rows: Sequence[int] | Rows) -> NDArray[np.int64]:
        """Headlines of these rows as codes, to tell duplicates by."""
        return self._headlines[np.asarray(rows, np.int64)]

    def section(self, category: str) -> int:
        """Number of a category; `NO_SECTION` if it is unknown or empty."""
        return self._code.get(category, NO_SECTION)

    def section_clicks(self) -> NDArray[np.float64]:
        """Number of clicks on each category, by its number, and one for each article of it."""
        return self._section_clicks

    def newest(self) -> float | None:
        """Publication time of the newest article, at most now, in seconds since 1970; None if all are unknown."""
        times = self._published[: len(self._is_alive)][self._is_alive]
        known = times[np.isfinite(times)]
        return min(float(known.max()), time.time()) if len(known) else None

    def ages(self, rows: Rows) -> NDArray[np.float64]:
        """Hours from the publication of these rows to that of the newest article; NaN where unknown."""
        newest = self.newest()
        return (np.nan if newest is None else newest - self._published[rows]) * np.ones(len(rows)) / 3600

    def count_click(self, news_id: str) -> None:
        """Count one more click on an article; unknown ids are ignored."""
        with self._lock:
            row = self._row.get(news_id)
            if row is not None:
                self._clicks[row] += 1
                self._section_clicks[self._category[row]] += 1
                self._popular = None

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

    def retrieve(
        self, queries_QD: Embeddings, k: int, search_filter: SearchFilter | None = None, *, popular: bool = False
    ) -> Rows:
        """Rows among the k best of any query, in no order; with `popular`, also the k most clicked ones."""
        search_filter = search_filter or SearchFilter()
        found = [hits.rows for hits in self.search(queries_QD, k, search_filter)]
        if popular and self.knows_popularity:
            found.append(self._most_popular(k, search_filter))
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def search(
        self, queries_QD: Embeddings, k: int, search_filter: SearchFilter | None = None
    ) -> list[SearchHits]:
        """The k rows with the highest inner product among those that pass the filter, for each query."""
        search_filter = search_filter or SearchFilter()
        if self._index is not None and not search_filter.needs_exact_search:
            found = self._search_graphs(self._index, queries_QD, k, search_filter)
            if all(len(hits.rows) == min(k, len(self) - len(search_filter.excluded_rows)) for hits in found):
                return found
        return self._search_all(queries_QD, k, search_filter)

    def latest(self, k: int, search_filter: SearchFilter) -> Rows:
        """The k rows published last among those that pass the filter; those of unknown age are left out."""
        rows = self.allowed(search_filter)
        return rows[top_positions(np.nan_to_num(self._published[rows], nan=-np.inf), k)]

    def allowed(self, search_filter: SearchFilter) -> Rows:
        """All rows that pass the filter."""
        return np.flatnonzero(self._allowed(search_filter, len(self._is_alive)))

    def passing(self, rows: Sequence[int], search_filter: SearchFilter) -> Rows:
        """Those of the rows that pass the filter, each once."""
        distinct = np.unique(np.array(rows, np.int64))
        return distinct[self._allowed(search_filter, len(self._is_alive))[distinct]]

    def similar(self, row: int, k: int) -> SearchHits:
        """The k other rows with the highest cosine similarity to this one."""
        blocks = self._embeddings.blocks(len(self._is_alive))
        norms_V = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])
        query_D = self.embeddings([row])[0]
        scores_V = np.concatenate([block @ query_D for block in blocks])
        scores_V /= np.maximum(norms_V * norms_V[row], 1e-12)
        allowed = self._allowed(SearchFilter(excluded_rows=frozenset([row])), len(norms_V))
        return _top_k(np.flatnonzero(allowed), scores_V[allowed], k)

    def _add(self, news: Sequence[News], embeddings: Embeddings) -> None:
        rows = np.arange(len(self._news), len(self._news) + len(news))
        self._embeddings.append(embeddings)
        with self._lock:
            for one in news:
                self._remove(one.news_id)
            self._published = np.concatenate([self._published, [_time(one) for one in news]])
            self._category = np.concatenate([self._category, self._codes(news)])
            self._headlines = np.concatenate([self._headlines, headline_codes(one.title for one in news)])
            self._clicks = np.concatenate([self._clicks, np.zeros(len(news))])
            grown = np.pad(self._section_clicks, (0, len(self._code) - len(self._section_clicks)))
            np.add.at(grown, self._category[rows], 1)
            self._section_clicks = grown
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

    def _search_graphs(
        self, index: HnswIndex, queries_QD: Embeddings, k: int, search_filter: SearchFilter
    ) -> list[SearchHits]:
        with self._lock:
            ids_QK = index.search(queries_QD, k + len(search_filter.excluded_rows) + SPARE_HITS).ids
        excluded = np.fromiter(search_filter.excluded_rows, np.int64)
        found = []
        for query_D, rows in zip(queries_QD, ids_QK - 1, strict=True):
            hits = rows[(rows >= 0) & ~np.isin(rows, excluded)]
            found.append(_top_k(hits, self.embeddings(hits) @ query_D, k))
        return found

    def _search_all(self, queries_QD: Embeddings, k: int, search_filter: SearchFilter) -> list[SearchHits]:
        allowed = self._allowed(search_filter, len(self._is_alive))
        rows = np.flatnonzero(allowed)
        blocks = self._embeddings.blocks(len(allowed))
        scores_QV = np.concatenate([queries_QD @ block.T for block in blocks], axis=1)
        return [_top_k(rows, scores_V[rows], k) for scores_V in scores_QV]

    def _most_popular(self, k: int, search_filter: SearchFilter) -> Rows:
        allowed = self._allowed(search_filter, len(self._is_alive))
        if k > MOST_POPULAR or search_filter.needs_exact_search:
            rows = np.flatnonzero(allowed)
            return rows[top_positions(self._clicks[rows], k)]
        popular = self._popular
        if popular is None:
            rows = np.flatnonzero(self._is_alive)
            popular = self._popular = rows[top_positions(self._clicks[rows], MOST_POPULAR)]
        return popular[allowed[popular]][:k]

    def _allowed(self, search_filter: SearchFilter, num_rows: int) -> NDArray[np.bool_]:
        allowed = self._is_alive[:num_rows].copy()
        if search_filter.categories:
            codes = [self._code[name] for name in search_filter.categories if name in self._code]
            allowed &= np.isin(self._category[:num_rows], codes)
        if search_filter.excluded_categories:
            codes = [self._code[name] for name in search_filter.excluded_categories if name in self._code]
            allowed &= ~np.isin(self._category[:num_rows], codes)
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


def _top_k(rows: Rows, scores: NDArray[np.floating], k: int) -> SearchHits:
    """The k rows with the highest scores, best first."""
    k = min(k, len(rows))
    top = np.argpartition(-scores, k - 1)[:k] if k else np.zeros(0, np.int64)
    top = top[np.argsort(-scores[top], kind="stable")]
    return SearchHits(rows=rows[top], scores=scores[top].astype(np.float32))


def _time(news: News) -> float:
    """Publication time in seconds since 1970; NaN if unknown."""
    return np.nan if news.published is None else news.published
