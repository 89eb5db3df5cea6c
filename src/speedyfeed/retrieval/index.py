"""Search all news by inner product with a user embedding: exactly, or along HNSW graphs (USearch).

HNSW supposes that near is mutual, and inner product is not like that: a short vector is nobody's best match, so
hardly an edge leads to it. So the graphs are built by angle, which is mutual, and searched by inner product. Where
all embeddings are equally long, as by default, the two agree; elsewhere each range of lengths has a graph of its
own, within which they nearly do. Graphs stay small as news grow: a large one would have to be searched wider for
the same recall, takes longer to build and is no faster in the end.
`docs/evaluation.md` has the measurements, also of the textbook remedy (one more dimension, all vectors equally
long), which does far worse.
"""

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
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
from speedyfeed.files import new_folder, write_json
from speedyfeed.ragged import open_array

Ids = NDArray[np.integer]
Embeddings = NDArray[np.float32]

_FACTS = "index.json"
_QUERIES = 256  # a block of exact search scores these many queries
_NEWS = 1 << 16  # against these many news: 64 MB
_EQUAL = 0.01  # lengths that differ by less are equal


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

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its kind and settings, for a report."""


BuildIndex = Callable[[Ids, Embeddings], Index]


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

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"kind": "exact"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HnswConfig:
    """The graphs of an approximate index."""

    graph_news: int = 100_000
    """News in a graph at most when it is built; more news make more graphs."""
    length_ranges: int = 8
    """Graphs at least where embeddings are unequally long; each takes a range of lengths."""
    range_news: int = 32_000
    """News in such a graph at most."""
    connectivity: int = 32
    """Edges of each news (M in the HNSW paper)."""
    expansion_add: int = 128
    """News weighed when one is added (efConstruction)."""
    expansion_search: int = 400
    """News weighed by a search in each graph (ef); k if that is more."""
    numbers: str = "f32"
    """Number format in the graphs: f32, or bf16, twice as fast and half as large, with scores rounded."""


class HnswIndex:
    """Follows edges towards high scores, in one graph after the other.

    News are added by all cores at once, so two builds may differ in a few edges.
    """

    def __init__(self, width: int, bounds: NDArray[np.float64], shares: int, config: HnswConfig) -> None:
        """No news yet; those longer than `bounds[i]` and no longer than `bounds[i + 1]` will share a graph.

        With several `shares` there are no bounds: news are dealt to so many graphs by their ids.
        """
        assert shares == 1 or not len(bounds)
        self._width = width
        self._bounds = bounds
        self._shares = shares
        self._config = config
        self._graphs = [
            Graph(
                ndim=width,
                metric="ip",  # distance is 1 - inner product
                dtype=config.numbers,
                connectivity=config.connectivity,
                expansion_add=config.expansion_add,
                expansion_search=config.expansion_search,
            )
            for _ in range(max(shares, len(bounds) + 1))
        ]

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings, config: HnswConfig | None = None) -> Self:
        """An index of these news, in graphs that hold equally many of them."""
        config = config or HnswConfig()
        lengths = _lengths(embeddings)
        bounds, shares = np.zeros(0), max(1, math.ceil(len(ids) / config.graph_news))
        if len(ids) and lengths.max() > (1 + _EQUAL) * lengths.min():
            num_ranges = max(config.length_ranges, math.ceil(len(ids) / config.range_news))
            bounds, shares = np.quantile(lengths, np.arange(1, num_ranges) / num_ranges), 1
        index = cls(embeddings.shape[1], bounds, shares, config)
        index.add(ids, embeddings)
        return index

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Load what `save` wrote."""
        index = cls(facts["width"], np.array(facts["bounds"]), facts["shares"], HnswConfig(**facts["config"]))
        for number, graph in enumerate(index._graphs):
            graph.load(folder / f"{number}.usearch")
        return index

    def __len__(self) -> int:
        return sum(len(graph) for graph in self._graphs)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        graph_of = ids % self._shares if self._shares > 1 else np.searchsorted(self._bounds, _lengths(embeddings))
        for number, graph in enumerate(self._graphs):
            rows = np.flatnonzero(graph_of == number)
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
        ids = torch.full((len(queries), k), PAD_NEWS)
        scores = torch.full((len(queries), k), -torch.inf)
        for graph in self._graphs:
            if len(graph) and len(queries):
                found = _search_graph(graph, queries, k)
                scores, chosen = torch.cat([scores, torch.from_numpy(found.scores)], 1).topk(k)
                ids = torch.cat([ids, torch.from_numpy(found.ids)], 1).gather(1, chosen)
        return Neighbours(ids=ids.numpy(), scores=scores.numpy())

    def save(self, folder: Path) -> None:
        facts = {
            "kind": "hnsw",
            "width": self._width,
            "bounds": self._bounds.tolist(),
            "shares": self._shares,
            "config": dataclasses.asdict(self._config),
        }
        with new_folder(folder) as partial:
            for number, graph in enumerate(self._graphs):
                graph.save(partial / f"{number}.usearch")
            write_json(partial / _FACTS, facts)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"kind": "hnsw", "graphs": len(self._graphs)} | dataclasses.asdict(self._config)


def cached_in(folder: Path) -> BuildIndex:
    """Builds an `HnswIndex` and keeps it in a folder; the same embeddings of the same news are opened from there.

    The folder holds one index, that of the news it was last asked for.
    """

    def build(ids: Ids, embeddings: Embeddings) -> Index:
        path = folder / _fingerprint(ids, embeddings)
        if path.exists():
            return open_index(path)
        index = HnswIndex.build(ids, embeddings)
        shutil.rmtree(folder, ignore_errors=True)
        index.save(path)
        return index

    return build


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


def _search_graph(graph: Graph, queries: Embeddings, k: int) -> Neighbours:
    """What a graph finds; news 0 at -inf where that is less than k."""
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


def _fingerprint(ids: Ids, embeddings: Embeddings) -> str:
    """Of news, their embeddings and how they would be indexed."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(HnswConfig())).encode())
    digest.update(np.ascontiguousarray(ids, np.int64).data)
    digest.update(np.ascontiguousarray(embeddings, np.float32).data)
    return digest.hexdigest()[:16]


def _lengths(embeddings: Embeddings) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(embeddings, axis=1), np.float64)
