"""The validation sample: impressions of the validation split that are ranked during training.

Training opens no other held-out split, so what it chooses does not depend on what it is evaluated on. In a log of
clicks without impressions, each click is ranked among articles that others of the sample clicked.

Shapes: M articles of the sample, V those and padding, D embedding width.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speedyfeed.data.store import PAD_NEWS, Impressions, Store
from speedyfeed.encoding.histories import history_encoder, user_dependent_encoder
from speedyfeed.encoding.ids import user_indices
from speedyfeed.evaluation.metrics import measure_ranking
from speedyfeed.evaluation.ranking import add_biases, is_in_history, score_candidates
from speedyfeed.evaluation.user_dependent import score_and_retrieve_user_dependent
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.models.packed import PackedNews
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import Report, silent
from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.runtime import Precision
from speedyfeed.training.config import TrainConfig
from speedyfeed.training.distributed.partition import encode_all
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup

log = logging.getLogger(__name__)

NUM_OTHERS = 50
"""Number of other articles that a click without an impression is ranked among."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSample:
    """Sampled impressions of the validation split and the articles needed to rank them."""

    impressions: Impressions
    """Impressions whose articles are positions in `news` plus one; 0 has no text."""
    news: NDArray[np.int64]
    """Sorted ids of the articles of the sample."""
    user_ids: NDArray[np.int64]
    """Model id of each user of the sample; 0 is unknown."""

    @classmethod
    def of(
        cls, store: Store, config: TrainConfig, id_maps: IdMaps, *, max_clicks: int | None = None
    ) -> "ValidationSample | None":
        """Sample of a store; None without a usable validation split, or in a run without validations.

        Histories have their latest `max_clicks`, if given: those that the model reads.
        """
        if not config.validations:
            return None
        if "valid" not in store.splits:
            _say_without(store, "has no validation split")
            return None
        valid = store.impressions("valid")
        rng = np.random.default_rng(config.seed)
        has_both = _has_both(valid)
        telling = np.flatnonzero(has_both if has_both.any() else _is_new_click(valid))
        if not len(telling):
            _say_without(store, "no validation impression has both clicked and other articles")
            return None
        num_rows = min(config.validation_impressions, len(telling))
        rows = telling[np.sort(rng.choice(len(telling), num_rows, replace=False))]
        candidates = valid.candidates.take(rows)
        labels = Ragged(values=valid.labels, offsets=valid.candidates.offsets).take(rows)
        if not has_both.any():
            if len(np.unique(candidates.values)) < 2:
                _say_without(store, "all validation clicks are on one article")
                return None
            candidates, labels = _among_others(candidates.values, valid.histories.take(valid.users[rows]), rng)
            if candidates.lengths.max() < 2:
                _say_without(store, "every user of the validation sample has clicked all its other articles")
                return None
        users, user_rows = np.unique(valid.users[rows], return_inverse=True)
        histories = valid.histories.take(users).tails(max_clicks)
        news = np.unique(np.concatenate([[0], candidates.values, histories.values]))
        return cls(
            impressions=Impressions(
                candidates=Ragged(values=np.searchsorted(news, candidates.values), offsets=candidates.offsets),
                labels=labels.values,
                users=user_rows,
                histories=Ragged(values=np.searchsorted(news, histories.values), offsets=histories.offsets),
            ),
            news=news[1:],
            user_ids=user_indices(store, "valid", id_maps)[users],
        )

    def measure(
        self,
        model: Recommender,
        news: PackedNews,
        precision: Precision,
        group: ProcessGroup = SINGLE_PROCESS,
        report: Report = silent,
        *,
        biases_V: Tensor | None = None,
    ) -> float:
        """Mean AUC of the sample; ranks share the encoding, in the precision of training.

        `biases_V` of all articles, if given, are added to the scores.
        """
        if model.news.is_user_dependent:
            padded = news.select(torch.from_numpy(np.concatenate([[PAD_NEWS], self.news])))
            pools = np.zeros(len(self.impressions.users), np.int64)
            scores, _ = score_and_retrieve_user_dependent(
                self.impressions, user_dependent_encoder(model, padded, self.user_ids), pools
            )
            return self._mean_auc(scores)
        with precision.autocast():
            news_MD = encode_all(model.news, self.select(news), group, report=report)
        return self.measure_encoded(model, news_MD, biases_V)

    def select(self, news: PackedNews) -> PackedNews:
        """Articles of the sample."""
        return news.select(torch.from_numpy(self.news))

    def measure_encoded(self, model: Recommender, news_MD: Tensor, biases_V: Tensor | None = None) -> float:
        """Mean AUC of the sample, given embeddings of the articles that `select` returns."""
        padded_MD = torch.nn.functional.pad(news_MD, (0, 0, 1, 0))
        news, encode_users = padded_MD.numpy(), history_encoder(model, padded_MD, self.user_ids)
        if biases_V is not None:
            biases = biases_V.numpy()[np.append(PAD_NEWS, self.news)]
            news, encode_users = add_biases(news, encode_users, biases)
        return self._mean_auc(score_candidates(self.impressions, news, encode_users))

    def _mean_auc(self, scores: Ragged) -> float:
        return float(np.nanmean(measure_ranking(scores, self.impressions.labels).values["auc"]))


def _say_without(store: Store, reason: str) -> None:
    """Say why a run has no validations."""
    log.warning("%s: %s: training without validations", store.path, reason)


def _has_both(shown: Impressions) -> NDArray[np.bool]:
    """Whether each impression has both clicked and other articles, so that its AUC is defined."""
    has_both = shown.candidates.lengths > 0
    starts = shown.candidates.offsets[:-1][has_both]
    if len(starts):
        labels = [np.logical_or.reduceat(shown.labels == label, starts) for label in (0, 1)]
        has_both[has_both] = labels[0] & labels[1]
    return has_both


def _is_new_click(shown: Impressions) -> NDArray[np.bool]:
    """Whether each impression is one click on an article with text, new to its user, and nothing else."""
    is_click: NDArray[np.bool] = shown.candidates.lengths == 1
    positions = shown.candidates.offsets[:-1][is_click]
    news = shown.candidates.values[positions]
    is_known = is_in_history(shown.histories, shown.users[is_click], news)
    is_click[is_click] = (shown.labels[positions] == 1) & (news != PAD_NEWS) & ~is_known
    return is_click


def _among_others(
    clicks: NDArray[np.integer], histories: Ragged, rng: np.random.Generator
) -> tuple[Ragged, Ragged]:
    """Candidates and labels: each click, then some of all articles clicked, less those of the click's history."""
    pool = np.unique(clicks)
    chosen = rng.integers(len(pool) - 1, size=(len(clicks), min(NUM_OTHERS, len(pool) - 1)))
    # The pool contains the click: choose among one less, and skip it.
    others = pool[chosen + (chosen >= np.searchsorted(pool, clicks)[:, None])]
    candidates = np.column_stack([clicks, others])
    rows = np.repeat(np.arange(len(clicks)), candidates.shape[1])
    is_new = ~is_in_history(histories, rows, candidates.ravel())
    offsets = offsets_of(np.bincount(rows[is_new], minlength=len(clicks)))
    is_clicked = np.zeros_like(candidates, np.int8)
    is_clicked[:, 0] = 1
    return (
        Ragged(values=candidates.ravel()[is_new], offsets=offsets),
        Ragged(values=is_clicked.ravel()[is_new], offsets=offsets),
    )
