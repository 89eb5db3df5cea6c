"""What an index of articles is, and the exact one, which scores every article.

queries (queries, width) --search--> ids and inner products (queries, k), best first
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.checksums import write_checksums
from speedyfeed.files import new_folder, write_json
from speedyfeed.ragged import open_array
from speedyfeed.scoring import Users

Ids = NDArray[np.integer]
Embeddings = NDArray[np.float32]

FACTS = "index.json"
"""File of a saved index that holds its kind and settings."""
_QUERIES = 256  # vectors scored at once by exact search
_NEWS = 1 << 16  # articles scored at once: blocks of 64 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The k articles with the highest scores for each query, best first.

    A graph that finds fewer fills up with id 0 at score -inf.
    """

    ids: NDArray[np.int64]
    """Ids of the articles, (queries, k)."""
    scores: NDArray[np.float32]
    """Inner products with the query, (queries, k)."""


class Index(Protocol):
    """Articles that can be searched by inner product, each under its own id."""

    def __len__(self) -> int: ...

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        """Insert articles that are not in the index: ids above 0, (news,), and embeddings, (news, width)."""

    def remove(self, ids: Ids) -> None:
        """Remove the articles with these ids; ids that are not in the index are ignored."""

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        """Find the k best articles for each query, or all articles if there are fewer than k."""

    def save(self, folder: str | Path) -> None:
        """Write the index into a new folder, to be opened with `open_index`."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Kind and settings of the index, for reports."""


BuildIndex = Callable[[Ids, Embeddings], Index]
"""A function that builds an index from ids and embeddings."""


class ExactIndex:
    """Exact search: scores every article, in blocks of bounded memory."""

    def __init__(self, ids: Ids, embeddings: Embeddings) -> None:
        self._ids = np.asarray(ids, np.int64)
        self._embeddings = embeddings

    @classmethod
    def build(cls, ids: Ids, embeddings: Embeddings) -> Self:
        """Build an index of these articles."""
        return cls(ids, embeddings)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Map an index that `save` wrote, without loading it."""
        folder = Path(folder)
        return cls(open_array(folder, "ids"), open_array(folder, "embeddings"))

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Ids, embeddings: Embeddings) -> None:
        self._ids = np.concatenate([self._ids, ids])
        self._embeddings = np.concatenate([self._embeddings, embeddings])

    def remove(self, ids: Ids) -> None:
        left = ~np.isin(self._ids, ids)
        self._ids, self._embeddings = self._ids[left], self._embeddings[left]

    def search(self, queries: Embeddings, k: int) -> Neighbours:
        return self.search_users(Users.single(np.asarray(queries)), k)

    def search_users(self, users: Users, k: int) -> Neighbours:
        """Find the k articles with the highest scores for each user of one prefix."""
        k = min(k, len(self))
        ids = np.zeros((len(users), k), np.int64)
        scores = np.zeros((len(users), k), np.float32)
        # Users with few vectors are scored together, so that little is padding.
        num_vectors = (
            [1] * len(users) if users.weights_BPK is None else (users.weights_BPK > 0).sum((1, 2)).tolist()
        )
        order = np.argsort(num_vectors, kind="stable")
        start = 0
        while start < len(users):
            size = max(1, _QUERIES // max(1, num_vectors[order[start]]))
            some = order[start : start + size]
            best, position = self._search_block(users.take(torch.from_numpy(some)).without_unused(), k)
            ids[some], scores[some] = self._ids[position], best
            start += size
        return Neighbours(ids=ids, scores=scores)

    def _search_block(self, users: Users, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        best = torch.zeros(len(users), 0)
        positions = torch.zeros(len(users), 0, dtype=torch.int64)
        for start in range(0, len(self), _NEWS):
            block = self._embeddings[start : start + _NEWS]
            block = block if block.flags.writeable else block.copy()  # PyTorch warns of arrays it must not write
            scores = users.score_all(torch.from_numpy(block))[:, 0]
            top = scores.topk(min(k, scores.size(1)))
            merged = torch.cat([best, top.values], dim=1)
            best, chosen = merged.topk(min(k, merged.size(1)))
            positions = torch.cat([positions, top.indices + start], dim=1).gather(1, chosen)
        return best.numpy(), positions.numpy()

    def save(self, folder: str | Path) -> None:
        with new_folder(Path(folder)) as partial:
            np.save(partial / "ids.npy", self._ids)
            np.save(partial / "embeddings.npy", self._embeddings)
            write_json(partial / FACTS, {"kind": "exact"})
            write_checksums(partial)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"kind": "exact"}


def overlap(found: Neighbours, exact: Neighbours) -> float:
    """Fraction of the exact results that another search found too: the recall of an index."""
    assert found.ids.shape[0] == exact.ids.shape[0]
    if exact.ids.size == 0:
        return 1.0
    query = np.arange(len(exact.ids))[:, None] * (1 + max(found.ids.max(initial=0), exact.ids.max()))
    return float(np.isin(exact.ids + query, found.ids + query).mean())
