"""Search all news by inner product with a user embedding: exactly, or along HNSW graphs (USearch).

HNSW supposes that near is mutual, and inner product is not like that: a short vector is nobody's best match, so
hardly an edge leads to it. So the graphs are built by angle, which is mutual, and searched by inner product; and
each range of lengths has a graph of its own, within which the two nearly agree. `docs/evaluation.md` has the
measurements, also of the textbook remedy (one more dimension, all vectors equally long), which does far worse.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from usearch.compiled import MetricKind
from usearch.index import BatchMatches
from usearch.index import Index as Graph

from speedyfeed.data.store import PAD_NEWS
from speedyfeed.errors import InputError
from speedyfeed.folders import new_folder, write_json
from speedyfeed.ragged import open_array

Ids = NDArray[np.integer]
Embeddings = NDArray[np.float32]

_FACTS = "index.json"
_QUERIES = 256  # a block of exact search scores these many queries
_NEWS = 1 << 16  # against these many news: 64 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The k news that score highest for each query, best first; news 0 at -inf where a graph found less."""

    ids: NDArray[np.int64]
    """(queries, k)"""
    scores: NDArray[np.float32]
    """Inner products, (queries, k)."""


class Index(Protocol):
    """News to search, each under its own id."""

    def __len__(self) -> int: ...

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        """Put in news that are not there yet; ids (news,) above 0, embeddings (news, width)."""

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        """The best k, or all if there are less."""

    def save(self, folder: Path) -> None:
        """Make the folder, from which `open_index` gives the same index."""


