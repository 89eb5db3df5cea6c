"""From a batch to its loss: the fast workflow, the conventional one, and anything between.

    ids --encode: each distinct news once, or every place--> embeddings --user--> users before each click --> loss

What is fast about it is a switch each: `batch.central`, `batch.autoregressive`, `batch.size` (dynamic batching),
`cache.gamma` (cache), `batch.mode` (packing), `news.segments` (BusLM), and `prepare --refine`. With dropout off,
none changes the loss of a click but those that change what is encoded (BusLM, refinement) and the cache, whose
rows are some steps old.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from speedyfeed.batching.batches import Batch, BatchConfig
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import MergedNews, dispatch, encode_merged
from speedyfeed.encoding.in_place import encode_places
from speedyfeed.errors import InputError
from speedyfeed.models.base import NewsModule
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.recommender import RecommenderModule
from speedyfeed.training.distributed.partition import PartitionedEncoder, local_users, share_of
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.losses import ClickLoss, LossConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLoss:
    """What a batch gives: its loss, and fresh rows to be cached once it is learned from."""

    loss: Tensor
    merged: MergedNews


class Workflow:
    """How the batches of one config become losses."""

    def __init__(
        self,
        model: RecommenderModule,
        loss: ClickLoss,
        news: PackedNews,
        cache: NewsCache | None,
        log_popularity_V: Tensor,
        config: BatchConfig,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """Row n of `news` is news n."""
        check_workflow(model, loss.config, config, is_cached=cache is not None, world=group.world)
        self._model = model
        self._loss = loss
        self._cache = cache
        self._log_popularity_V = log_popularity_V
        self._config = config
        self._group = group
        self._encoder = PartitionedEncoder(model.news, group) if config.central and group.world > 1 else model.news
        self._news = replace(news, pad_to=_pad_to(model.news, news, config))

    def __call__(self, whole: Batch) -> BatchLoss:
        """The loss of a batch; with several ranks, this one's part of it: they add up."""
        batch = local_users(whole, self._group)
        user_ids_B = self._user_ids(batch)
        # Of one click an instance, the click is a candidate like its negatives; else it is in the history already.
        shown_BLC = batch.negatives_BLN
        if not self._config.autoregressive:
            shown_BLC = np.concatenate([batch.targets_BL[..., None], batch.negatives_BLN], -1)
        merged = self._encode(batch, shown_BLC, user_ids_B)
        users_BPD = self._model.user(
            dispatch(merged.news_MD, merged.history_BL), merged.history_BL > 0, user_ids_B
        )
        if self._config.autoregressive:
            users_BLD, targets_BL, negatives_BLN = users_BPD[:, :-1], merged.history_BL, merged.negatives_BLN
        else:
            users_BLD = users_BPD[:, -1:]
            targets_BL, negatives_BLN = merged.negatives_BLN[..., 0], merged.negatives_BLN[..., 1:]
        device = merged.news_MD.device
        loss = self._loss(
            users_BLD,
            merged.news_MD,
            targets_BL,
            negatives_BLN,
            torch.as_tensor(batch.has_own_negatives_BL, device=device),
            self._log_popularity_V[merged.ids_M].to(device),
            share_of(batch, whole, self._loss.fallback_negatives_weight),
        )
        return BatchLoss(loss=loss, merged=merged)

    def _encode(self, batch: Batch, shown_BLC: np.ndarray, user_ids_B: Tensor | None) -> MergedNews:
        if self._config.central:
            return encode_merged(
                self._encoder,
                self._news,
                self._cache,
                history_BL=batch.history_BL,
                negatives_BLN=shown_BLC,
                encode_E=batch.encode_E,
                cached_R=self._own_hits(batch, shown_BLC),
            )
        return encode_places(
            self._encoder,
            self._news,
            self._cache,
            history_BL=batch.history_BL,
            negatives_BLN=shown_BLC,
            cached_R=batch.cached_R,
            user_ids_B=user_ids_B,
        )

    def _own_hits(self, batch: Batch, shown_BLC: np.ndarray) -> np.ndarray:
        """What this rank's users need from the cache; the in-batch loss meets every news of the batch."""
        if self._group.world == 1 or self._loss.config.in_batch:
            return batch.cached_R
        needed = np.concatenate([batch.history_BL.ravel(), shown_BLC.ravel()])
        return np.intersect1d(batch.cached_R, needed)

    def _user_ids(self, batch: Batch) -> Tensor | None:
        """Who the users are, some of them taken for unknown users."""
        if not self._model.config.uses_user_ids:
            return None
        user_ids_B = 1 + torch.from_numpy(batch.users_B)
        if self._model.training:
            user_ids_B[torch.rand(len(user_ids_B)) < self._model.config.user.id_dropout] = 0
        return user_ids_B


def check_workflow(
    model: RecommenderModule, loss: LossConfig, config: BatchConfig, *, is_cached: bool, world: int = 1
) -> None:
    """Refuse what cannot be computed, or would be computed wrongly."""
    if model.news.is_user_dependent and (config.central or is_cached):
        raise InputError(
            f"encoder {model.config.news.encoder!r} makes another embedding of a news for every user: none can "
            "be shared or cached; add --workflow conventional"
        )
    if loss.in_batch and not (config.central and config.autoregressive):
        raise InputError(
            "the in-batch loss tells a click from all distinct news of a batch and knows the user's other clicks: "
            "it needs batch.central and batch.autoregressive; set loss.in-batch 0"
        )
    if world > 1 and is_cached and not config.central:
        raise InputError(
            "without batch.central ranks do not tell each other what they encoded, so they have no cache: set "
            "cache.gamma 0, or train in one process"
        )


def _pad_to(encoder: NewsModule, news: PackedNews, config: BatchConfig) -> int | None:
    """Tokens that sequences are padded to: None for no padding, 0 for the longest beside them."""
    longest = int((news.lengths_M if encoder.joins else news.lengths_K).max())
    if encoder.max_tokens is not None and longest > encoder.max_tokens:
        raise InputError(
            f"the longest news has {longest} tokens as one sequence, but this encoder reads {encoder.max_tokens}: "
            "prepare the log with fewer segments or shorter ones"
        )
    if config.mode == "packed":
        return None
    return longest if config.size else 0
