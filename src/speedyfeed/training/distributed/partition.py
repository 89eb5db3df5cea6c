"""Shares: which news and which users of a batch each rank computes.

    news to encode --partition by tokens--> own news --encode--> own rows --gather--> all rows, on every rank
    users          --partition by clicks--> own users --user model, loss--> gradients, added up once

All ranks know the whole batch and partition it alike: no news is encoded twice, no message is needed. What each
learns from its share adds up to what one process learns from the batch.
"""

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
from speedyfeed.training.losses import Share

PER_USER = ("users_B", "history_BL", "targets_BL", "negatives_BLN", "has_own_negatives_BL")


def balanced_partition(sizes: NDArray[np.integer], num_parts: int) -> list[NDArray[np.int64]]:
    """Rows for each share: as many as the others have, or one less, and as large, up to the largest row.

    Largest first, there and back again:

        sizes 9 8 7 5 4 1, three shares   ->   9 1 | 8 4 | 7 5
    """
    order = np.argsort(-sizes, kind="stable")
    turn, seat = np.divmod(np.arange(len(sizes)), num_parts)
    share = np.where(turn % 2, num_parts - 1 - seat, seat)
    ends = np.bincount(share, minlength=num_parts).cumsum()
    return np.split(order[np.argsort(share, kind="stable")], ends[:-1])


def local_users(batch: Batch, group: ProcessGroup) -> Batch:
    """The batch with this rank's users alone; where there are fewer users than ranks, perhaps one of padding."""
    if group.world == 1:
        return batch
    rows = balanced_partition(np.count_nonzero(batch.history_BL, axis=1), group.world)[group.rank]
    arrays = {name: getattr(batch, name) for name in PER_USER}
    if not len(rows):
        return replace(batch, **{name: np.zeros_like(array[:1]) for name, array in arrays.items()})
    return replace(batch, **{name: array[rows] for name, array in arrays.items()})


def share_of(part: Batch, whole: Batch, fallback_negatives_weight: float) -> Share:
    """How much of the batch the part is, to a loss in which clicks without their own negatives weigh that much."""
    (weight, clicks), (all_weight, all_clicks) = (
        weigh(batch, fallback_negatives_weight) for batch in (part, whole)
    )
    return Share(weight=weight / (all_weight or 1.0), clicks=clicks / all_clicks)


class PartitionedEncoder:
    """Reads news together with the other ranks: each a share, and all get all rows. A `NewsEncoder`."""

    def __init__(self, encoder: NewsModule, group: ProcessGroup) -> None:
        self.project = encoder.project
        self._encoder = encoder
        self._group = group

    def encode_text(self, news: PackedNews) -> Tensor:
        """news_MH; all ranks must give the same news."""
        if not len(news):  # all are cached: there is nothing to tell
            return self._encoder.encode_text(news)
        shares = balanced_partition(news.lengths_M.numpy(), self._group.world)
        own_NH = self._encoder.encode_text(news.select(torch.from_numpy(shares[self._group.rank]))).float()
        rows_MH = self._group.all_gather_rows(own_NH, [len(share) for share in shares])
        return rows_MH[torch.from_numpy(np.argsort(np.concatenate(shares))).to(rows_MH.device)]


def encode_all(encoder: NewsModule, news: PackedNews, group: ProcessGroup, *, report: Report = silent) -> Tensor:
    """As `encoder.encode_all`, every rank a share of the news; all get all rows."""
    if group.world == 1:
        return encoder.encode_all(news, report=report)
    shares = balanced_partition(news.lengths_M.numpy(), group.world)
    own_ND = encoder.encode_all(news.select(torch.from_numpy(shares[group.rank])), report=report)
    news_VD = torch.empty(len(news), encoder.dim)
    news_VD[torch.from_numpy(np.concatenate(shares))] = group.all_gather_rows(
        own_ND, [len(share) for share in shares]
    )
    return news_VD


def weigh(batch: Batch, fallback_negatives_weight: float) -> tuple[float, int]:
    """What the clicks weigh, and how many they are."""
    has_own_negatives = batch.has_own_negatives_BL[batch.targets_BL > 0]
    return float(np.where(has_own_negatives, 1.0, fallback_negatives_weight).sum()), len(has_own_negatives)
