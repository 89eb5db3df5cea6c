"""Approximate search by inner product along HNSW graphs (USearch).

HNSW needs a symmetric similarity, and inner product is not one: a vector of small norm is nobody's best match, so
hardly an edge leads to it. The graphs are therefore built by cosine, which is symmetric, and searched by inner
product. Where all embeddings have the same norm, as by default, the two agree; elsewhere each range of norms has
its own graph, within which they nearly do. Many articles make many graphs: a large graph needs a wider search for
the same recall, takes longer to build and is no faster in the end.
`docs/evaluation.md` has the measurements, also of the textbook remedy (one more dimension that makes all norms
equal), which does far worse.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from usearch.compiled import MetricKind
from usearch.index import BatchMatches
from usearch.index import Index as Graph

from speedyfeed.checksums import write_checksums
from speedyfeed.data.store import PAD_NEWS
from speedyfeed.files import new_folder, write_json
from speedyfeed.retrieval.index import FACTS, Embeddings, ExactIndex, Ids, Neighbours

SERIAL_NEWS = 10_000
"""Maximum number of articles that one thread adds: the same articles then give the same graph, as in evaluation.
More are added by all threads, in any order."""
FEW_QUERIES = 16
"""Maximum number of queries that one thread searches for."""
_TOLERANCE = 0.01  # norms that differ by less than this fraction count as equal


@dataclass(frozen=True, kw_only=True, slots=True)
class HnswConfig:
    """Settings of the graphs of an `HnswIndex`."""

    graph_news: int = 100_000
    """Maximum number of articles in a graph when it is built; more articles make more graphs."""
    norm_ranges: int = 8
    """Minimum number of graphs where embeddings differ in norm; each graph holds one range of norms."""
    range_news: int = 32_000
    """Maximum number of articles in the graph of one range of norms."""
    connectivity: int = 32
    """Number of edges of each article (M in the HNSW paper)."""
    expansion_add: int = 128
    """Number of articles considered when one is added (efConstruction in the HNSW paper)."""
    expansion_search: int = 400
    """Number of articles considered by a search in each graph (ef in the HNSW paper); k if that is more."""
    dtype: str = "f32"
    """Number format in the graphs: f32, or bf16, which is twice as fast and half as large, with rounded scores."""


class HnswIndex:
    """Approximate search: follows edges towards high scores, in one graph after the other.

    All cores add articles at once, so two builds may differ in a few edges.
    """

    def __init__(self, width: int, bounds: NDArray[np.float64], num_groups: int, config: HnswConfig) -> None:
        """An empty index, with a graph for each range of norms from `bounds[i]` to `bounds[i + 1]`.

        With `num_groups` above 1 there are no bounds: an article goes to graph number `id % num_groups`.
        """
        assert num_groups == 1 or not len(bounds)
        self._width = width
        self._bounds = bounds
        self._num_groups = num_groups
        self._config = config
        self._graphs = [self._new_graph() for _ in range(max(num_groups, len(bounds) + 1))]
        self._mapped: list[Graph] = []
        self._is_removed = np.zeros(1, bool)  # by id, from the mapped graphs; grows as needed
        self._num_live: list[int] = []  # articles of each mapped graph that are not removed

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings, config: HnswConfig | None = None) -> Self:
        """Build an index of these articles, in graphs of about equal size."""
        config = config or HnswConfig()
        norms = _norms(embeddings)
        bounds, num_groups = np.zeros(0), max(1, math.ceil(len(ids) / config.graph_news))
        if len(ids) and norms.max() > (1 + _TOLERANCE) * norms.min():
            num_ranges = max(config.norm_ranges, math.ceil(len(ids) / config.range_news))
            bounds, num_groups = np.quantile(norms, np.arange(1, num_ranges) / num_ranges), 1
        index = cls(embeddings.shape[1], bounds, num_groups, config)
        index.add(ids, embeddings)
        return index

    @classmethod
    def open(cls, folder: str | Path, facts: Mapping[str, Any]) -> Self:
        """Map an index that `save` wrote; `facts` are what its `index.json` holds.

        The mapped graphs never change, and all processes that open them share their memory: articles added since
        have graphs of their own, and removed ones are left out of what a search finds.
        """
        index = cls(facts["width"], np.array(facts["bounds"]), facts["num_groups"], HnswConfig(**facts["config"]))
        for number in range(len(index._graphs)):
            graph = index._new_graph()
            graph.view(Path(folder) / f"{number}.usearch")
            index._mapped.append(graph)
            index._num_live.append(len(graph))
        return index

    def __len__(self) -> int:
        return sum(self._num_live) + sum(len(graph) for graph in self._graphs)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        graph_of = (
            ids % self._num_groups if self._num_groups > 1 else np.searchsorted(self._bounds, _norms(embeddings))
        )
        for number, graph in enumerate(self._graphs):
            rows = np.flatnonzero(graph_of == number)
            if len(rows):
                graph.metric = MetricKind.Cos
                vectors = np.ascontiguousarray(embeddings[rows], np.float32)
                graph.add(ids[rows].astype(np.uint64), vectors, threads=int(len(rows) <= SERIAL_NEWS))
                graph.metric = MetricKind.IP

    def remove(self, ids: Ids) -> None:
        """Remove these articles from the results; the graphs keep the memory they took."""
        for number, graph in enumerate(self._mapped):
            mapped = [one for one in ids.tolist() if one in graph]
            grown = np.zeros(max([len(self._is_removed), *(one + 1 for one in mapped)]), bool)
            grown[: len(self._is_removed)] = self._is_removed
            grown[mapped] = True
            self._num_live[number] -= int(grown.sum() - self._is_removed.sum())
            self._is_removed = grown
        for graph in self._graphs:
            inside = [number for number in ids.astype(np.uint64) if number in graph]
            if inside:
                graph.remove(np.array(inside, np.uint64))

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        k = min(k, len(self))
        ids = torch.full((len(queries), k), PAD_NEWS)
        scores = torch.full((len(queries), k), -torch.inf)
        if k and len(queries):
            searched = [
                self._search_mapped(number, queries, k) for number, num in enumerate(self._num_live) if num
            ]
            searched += [_search_graph(graph, queries, k) for graph in self._graphs if len(graph)]
            for found in searched:
                scores, chosen = torch.cat([scores, torch.from_numpy(found.scores)], 1).topk(k)
                ids = torch.cat([ids, torch.from_numpy(found.ids)], 1).gather(1, chosen)
        return Neighbours(ids=ids.numpy(), scores=scores.numpy())

    def save(self, folder: str | Path) -> None:
        assert not self._mapped, "what is mapped is saved already"
        facts = {
            "kind": "hnsw",
            "width": self._width,
            "bounds": self._bounds.tolist(),
            "num_groups": self._num_groups,
            "config": dataclasses.asdict(self._config),
        }
        with new_folder(Path(folder)) as partial:
            for number, graph in enumerate(self._graphs):
                graph.save(partial / f"{number}.usearch")
            write_json(partial / FACTS, facts)
            write_checksums(partial)

    @property
    def parameters(self) -> Mapping[str, Any]:
        num_graphs = len(self._mapped) or len(self._graphs)
        return {"kind": "hnsw", "graphs": num_graphs} | dataclasses.asdict(self._config)

    def _new_graph(self) -> Graph:
        return Graph(
            ndim=self._width,
            metric="ip",  # distance is 1 - inner product
            dtype=self._config.dtype,
            connectivity=self._config.connectivity,
            expansion_add=self._config.expansion_add,
            expansion_search=self._config.expansion_search,
        )

    def _search_mapped(self, number: int, queries: Embeddings, k: int) -> Neighbours:
        """Search a mapped graph for its k best articles that are not removed: wider until they are found.

        Once a search would score as many articles as are left, these are scored instead.
        """
        graph, num_live = self._mapped[number], self._num_live[number]
        size = k = min(k, num_live)
        while True:
            found = _search_graph(graph, queries, size)
            is_removed = self._find_removed(found.ids)
            num_found = (~is_removed & (found.ids != PAD_NEWS)).sum(1)
            if not is_removed.any() or num_found.min() >= k:
                scores = np.where(is_removed, -np.inf, found.scores).astype(np.float32)
                return Neighbours(ids=np.where(is_removed, PAD_NEWS, found.ids), scores=scores)
            size *= 2
            if num_live <= size * self._config.connectivity:
                ids = np.asarray(graph.keys[:], np.int64)
                live = ids[~self._find_removed(ids)]
                vectors: Any = graph.get(live, "f32")  # a tuple of rows
                return ExactIndex.build(live, np.stack(vectors)).search(queries, k)

    def _find_removed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self._is_removed[np.where(ids < len(self._is_removed), ids, PAD_NEWS)])


def _search_graph(graph: Graph, queries: Embeddings, k: int) -> Neighbours:
    """Search one graph; id 0 at score -inf where it finds fewer than k."""
    # One thread for few queries, as in a service: to start others takes longer than they save.
    matches = graph.search(queries, min(k, len(graph)), threads=int(len(queries) <= FEW_QUERIES))
    if isinstance(matches, BatchMatches):
        keys, distances, counts = matches.keys, matches.distances, matches.counts
    else:  # for a single query USearch gives a plain list
        keys, distances, counts = matches.keys[None], matches.distances[None], np.array([len(matches)])
    is_found = np.arange(keys.shape[1]) < counts[:, None]
    return Neighbours(
        ids=np.where(is_found, keys, PAD_NEWS).astype(np.int64),
        scores=np.where(is_found, 1 - distances, -np.inf).astype(np.float32),
    )


def _norms(embeddings: Embeddings) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(embeddings, axis=1), np.float64)
