"""Encoding in place, as the conventional workflow does it: the slow twin of centralized encoding.

    history of a batch   7 9 0      all six positions are encoded: 9 twice, and padding too
                         9 0 0

Every position may know its user, which user-dependent encoders need.
Shapes: B users, L clicks, N negatives, P positions, M articles, E encoded, R cache hits, H text width, D embedding
width.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from speedyfeed.data.store import PAD_NEWS
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import NO_IDS, Ids, MergedNews, NewsEncoder, project_rows, read_leaf
from speedyfeed.models.packed import PackedNews


def encode_in_place(
    encoder: NewsEncoder,
    news: PackedNews,
    cache: NewsCache | None,
    *,
    history_BL: Ids,
    negatives_BLN: Ids,
    cached_R: Ids,
    deliver_E: Ids = NO_IDS,
    user_ids_B: Tensor | None = None,
    collects_gradients: bool = False,
) -> MergedNews:
    """Encode every position of the batch; `MergedNews` has a row for each, after one of zeros for padding.

    Cache hits are read as often as they occur. `deliver_E` are encoded as well, but have no row. `user_ids_B` are
    the users of the rows of the batch. With `collects_gradients` all positions of an article share its first row.
    """
    groups = [torch.as_tensor(group, dtype=torch.long) for group in (history_BL, negatives_BLN)]
    ids_P = torch.cat([group.flatten() for group in groups])
    is_cache_hit_P = torch.isin(ids_P, torch.as_tensor(cached_R, dtype=torch.long))
    encode, read = (~is_cache_hit_P).nonzero().squeeze(1), is_cache_hit_P.nonzero().squeeze(1)
    chosen = replace(news.select(ids_P[encode]), ids_M=None)  # nothing is shared between positions
    if user_ids_B is not None:
        rows = [user_ids_B.repeat_interleave(group[0].numel()) for group in groups]
        chosen = replace(chosen, user_ids_M=torch.cat(rows)[encode])
    encoded_EH = encoder.encode_text(chosen).float()
    device = encoded_EH.device
    fresh_E, first_E, rank_E = np.unique(ids_P[encode].numpy(), return_index=True, return_inverse=True)
    is_news_E = fresh_E != PAD_NEWS
    fresh, fresh_EH = (
        torch.from_numpy(fresh_E[is_news_E]),
        encoded_EH[torch.from_numpy(first_E[is_news_E]).to(device)],
    )
    if len(deliver_E):
        deliver = torch.as_tensor(deliver_E, dtype=torch.long)
        fresh = torch.cat([fresh, deliver])
        fresh_EH = torch.cat([fresh_EH, encoder.encode_text(news.select(deliver)).float()])
    if collects_gradients:
        # All gradient of an article arrives in its one row of `encoded_EH`, where the caller may change it.
        rank = torch.from_numpy(rank_E + is_news_E.all()).to(device)
        encoded_EH = nn.functional.pad(fresh_EH, (0, 0, 1, 0))[rank]
    news_MH = encoded_EH.new_zeros(1 + len(ids_P), encoded_EH.size(1))
    news_MH = news_MH.index_copy(0, 1 + encode.to(device), encoded_EH)
    cached_RH = read_leaf(cache, ids_P[read], encoded_EH, collects_gradients=collects_gradients)
    if len(read):
        news_MH = news_MH.index_copy(0, 1 + read.to(device), cached_RH)

    position_P = torch.where(ids_P == PAD_NEWS, 0, torch.arange(1, len(ids_P) + 1))
    history, negatives = (
        part.view_as(group).to(device)
        for part, group in zip(position_P.split([group.numel() for group in groups]), groups, strict=True)
    )
    ids_M = torch.cat([torch.tensor([PAD_NEWS]), ids_P])
    return MergedNews(
        ids_M=ids_M,
        news_MD=project_rows(encoder, news_MH, news, ids_M),
        history_BL=history,
        negatives_BLN=negatives,
        encoded_E=fresh,
        encoded_EH=fresh_EH,
        cached_R=ids_P[read],
        cached_RH=cached_RH,
    )
