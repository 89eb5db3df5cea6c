"""Embeddings and impressions in, a report out: ranking and recall with intervals, overall and for groups.

The groups tell where a model earns its figures: users with no, few and many clicks; news that training has seen
and news it has not (only the candidates of that kind are ranked against each other).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import PAD_NEWS, Impressions, Timelines
from speedyfeed.evaluation.bootstrap import RESAMPLES, Estimate, estimate
from speedyfeed.evaluation.metrics import measure_ranking, measure_recall
from speedyfeed.evaluation.ranking import EncodeUsers, Retrieved, score_and_retrieve
from speedyfeed.evaluation.user_dependent import EncodeForUser, score_and_retrieve_user_dependent
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import BuildIndex, Embeddings

RECALL_AT = (50, 100, 200)
FEW_CLICKS = 5

Values = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Means over some impressions."""

    metrics: Mapping[str, Estimate]
    """By name: auc, mrr, ndcg@5, ndcg@10, recall@50, recall@100, recall@200."""
    num_impressions: int
    """Those with a ranking score."""
    num_one_class: int
    """Skipped: all candidates clicked, or all skipped."""
    num_unlabelled: int
    """Skipped: labels unknown."""

    def to_json(self) -> dict[str, Any]:
        """Fractions and `<key>_ci95` pairs; null where there is nothing to take a mean of."""
        figures: dict[str, Any] = {}
        for name, found in self.metrics.items():
            figures[name] = _number(found.mean)
            figures[f"{name}_ci95"] = [_number(bound) for bound in found.ci95]
        return figures | {
            "impressions": self.num_impressions,
            "skipped": {"one_class": self.num_one_class, "unlabelled": self.num_unlabelled},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How well a split was ranked."""

    overall: Summary
    groups: Mapping[str, Summary]
    retrieved: Retrieved
    num_candidates_without_text: int
    """Ranked last, and never retrieved."""
    values: Values
    """Every metric of every impression, in the order of the log; NaN where it has none. Not part of the JSON."""

    def to_json(self) -> dict[str, Any]:
        """The figures of `overall` at the top, groups and the index below."""
        return self.overall.to_json() | {
            "candidates_without_text": self.num_candidates_without_text,
            "groups": {name: group.to_json() for name, group in self.groups.items()},
            "index": {
                **self.retrieved.index_parameters,
                "recall": _number(self.retrieved.index_recall),
                "pools": self.retrieved.num_pools,
                "news_per_pool": self.retrieved.news_per_pool,
            },
        }


def evaluate(
    impressions: Impressions,
    news_VD: Embeddings,
    encode_users: EncodeUsers,
    rng: np.random.Generator,
    *,
    seen: NDArray[np.bool_] | None = None,
    pools: NDArray[np.integer] | None = None,
    build_index: BuildIndex = HnswIndex.build,
    resamples: int = RESAMPLES,
    report: progress.Report = progress.silent,
) -> Report:
    """Rank and retrieve every impression with these embeddings; row 0 of `news_VD` is padding.

    `seen` says of each news whether training met it (`seen_in_training`); without it those groups are left out.
    `pools` numbers the pool from which each impression's user is served; by default all candidates of the
    split are one pool.
    """
    if pools is None:
        pools = np.zeros(len(impressions.users), np.int64)
    scores, retrieved = score_and_retrieve(impressions, news_VD, encode_users, build_index, pools, report=report)
    return summarise(impressions, scores, retrieved, rng, seen=seen, resamples=resamples)


def evaluate_user_dependent(
    impressions: Impressions,
    encode_for_user: EncodeForUser,
    rng: np.random.Generator,
    *,
    seen: NDArray[np.bool_] | None = None,
    pools: NDArray[np.integer] | None = None,
    resamples: int = RESAMPLES,
    report: progress.Report = progress.silent,
) -> Report:
    """The same where every user has embeddings of their own: all candidates of a pool are searched exactly."""
    if pools is None:
        pools = np.zeros(len(impressions.users), np.int64)
    scores, retrieved = score_and_retrieve_user_dependent(impressions, encode_for_user, pools, report=report)
    return summarise(impressions, scores, retrieved, rng, seen=seen, resamples=resamples)


def summarise(
    impressions: Impressions,
    scores: Ragged,
    retrieved: Retrieved,
    rng: np.random.Generator,
    *,
    seen: NDArray[np.bool_] | None,
    resamples: int,
) -> Report:
    """The report of scores and of what was found, wherever they come from."""
    everything = _measure(scores, retrieved.found, impressions.labels)
    groups = {
        name: _summarise(measured, rng, resamples)
        for name, measured in _groups(impressions, scores, retrieved.found, everything, seen)
    }
    return Report(
        overall=_summarise(everything, rng, resamples),
        groups=groups,
        retrieved=retrieved,
        num_candidates_without_text=int((impressions.candidates.values == PAD_NEWS).sum()),
        values=everything.values,
    )


def seen_in_training(timelines: Timelines, num_news: int) -> NDArray[np.bool_]:
    """Of news 0 to num_news, which were clicked in training or skipped beside a click."""
    seen = np.zeros(num_news + 1, np.bool_)
    seen[timelines.clicks.values] = True
    seen[timelines.pools.values] = True
    return seen


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """Every metric of every impression, and why some have none."""

    values: Values
    is_one_class: NDArray[np.bool_]
    is_unlabelled: NDArray[np.bool_]

    def of(self, rows: NDArray[np.bool_]) -> "_Measured":
        return _Measured(
            values={name: values[rows] for name, values in self.values.items()},
            is_one_class=self.is_one_class[rows],
            is_unlabelled=self.is_unlabelled[rows],
        )


def _measure(scores: Ragged, found: NDArray[np.int32], labels: NDArray[np.int8]) -> _Measured:
    ranking = measure_ranking(scores, labels)
    places = Ragged(values=found, offsets=scores.offsets)
    recall = {f"recall@{k}": measure_recall(places, labels, k) for k in RECALL_AT}
    return _Measured(
        values={**ranking.values, **recall},
        is_one_class=ranking.is_one_class,
        is_unlabelled=ranking.is_unlabelled,
    )


def _groups(
    impressions: Impressions,
    scores: Ragged,
    found: NDArray[np.int32],
    everything: _Measured,
    seen: NDArray[np.bool_] | None,
) -> Iterator[tuple[str, _Measured]]:
    num_clicks = impressions.histories.lengths[impressions.users]
    few = (num_clicks > 0) & (num_clicks <= FEW_CLICKS)
    yield "history_empty", everything.of(num_clicks == 0)
    yield f"history_1_to_{FEW_CLICKS}", everything.of(few)
    yield f"history_over_{FEW_CLICKS}", everything.of(num_clicks > FEW_CLICKS)
    if seen is None:
        return
    for name, is_kind in (("news_seen", seen), ("news_unseen", ~seen)):
        keep = is_kind[impressions.candidates.values] & (impressions.candidates.values != PAD_NEWS)
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        kept = Ragged(values=scores.values[keep], offsets=kept_before[scores.offsets])
        measured = _measure(kept, found[keep], impressions.labels[keep])
        yield name, measured.of(kept.lengths > 0)


def _summarise(measured: _Measured, rng: np.random.Generator, resamples: int) -> Summary:
    skipped = measured.is_one_class | measured.is_unlabelled
    return Summary(
        metrics={name: estimate(values, rng, resamples) for name, values in measured.values.items()},
        num_impressions=int((~skipped).sum()),
        num_one_class=int(measured.is_one_class.sum()),
        num_unlabelled=int(measured.is_unlabelled.sum()),
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
