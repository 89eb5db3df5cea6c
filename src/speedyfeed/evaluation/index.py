"""Search all news by inner product with a user embedding: exactly, or along an HNSW graph (USearch).

HNSW supposes that near is mutual, and inner product is not like that: a short vector is nobody's best match, so
few edges lead to it. The textbook remedy, one more dimension that makes all vectors equally long, is far worse
here; a denser graph is what helps. `docs/evaluation.md` has the measurements.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
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
    """The graph of an approximate index."""

    connectivity: int = 48
    """Edges of each news (M in the HNSW paper)."""
    expansion_add: int = 128
    """News weighed when one is added (efConstruction)."""
    expansion_search: int = 512
    """News weighed by a search (ef); k if that is more."""


class HnswIndex:
    """Follows the edges of a graph towards high scores; time grows with the logarithm of the news.

    News are added by all cores at once, so two builds may differ in a few edges.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings, config: HnswConfig | None = None) -> Self:
        """An index of these news."""
        config = config or HnswConfig()
        graph = Graph(
            ndim=embeddings.shape[1],
            metric="ip",  # distance is 1 - inner product, of embeddings as they are
            dtype="f32",
            connectivity=config.connectivity,
            expansion_add=config.expansion_add,
            expansion_search=config.expansion_search,
        )
        index = cls(graph)
        index.add(ids, embeddings)
        return index

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Load what `save` wrote."""
        graph = Graph.restore(
            folder / "news.usearch",
            expansion_add=facts["expansion_add"],
            expansion_search=facts["expansion_search"],
        )
        if graph is None:
            raise ValueError("no graph")
        return cls(graph)

    def __len__(self) -> int:
        return len(self._graph)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        if len(ids):
            self._graph.add(ids.astype(np.uint64), np.ascontiguousarray(embeddings, np.float32))

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        k = min(k, len(self))
        ids = np.full((len(queries), k), PAD_NEWS, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        if ids.size:
            matches = self._graph.search(queries, k)
            # One query gives a plain list of what was found, several a padded table and their counts.
            counts = matches.counts if isinstance(matches, BatchMatches) else np.array([len(matches)])
            found = np.arange(k) < counts[:, None]
            table = found if isinstance(matches, BatchMatches) else np.s_[:]
            ids[found] = matches.keys[table]
            scores[found] = 1 - matches.distances[table]
        return Neighbours(ids=ids, scores=scores)

    def save(self, folder: Path) -> None:
        with new_folder(folder) as partial:
            self._graph.save(partial / "news.usearch")
            facts = {name: getattr(self._graph, name) for name in ("expansion_add", "expansion_search")}
            write_json(partial / _FACTS, {"kind": "hnsw", **facts})


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
