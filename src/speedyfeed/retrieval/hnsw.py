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
from speedyfeed.retrieval.index import FACTS, Embeddings, Ids, Neighbours

SERIAL_NEWS = 10_000
"""Maximum number of articles that one thread adds: the same articles then give the same graph, as in evaluation.
More are added by all threads, in any order."""
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
        self._graphs = [
            Graph(
                ndim=width,
                metric="ip",  # distance is 1 - inner product
                dtype=config.dtype,
                connectivity=config.connectivity,
                expansion_add=config.expansion_add,
                expansion_search=config.expansion_search,
            )
            for _ in range(max(num_groups, len(bounds) + 1))
        ]

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
        """Load an index that `save` wrote; `facts` are what its `index.json` holds."""
        index = cls(facts["width"], np.array(facts["bounds"]), facts["num_groups"], HnswConfig(**facts["config"]))
        for number, graph in enumerate(index._graphs):
            graph.load(Path(folder) / f"{number}.usearch")
        return index

    def __len__(self) -> int:
        return sum(len(graph) for graph in self._graphs)

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
        for graph in self._graphs:
            inside = [number for number in ids.astype(np.uint64) if number in graph]
            if inside:
                graph.remove(np.array(inside, np.uint64))

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        k = min(k, len(self))
        ids = torch.full((len(queries), k), PAD_NEWS)
        scores = torch.full((len(queries), k), -torch.inf)
        for graph in self._graphs:
            if len(graph) and len(queries):
                found = _search_graph(graph, queries, k)
                scores, chosen = torch.cat([scores, torch.from_numpy(found.scores)], 1).topk(k)
                ids = torch.cat([ids, torch.from_numpy(found.ids)], 1).gather(1, chosen)
        return Neighbours(ids=ids.numpy(), scores=scores.numpy())

    def save(self, folder: str | Path) -> None:
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
        return {"kind": "hnsw", "graphs": len(self._graphs)} | dataclasses.asdict(self._config)


def _search_graph(graph: Graph, queries: Embeddings, k: int) -> Neighbours:
    """Search one graph; id 0 at score -inf where it finds fewer than k."""
    matches = graph.search(queries, min(k, len(graph)))
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
