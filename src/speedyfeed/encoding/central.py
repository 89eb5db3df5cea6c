"""Centralized encoding: the distinct articles of a batch, each encoded once or read from the cache.

    ids of a batch --gather--> merged_M --encode or read--> news_MH --project--> news_MD --dispatch--> clicks_BLD

The cache stores encoded texts, nearly all of the work. The projection to the embedding is computed for every
article of the batch and learns from all of them.

Padding is position 0, a vector of zeros that costs nothing. Tokens are fetched for the articles to encode alone.
Shapes: B users, L clicks, N negatives, M distinct articles, E encoded, R cache hits, H text width, D embedding
width.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from speedyfeed.data.store import PAD_NEWS
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.models.packed import PackedNews

Ids = Tensor | NDArray[np.integer]
NO_IDS = np.zeros(0, np.int32)


class NewsEncoder(Protocol):
    """Encoder of packed articles in two steps, text and projection; accepts an empty set of articles."""

    def encode_text(self, news: PackedNews, /) -> Tensor:
        """Encode texts to news_MH: the expensive part, and what the cache stores."""

    def project(self, news_MH: Tensor, categories_M: Tensor | None, /) -> Tensor:
        """Project encoded texts, and categories if there are any, to embeddings news_MD."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedNews:
    """Distinct articles of a batch with their embeddings, and the batch as positions in that list."""

    ids_M: Tensor
    """Sorted article ids in host memory; the first is padding."""
    news_MD: Tensor
    """Embeddings in float32 on the device of the encoder; row 0 is zero."""
    history_BL: Tensor
    negatives_BLN: Tensor
    encoded_E: Tensor
    """Ids of the articles that were encoded."""
    encoded_EH: Tensor
    """Their encoded texts, to be written to the cache."""
    cached_R: Tensor
    """Ids of the articles that were read from the cache."""
    cached_RH: Tensor
    """Their rows, a leaf that has a gradient after the backward pass where cache gradients are collected."""


def gather(*groups: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Distinct articles of all groups, and each group as positions in that list; position 0 is always padding.

    [[7, 9], [9, 0]], [4] -> merged [0, 4, 7, 9], positions [[2, 3], [3, 0]], [1]
    """
    padding = groups[0].new_tensor([PAD_NEWS])
    ids = torch.cat([padding, *(group.flatten() for group in groups)])
    merged_M, position = torch.unique(ids, return_inverse=True)
    parts = position[1:].split([group.numel() for group in groups])
    return merged_M, [part.view_as(group) for part, group in zip(parts, groups, strict=True)]


def dispatch(news_MD: Tensor, positions: Tensor) -> Tensor:
    """Embeddings at every position of the batch, `news_MD[positions]`; gradients add up per article.

    On CPU the gradient of an embedding lookup takes a third of the time that of indexing takes.
    """
    return nn.functional.embedding(positions, news_MD)


def encode_merged(
    encoder: NewsEncoder,
    news: PackedNews,
    cache: NewsCache | None,
    *,
    history_BL: Ids,
    negatives_BLN: Ids,
    encode_E: Ids,
    cached_R: Ids,
    deliver_E: Ids = NO_IDS,
    collects_gradients: bool = False,
) -> MergedNews:
    """Encode `encode_E` with gradient and read `cached_R` without; together they must cover the batch.

    `deliver_E` are encoded as well, but are no part of the merged set. With `collects_gradients` the rows that are
    read become a leaf with a gradient of its own.
    Row n of `news` is article n. `encode_E` and `cached_R` may hold articles of other batches as well. Without a
    cache plan, `encode_E` is what `gather` finds, less the padding.
    """
    *ids, deliver = _as_tensors(encode_E, cached_R, history_BL, negatives_BLN, deliver_E)
    merged_M, (position_E, position_R, history, negatives) = gather(*ids)
    encode, read = ids[:2]
    assert len(merged_M) == 1 + len(encode) + len(read), "the plan misses articles of the batch, or has some twice"

    encoded = torch.cat([encode, deliver])
    encoded_EH = encoder.encode_text(news.select(encoded)).float()
    device = encoded_EH.device
    news_MH = encoded_EH.new_zeros(len(merged_M), encoded_EH.size(1)).index_copy(
        0, position_E.to(device), encoded_EH[: len(encode)]
    )
    cached_RH = read_leaf(cache, read, encoded_EH, collects_gradients=collects_gradients)
    if len(read):
        news_MH = news_MH.index_copy(0, position_R.to(device), cached_RH)
    return MergedNews(
        ids_M=merged_M,
        news_MD=project_rows(encoder, news_MH, news, merged_M),
        history_BL=history.to(device),
        negatives_BLN=negatives.to(device),
        encoded_E=encoded,
        encoded_EH=encoded_EH,
        cached_R=read,
        cached_RH=cached_RH,
    )


def read_leaf(cache: NewsCache | None, ids_R: Tensor, like_EH: Tensor, *, collects_gradients: bool) -> Tensor:
    """Rows of the cache, cached_RH, on the device of `like_EH`; a leaf that requires gradients if asked for."""
    if not len(ids_R):
        return like_EH.detach()[:0]
    assert cache is not None, "the plan reads from a cache, but there is none"
    return cache.read(ids_R).to(like_EH.device).requires_grad_(collects_gradients)


def project_rows(encoder: NewsEncoder, news_MH: Tensor, news: PackedNews, ids_M: Tensor) -> Tensor:
    """Embeddings news_MD in float32; the first row is padding and stays zero."""
    categories_M = None if news.categories_M is None else news.categories_M[ids_M[1:]]
    projected_MD = encoder.project(news_MH[1:], categories_M).float()
    return nn.functional.pad(projected_MD, (0, 0, 1, 0))


def _as_tensors(*groups: Ids) -> list[Tensor]:
    return [torch.as_tensor(group, dtype=torch.long) for group in groups]
