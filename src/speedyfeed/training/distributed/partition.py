"""Partition of a batch: which articles and which users each rank computes.

    articles to encode --by tokens--> local articles --encode--> local rows --all-gather--> all rows on every rank
    users              --by clicks--> local users --user encoder, loss--> gradients --all-reduce--> update

All ranks know the whole batch and partition it alike, without communication. Their gradients add up to those of
one process. Shapes: M articles, N local articles, V all articles, H text width, D embedding width.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speedyfeed.batching.batches import Batch
from speedyfeed.models.base import NewsModule
from speedyfeed.models.packed import PackedNews
from speedyfeed.progress import Report, silent
from speedyfeed.training.distributed.process_group import ProcessGroup

PER_USER = ("users_B", "history_BL", "targets_BL", "negatives_BLN", "has_own_negatives_BL")


def balanced_partition(sizes: NDArray[np.integer], num_parts: int) -> list[NDArray[np.int64]]:
    """Rows of each part, so that the parts differ by one row at most, and by the largest row in total size.

    Largest first, in alternating order of the parts:

        sizes 9 8 7 5 4 1, three parts   ->   9 1 | 8 4 | 7 5
    """
    order = np.argsort(-sizes, kind="stable")
    turn, seat = np.divmod(np.arange(len(sizes)), num_parts)
    share = np.where(turn % 2, num_parts - 1 - seat, seat)
    ends = np.bincount(share, minlength=num_parts).cumsum()
    return np.split(order[np.argsort(share, kind="stable")], ends[:-1])


def local_users(batch: Batch, group: ProcessGroup) -> Batch:
    """Batch of the users of this rank alone; one user of padding where this rank has none."""
    if group.world == 1:
        return batch
    rows = balanced_partition(np.count_nonzero(batch.history_BL, axis=1), group.world)[group.rank]
    arrays = {name: getattr(batch, name) for name in PER_USER}
    if not len(rows):
        return replace(batch, **{name: np.zeros_like(array[:1]) for name, array in arrays.items()})
    return replace(batch, **{name: array[rows] for name, array in arrays.items()})


class PartitionedEncoder:
    """`NewsEncoder` that encodes together with the other ranks: each encodes a part, all get all rows."""

    def __init__(self, encoder: NewsModule, group: ProcessGroup) -> None:
        self.project = encoder.project
        self._encoder = encoder
        self._group = group

    def encode_text(self, news: PackedNews) -> Tensor:
        """Encode texts to news_MH; all ranks must pass the same articles."""
        if not len(news):  # all are cache hits: there is nothing to exchange
            return self._encoder.encode_text(news)
        shares = balanced_partition(news.lengths_M.numpy(), self._group.world)
        own_NH = self._encoder.encode_text(news.select(torch.from_numpy(shares[self._group.rank]))).float()
        if torch.is_grad_enabled() and not own_NH.requires_grad:
            own_NH.requires_grad_()  # a rank without a text to encode takes part in the backward pass as well
        rows_MH = self._group.all_gather_rows(own_NH, [len(share) for share in shares])
        return rows_MH[torch.from_numpy(np.argsort(np.concatenate(shares))).to(rows_MH.device)]


def encode_all(encoder: NewsModule, news: PackedNews, group: ProcessGroup, *, report: Report = silent) -> Tensor:
    """Embed all articles with `encoder.encode_all`, each rank a part of them; all get all rows."""
    return _in_parts(lambda part: encoder.encode_all(part, report=report), encoder.dim, news, group)


def encode_texts(encoder: NewsModule, news: PackedNews, group: ProcessGroup, *, report: Report = silent) -> Tensor:
    """Run `encoder.encode_texts` on all articles, each rank on a part of them; all get all rows."""
    return _in_parts(lambda part: encoder.encode_texts(part, report=report), encoder.width, news, group)


def _in_parts(encode: Callable[[PackedNews], Tensor], width: int, news: PackedNews, group: ProcessGroup) -> Tensor:
    if group.world == 1:
        return encode(news)
    shares = balanced_partition(news.lengths_M.numpy(), group.world)
    own_ND = encode(news.select(torch.from_numpy(shares[group.rank])))
    news_VD = torch.empty(len(news), width)
    news_VD[torch.from_numpy(np.concatenate(shares))] = group.all_gather_rows(
        own_ND, [len(share) for share in shares]
    )
    return news_VD