class ExactIndex:
    """Scores every news, in blocks of bounded memory."""

    def __init__(self, ids: Ids, embeddings: Embeddings) -> None:
        self._ids = np.asarray(ids, np.int64)
        self._embeddings = embeddings

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings) -> Self:
        """An index of these news."""
        return cls(ids, embeddings)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `save` wrote."""
        return cls(open_array(folder, "ids"), open_array(folder, "embeddings"))

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        self._ids = np.concatenate([self._ids, ids])
        self._embeddings = np.concatenate([self._embeddings, embeddings])

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        k = min(k, len(self))
        ids = np.zeros((len(queries), k), np.int64)
        scores = np.zeros((len(queries), k), np.float32)
        for start in range(0, len(queries), _QUERIES):
            some = slice(start, start + _QUERIES)
            best, place = self._search_block(queries[some], k)
            ids[some], scores[some] = self._ids[place], best
        return Neighbours(ids=ids, scores=scores)

    def _search_block(self, queries: Embeddings, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        best = torch.zeros(len(queries), 0)
        places = torch.zeros(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(self), _NEWS):
            scores = torch.from_numpy(queries @ self._embeddings[start : start + _NEWS].T)
            top = scores.topk(min(k, scores.size(1)))
            merged = torch.cat([best, top.values], dim=1)
            best, chosen = merged.topk(min(k, merged.size(1)))
            places = torch.cat([places, top.indices + start], dim=1).gather(1, chosen)
        return best.numpy(), places.numpy()

    def save(self, folder: Path) -> None:
        with new_folder(folder) as partial:
            np.save(partial / "ids.npy", self._ids)
            np.save(partial / "embeddings.npy", self._embeddings)
            write_json(partial / _FACTS, {"kind": "exact"})


@dataclass(frozen=True, kw_only=True, slots=True)
class HnswConfig:
    """The graphs of an approximate index."""

    length_ranges: int = 8
    """Graphs; each takes its share of the news, by the length of their embeddings."""
    connectivity: int = 16
    """Edges of each news (M in the HNSW paper)."""
    expansion_add: int = 128
    """News weighed when one is added (efConstruction)."""
    expansion_search: int = 256
    """News weighed by a search in each graph (ef); k if that is more."""


class HnswIndex:
    """Follows edges towards high scores; time grows with the logarithm of the news.

    News are added by all cores at once, so two builds may differ in a few edges.
    """

    def __init__(self, width: int, bounds: NDArray[np.float64], config: HnswConfig) -> None:
        """No news yet; those longer than `bounds[i]` and no longer than `bounds[i + 1]` will share a graph."""
        self._width = width
        self._bounds = bounds
        self._config = config
        self._graphs = [
            Graph(
                ndim=width,
                metric="ip",  # distance is 1 - inner product
                dtype="f32",
                connectivity=config.connectivity,
                expansion_add=config.expansion_add,
                expansion_search=config.expansion_search,
            )
            for _ in range(len(bounds) + 1)
        ]

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings, config: HnswConfig | None = None) -> Self:
        """An index of these news, in ranges that hold equally many of them."""
        config = config or HnswConfig()
        shares = np.arange(1, config.length_ranges) / config.length_ranges
        bounds = np.quantile(_lengths(embeddings), shares) if len(ids) else np.zeros(0)
        index = cls(embeddings.shape[1], bounds, config)
        index.add(ids, embeddings)
        return index

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Load what `save` wrote."""
        index = cls(facts["width"], np.array(facts["bounds"]), HnswConfig(**facts["config"]))
        for number, graph in enumerate(index._graphs):
            graph.load(folder / f"{number}.usearch")
        return index

    def __len__(self) -> int:
        return sum(len(graph) for graph in self._graphs)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        range_of = np.searchsorted(self._bounds, _lengths(embeddings))
        for number, graph in enumerate(self._graphs):
            rows = np.flatnonzero(range_of == number)
            if len(rows):
                graph.metric = MetricKind.Cos
                graph.add(ids[rows].astype(np.uint64), np.ascontiguousarray(embeddings[rows], np.float32))
                graph.metric = MetricKind.IP

    def remove(self, ids: Ids) -> None:
        """Take out news that are there; they are stepped over from now on, their room is not given back."""
        for graph in self._graphs:
            inside = [number for number in ids.astype(np.uint64) if number in graph]
            if inside:
                graph.remove(np.array(inside, np.uint64))

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        k = min(k, len(self))
        ids = np.full((len(queries), len(self._graphs) * k), PAD_NEWS, np.int64)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for number, graph in enumerate(self._graphs):
            if len(graph) and len(queries):
                columns = slice(number * k, (number + 1) * k)
                _search_graph(graph, queries, ids[:, columns], scores[:, columns])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return Neighbours(
            ids=np.take_along_axis(ids, best, axis=1), scores=np.take_along_axis(scores, best, axis=1)
        )

    def save(self, folder: Path) -> None:
        facts = {
            "kind": "hnsw",
            "width": self._width,
            "bounds": self._bounds.tolist(),
            "config": dataclasses.asdict(self._config),
        }
        with new_folder(folder) as partial:
            for number, graph in enumerate(self._graphs):
                graph.save(partial / f"{number}.usearch")
            write_json(partial / _FACTS, facts)


def open_index(folder: Path) -> Index:
    """The index that was saved into a folder."""
    try:
        facts = json.loads((folder / _FACTS).read_text("utf-8"))
        if facts["kind"] == "exact":
            return ExactIndex.open(folder)
        return HnswIndex.open(folder, facts)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: not an index of this version; remove it to have it built again") from error


def overlap(found: Neighbours, exact: Neighbours) -> float:
    """Share of what exact search finds that another search found too: an index's own recall."""
    assert found.ids.shape[0] == exact.ids.shape[0]
    if exact.ids.size == 0:
        return 1.0
    query = np.arange(len(exact.ids))[:, None] * (1 + max(found.ids.max(initial=0), exact.ids.max()))
    return float(np.isin(exact.ids + query, found.ids + query).mean())


def _search_graph(graph: Graph, queries: Embeddings, ids: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
    """Write what the graph finds into the first columns of two (queries, k) tables."""
    matches = graph.search(queries, min(ids.shape[1], len(graph)))
    if isinstance(matches, BatchMatches):
        found = np.arange(matches.keys.shape[1]) < matches.counts[:, None]
        rows, columns = np.nonzero(found)
        ids[rows, columns], scores[rows, columns] = matches.keys[found], 1 - matches.distances[found]
    else:  # for a single query USearch gives a plain list
        ids[0, : len(matches)], scores[0, : len(matches)] = matches.keys, 1 - matches.distances


def _lengths(embeddings: Embeddings) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(embeddings, axis=1), np.float64)
