"""Centralized encoding: the distinct news of a batch, each encoded once or read from the cache.

    ids of a batch --gather--> merged_M --read, or cached--> news_MH --project--> news_MD --dispatch--> clicks_BLD

What is cached is what the encoder reads from a text, nearly all of the work. The last layer, from there to the
embedding, is computed for every news of the batch and learns from all of them.

Padding is position 0, a vector of zeros that costs nothing. Tokens are fetched only for the news to be encoded.
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


class NewsEncoder(Protocol):
    """Packed news in, one embedding each out, in two steps; of no news, none."""

    def encode_text(self, news: PackedNews, /) -> Tensor:
        """news_MH"""

    def project(self, news_MH: Tensor, categories_M: Tensor | None, /) -> Tensor:
        """news_MD"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedNews:
    """The distinct news of a batch with their embeddings, and the batch as positions in that list."""

    ids_M: Tensor
    """Sorted news ids, in host memory; the first is padding."""
    news_MD: Tensor
    """Float32 on the encoder's device; row 0 is zero."""
    history_BL: Tensor
    negatives_BLN: Tensor
    encoded_E: Tensor
    """Ids of what was encoded, and `encoded_EH` what was read, without gradient: to be cached after the step."""
    encoded_EH: Tensor


def gather(*groups: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Distinct news of all groups, and each group as positions in that list; padding is always there, at 0.

    [[7, 9], [9, 0]], [4] -> merged [0, 4, 7, 9], positions [[2, 3], [3, 0]], [1]
    """
    padding = groups[0].new_tensor([PAD_NEWS])
    ids = torch.cat([padding, *(group.flatten() for group in groups)])
    merged_M, position = torch.unique(ids, return_inverse=True)
    parts = position[1:].split([group.numel() for group in groups])
    return merged_M, [part.view_as(group) for part, group in zip(parts, groups, strict=True)]


def dispatch(news_MD: Tensor, positions: Tensor) -> Tensor:
    """`news_MD[positions]`: embeddings for every place of the batch; gradients add up per news.

    On CPU the gradient of an embedding lookup takes a third of the time of an indexing's.
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
) -> MergedNews:
    """Encode `encode_E` with gradient and read `cached_R` without; together they must cover the batch.

    Row n of `news` is news n. `encode_E` and `cached_R` may hold news of other batches as well. Without a plan,
    `encode_E` is what `gather` finds, less the padding.
    """
    ids = _as_tensors(encode_E, cached_R, history_BL, negatives_BLN)
    merged_M, (place_E, place_R, history, negatives) = gather(*ids)
    encode, read = ids[:2]
    assert len(merged_M) == 1 + len(encode) + len(read), "the plan leaves out news of the batch, or has some twice"

    encoded_EH = encoder.encode_text(news.select(encode)).float()
    device = encoded_EH.device
    news_MH = encoded_EH.new_zeros(len(merged_M), encoded_EH.size(1)).index_copy(0, place_E.to(device), encoded_EH)
    if len(read):
        assert cache is not None, "the plan reads from a cache, but there is none"
        news_MH = news_MH.index_copy(0, place_R.to(device), cache.read(read).to(device))
    return MergedNews(
        ids_M=merged_M,
        news_MD=project_rows(encoder, news_MH, news, merged_M),
        history_BL=history.to(device),
        negatives_BLN=negatives.to(device),
        encoded_E=encode,
        encoded_EH=encoded_EH.detach(),
    )


def project_rows(encoder: NewsEncoder, news_MH: Tensor, news: PackedNews, ids_M: Tensor) -> Tensor:
    """news_MD in float32; the first row is padding and stays zero."""
    categories_M = None if news.categories_M is None else news.categories_M[ids_M[1:]]
    projected_MD = encoder.project(news_MH[1:], categories_M).float()
    return nn.functional.pad(projected_MD, (0, 0, 1, 0))


def _as_tensors(*groups: Ids) -> list[Tensor]:
    return [torch.as_tensor(group, dtype=torch.long) for group in groups]
