"""The workflow from a batch to its loss: fast, conventional, and anything between.

    ids --encode: each distinct article, or every position--> embeddings --user--> users before each click --> loss

Each acceleration is a switch: `batch.central`, `batch.autoregressive`, `batch.size` (dynamic batching),
`cache.gamma` (cache), `batch.mode` (packing), `news.segments` (BusLM), and `prepare --refine`. Without dropout,
they do not change the loss of a click, except BusLM and refinement, which change the encoded text, and the cache,
whose rows are some steps old.
Shapes: B users, L clicks, P prefixes of a history, N negatives, C candidates, M distinct articles, E encoded
articles, V all articles, D embedding width.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from speedyfeed.batching.batches import Batch, BatchConfig
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import MergedNews, dispatch, encode_merged
from speedyfeed.encoding.in_place import encode_in_place
from speedyfeed.errors import InputError
from speedyfeed.models.base import NewsModule
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.recommender import RecommenderModule
from speedyfeed.training.config import LossConfig
from speedyfeed.training.distributed.partition import PartitionedEncoder, local_users
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.losses import ClickLoss, Share


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLoss:
    """Loss of a batch, and its freshly encoded articles for the cache."""

    loss: Tensor
    merged: MergedNews


class Workflow:
    """Computes the loss of batches made with one `BatchConfig`."""

    def __init__(
        self,
        model: RecommenderModule,
        loss: ClickLoss,
        news: PackedNews,
        cache: NewsCache | None,
        log_popularity_V: Tensor,
        config: BatchConfig,
        group: ProcessGroup = SINGLE_PROCESS,
        *,
        collects_gradients: bool = False,
    ) -> None:
        """Refuse settings that cannot work together. Row n of `news` is article n."""
        check_workflow(model, loss.config, config, is_cached=cache is not None, world=group.world)
        self._model = model
        self._loss = loss
        self._cache = cache
        self._log_popularity_V = log_popularity_V
        self._config = config
        self._group = group
        self._collects_gradients = collects_gradients
        self._encoder = PartitionedEncoder(model.news, group) if config.central and group.world > 1 else model.news
        self._news = replace(news, pad_to=_pad_to(model.news, news, config))

    def __call__(self, whole: Batch) -> BatchLoss:
        """Loss of a batch; with several ranks, this rank's part of it: the parts add up."""
        batch = local_users(whole, self._group)
        user_ids_B = self._user_ids(batch)
        # Without autoregressive training the target is encoded with its negatives; else it is in the history.
        shown_BLC = batch.negatives_BLN
        if not self._config.autoregressive:
            shown_BLC = np.concatenate([batch.targets_BL[..., None], batch.negatives_BLN], -1)
        merged = self._encode(batch, shown_BLC, user_ids_B)
        users = self._model.encode_prefixes(
            dispatch(merged.news_MD, merged.history_BL), merged.history_BL > 0, user_ids_B
        )
        if self._config.autoregressive:
            users = users.prefixes(slice(None, -1))
            targets_BL, negatives_BLN = merged.history_BL, merged.negatives_BLN
            if not self._config.first_click:
                targets_BL = nn.functional.pad(targets_BL[:, 1:], (1, 0))
        else:
            users = users.prefixes(slice(-1, None))
            targets_BL, negatives_BLN = merged.negatives_BLN[..., 0], merged.negatives_BLN[..., 1:]
        device = merged.news_MD.device
        loss = self._loss(
            users,
            merged.news_MD,
            targets_BL,
            negatives_BLN,
            torch.as_tensor(batch.has_own_negatives_BL, device=device),
            merged.ids_M,
            self._log_popularity_V[merged.ids_M].to(device),
            share_of(batch, whole, self._loss.fallback_negatives_weight),
        )
        return BatchLoss(loss=loss, merged=merged)

    def encode_text(self, ids_E: Tensor) -> Tensor:
        """Encode the texts of articles that are in no batch, encoded_EH; all ranks must pass the same ones."""
        return self._encoder.encode_text(self._news.select(ids_E)).float()

    def _encode(self, batch: Batch, shown_BLC: np.ndarray, user_ids_B: Tensor | None) -> MergedNews:
        if self._config.central:
            return encode_merged(
                self._encoder,
                self._news,
                self._cache,
                history_BL=batch.history_BL,
                negatives_BLN=shown_BLC,
                encode_E=batch.encode_E,
                deliver_E=batch.deliver_E,
                cached_R=self._own_hits(batch, shown_BLC),
                collects_gradients=self._collects_gradients,
            )
        return encode_in_place(
            self._encoder,
            self._news,
            self._cache,
            history_BL=batch.history_BL,
            negatives_BLN=shown_BLC,
            cached_R=batch.cached_R,
            deliver_E=batch.deliver_E,
            user_ids_B=user_ids_B,
            collects_gradients=self._collects_gradients,
        )

    def _own_hits(self, batch: Batch, shown_BLC: np.ndarray) -> np.ndarray:
        """Cache hits that the users of this rank need; the in-batch loss needs all of the batch."""
        if self._group.world == 1 or self._loss.in_batch:
            return batch.cached_R
        needed = np.concatenate([batch.history_BL.ravel(), shown_BLC.ravel()])
        return np.intersect1d(batch.cached_R, needed)

    def _user_ids(self, batch: Batch) -> Tensor | None:
        """Model ids of the users, some of them hidden in training; None if the model uses no ids."""
        if not self._model.config.uses_user_ids:
            return None
        user_ids_B = 1 + torch.from_numpy(batch.users_B)
        if self._model.training:
            user_ids_B[torch.rand(len(user_ids_B)) < self._model.config.user.id_dropout] = 0
        return user_ids_B


def check_workflow(
    model: RecommenderModule, loss: LossConfig, config: BatchConfig, *, is_cached: bool, world: int = 1
) -> None:
    """Refuse settings that cannot work together."""
    if model.news.is_user_dependent and (config.central or is_cached):
        raise InputError(
            f"encoder {model.config.news.encoder!r} embeds an article differently for every user: nothing can "
            "be shared or cached; add --workflow conventional"
        )
    if model.config.user.sharpness and model.config.user.name == "attentive" and not model.config.has_unit_norm:
        raise InputError(
            f"user.sharpness {model.config.user.sharpness} compares articles with single clicks, which needs "
            "embeddings of unit norm: set user.sharpness 0, or leave out news.no-normalize"
        )
    if loss.in_batch and not (config.central and config.autoregressive):
        raise InputError(
            "the in-batch loss compares a click with all distinct articles of a batch: it needs batch.central and "
            "batch.autoregressive; set loss.in-batch 0"
        )
    if loss.in_batch and not config.first_click:
        raise InputError(
            "the in-batch loss learns from every click of a history, the first one included: set loss.in-batch 0, "
            "or leave out batch.no-first-click"
        )
    if world > 1 and is_cached and not config.central:
        raise InputError(
            "without batch.central ranks do not exchange what they encode, so they have no common cache: set "
            "cache.gamma 0, or train in one process"
        )


def _pad_to(encoder: NewsModule, news: PackedNews, config: BatchConfig) -> int | None:
    """Length in tokens that sequences are padded to: None for no padding, 0 for the longest of the batch."""
    longest = int((news.lengths_M if encoder.joins else news.lengths_K).max())
    if encoder.max_tokens is not None and longest > encoder.max_tokens:
        raise InputError(
            f"the longest article has {longest} tokens as one sequence, but this encoder reads "
            f"{encoder.max_tokens}: prepare the log with fewer segments or shorter ones"
        )
    if config.mode == "packed":
        return None
    return longest if config.size else 0


def share_of(part: Batch, whole: Batch, fallback_negatives_weight: float) -> Share:
    """Share of a part in the whole batch, given the weight of clicks with fallback negatives."""
    (weight, clicks), (all_weight, all_clicks) = (
        weigh(batch, fallback_negatives_weight) for batch in (part, whole)
    )
    return Share(weight=weight / (all_weight or 1.0), clicks=clicks / all_clicks)


def weigh(batch: Batch, fallback_negatives_weight: float) -> tuple[float, int]:
    """Summed weight of the clicks of a batch, and their number."""
    has_own_negatives = batch.has_own_negatives_BL[batch.targets_BL > 0]
    return float(np.where(has_own_negatives, 1.0, fallback_negatives_weight).sum()), len(has_own_negatives)
