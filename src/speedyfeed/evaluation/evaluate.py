"""Embeddings and impressions in, a report out: ranking and recall with intervals, overall and by group.

The groups are users with no, few and many clicks, articles that were seen in training or not, and articles
that were clicked there never, rarely or often. Articles are ranked against candidates of their own kind only.

Shapes: V all articles, D embedding width.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import PAD_NEWS, Impressions, Timelines
from speedyfeed.evaluation.bootstrap import RESAMPLES, Bootstrap, Estimate
from speedyfeed.evaluation.metrics import measure_ranking, measure_recall, measure_targets
from speedyfeed.evaluation.ranking import EncodeUsers, Retrieved, score_and_retrieve
from speedyfeed.evaluation.user_dependent import EncodeForUser, score_and_retrieve_user_dependent
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import BuildIndex, Embeddings

RECALL_AT = (20, 50, 100, 200)
"""Numbers of retrieved articles at which recall is measured."""
TARGET_AT = 10
"""Number of retrieved articles at which hit and NDCG are measured, in logs of clicks without impressions."""
FEW_CLICKS = 5
"""Longest history that counts as short, in clicks."""
MANY_CLICKS = 5
"""Fewest clicks in train by which an article counts as clicked often."""

Values = dict[str, NDArray[np.float64]]
"""Value of every impression, by metric; NaN where it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Mean metrics over some impressions, and how many were skipped."""

    metrics: Mapping[str, Estimate]
    """Estimates by name: auc, mrr, ndcg@5, ndcg@10, ctr@1, ctr@3, ctr@5, ctr@10, recall@20, recall@50, recall@100,
    recall@200; also hit@10 and pool_ndcg@10 where every impression is one click and nothing else."""
    num_impressions: int
    """Number of impressions with ranking metrics or, where each is one click and nothing else, with a hit."""
    num_one_class: int
    """Number of impressions skipped because all of several candidates were clicked, or none was."""
    num_unlabelled: int
    """Number of impressions skipped because their clicks are unknown."""
    num_in_history: int = 0
    """Number of single clicks skipped because the user had clicked the article before."""

    def to_json(self) -> dict[str, Any]:
        """Means as fractions and `<key>_ci95` pairs; null where no impression has a value."""
        figures: dict[str, Any] = {}
        for name, found in self.metrics.items():
            figures[name] = _number(found.mean)
            figures[f"{name}_ci95"] = [_number(bound) for bound in found.ci95]
        return figures | {
            "impressions": self.num_impressions,
            "skipped": {
                "one_class": self.num_one_class,
                "unlabelled": self.num_unlabelled,
                "in_history": self.num_in_history,
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Metrics of a split: overall, by group, and for each impression."""

    overall: Summary
    """Metrics over all impressions."""
    groups: Mapping[str, Summary]
    """Metrics by group: `history_*` by length of the history, `news_seen` and `news_unseen`, and `news_clicked_*`
    by clicks on the article in train."""
    retrieved: Retrieved
    """Ranks of the clicked articles among all articles, and facts about the index."""
    num_candidates_without_text: int
    """Number of candidates without text, which are ranked last and never retrieved."""
    values: Values
    """Every metric of every impression, in the order of the log; NaN where it has none. Not in the JSON."""

    def to_json(self) -> dict[str, Any]:
        """Metrics of `overall` at the top level, groups and index under their names."""
        return self.overall.to_json() | {
            "candidates_without_text": self.num_candidates_without_text,
            "groups": {name: group.to_json() for name, group in self.groups.items()},
            "index": {
                **self.retrieved.index_parameters,
                "recall": _number(self.retrieved.index_recall),
                "pools": self.retrieved.num_pools,
                "news_per_pool": self.retrieved.news_per_pool,
                "pool": "all" if self.retrieved.searches_all else "candidates",
                "leaves_out_history": True,
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFacts:
    """What is known of a split beside its impressions: by what they are searched, grouped and resampled."""

    clusters: NDArray[np.integer] | None = None
    """Number of each impression's user: intervals are over users. By default rows of `impressions.histories`, of
    which a user has several where histories grow within the split."""
    seen: NDArray[np.bool_] | None = None
    """Whether each article was seen in training (`seen_in_training`); without it, there are no groups `news_seen`
    and `news_unseen`."""
    train_clicks: NDArray[np.integer] | None = None
    """Number of clicks on each article in training; without it, there are no groups `news_clicked_*`."""
    pools: NDArray[np.integer] | None = None
    """Pool of articles from which the user of each impression is served; by default all candidates of the split
    are one pool."""
    searches_all: bool = False
    """Whether the pool is all articles."""

    def pools_of(self, impressions: Impressions) -> NDArray[np.integer]:
        """Pool of each impression."""
        return np.zeros(len(impressions.users), np.int64) if self.pools is None else self.pools


NO_FACTS = SplitFacts()
"""One pool, intervals over histories, and no groups by article."""


def evaluate(
    impressions: Impressions,
    news_VD: Embeddings,
    encode_users: EncodeUsers,
    rng: np.random.Generator,
    *,
    facts: SplitFacts = NO_FACTS,
    build_index: BuildIndex = HnswIndex.build,
    resamples: int = RESAMPLES,
    report: progress.Report = progress.silent,
) -> Report:
    """Score all candidates, retrieve the clicked articles, and compute metrics; row 0 of `news_VD` is padding."""
    scores, retrieved = score_and_retrieve(
        impressions,
        news_VD,
        encode_users,
        build_index,
        facts.pools_of(impressions),
        searches_all=facts.searches_all,
        report=report,
    )
    return summarise(impressions, scores, retrieved, rng, facts=facts, resamples=resamples)


def evaluate_user_dependent(
    impressions: Impressions,
    encode_for_user: EncodeForUser,
    rng: np.random.Generator,
    *,
    facts: SplitFacts = NO_FACTS,
    resamples: int = RESAMPLES,
    report: progress.Report = progress.silent,
) -> Report:
    """Evaluate a user-dependent model, as `evaluate` does for others; search is exact."""
    scores, retrieved = score_and_retrieve_user_dependent(
        impressions,
        encode_for_user,
        facts.pools_of(impressions),
        searches_all=facts.searches_all,
        report=report,
    )
    return summarise(impressions, scores, retrieved, rng, facts=facts, resamples=resamples)


def summarise(
    impressions: Impressions,
    scores: Ragged,
    retrieved: Retrieved,
    rng: np.random.Generator,
    *,
    facts: SplitFacts,
    resamples: int,
) -> Report:
    """Compute the report from scores and retrieved ranks."""
    are_targets = bool((scores.lengths == 1).all() and (impressions.labels == 1).all())
    users = impressions.users if facts.clusters is None else facts.clusters
    everything = _measure(users, scores, retrieved.found, impressions.labels, are_targets=are_targets)
    groups = {name: _summarise(everything.select(rows), rng, resamples) for name, rows in _by_history(impressions)}
    for name, is_kind in _kinds(facts).items():
        # clicks in train came later: a generator of their own leaves all other intervals as they were
        own_rng = rng.spawn(1)[0] if name.startswith("news_clicked") else rng
        measured = _among(is_kind, users, impressions, scores, retrieved.found, are_targets=are_targets)
        groups[name] = _summarise(measured, own_rng, resamples)
    return Report(
        overall=_summarise(everything, rng, resamples),
        groups=groups,
        retrieved=retrieved,
        num_candidates_without_text=int((impressions.candidates.values == PAD_NEWS).sum()),
        values={**everything.values, **everything.targets},
    )


def seen_in_training(timelines: Timelines, num_news: int) -> NDArray[np.bool_]:
    """Whether each article, 0 to num_news, was clicked in training or shown beside a click."""
    seen = np.zeros(num_news + 1, np.bool_)
    seen[timelines.clicks.values] = True
    seen[timelines.pools.values] = True
    return seen


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """Every metric of every impression, its user, and which impressions were skipped."""

    users: NDArray[np.integer]
    values: Values
    targets: Values
    """Hit and NDCG of the retrieved articles; empty unless every impression is one click and nothing else."""
    is_one_class: NDArray[np.bool_]
    is_unlabelled: NDArray[np.bool_]

    def select(self, rows: NDArray[np.bool_]) -> "_Measured":
        return _Measured(
            users=self.users[rows],
            values={name: values[rows] for name, values in self.values.items()},
            targets={name: values[rows] for name, values in self.targets.items()},
            is_one_class=self.is_one_class[rows],
            is_unlabelled=self.is_unlabelled[rows],
        )


def _measure(
    users: NDArray[np.integer],
    scores: Ragged,
    found: NDArray[np.int32],
    labels: NDArray[np.int8],
    *,
    are_targets: bool,
) -> _Measured:
    ranking = measure_ranking(scores, labels)
    ranks = Ragged(values=found, offsets=scores.offsets)
    recall = {f"recall@{k}": measure_recall(ranks, labels, k) for k in RECALL_AT}
    return _Measured(
        users=users,
        values={**ranking.values, **recall},
        targets=measure_targets(ranks, TARGET_AT) if are_targets else {},
        is_one_class=ranking.is_one_class,
        is_unlabelled=ranking.is_unlabelled,
    )


def _by_history(impressions: Impressions) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Impressions of users with no, few and many clicks."""
    num_clicks = impressions.histories.lengths[impressions.users]
    yield "history_empty", num_clicks == 0
    yield f"history_1_to_{FEW_CLICKS}", (num_clicks > 0) & (num_clicks <= FEW_CLICKS)
    yield f"history_over_{FEW_CLICKS}", num_clicks > FEW_CLICKS


def _kinds(facts: SplitFacts) -> dict[str, NDArray[np.bool_]]:
    """Whether each article is of a kind, by the name of the kind."""
    seen, train_clicks = facts.seen, facts.train_clicks
    kinds = {} if seen is None else {"news_seen": seen, "news_unseen": ~seen}
    if train_clicks is not None:
        kinds |= {
            "news_clicked_0": train_clicks == 0,
            f"news_clicked_1_to_{MANY_CLICKS - 1}": (train_clicks > 0) & (train_clicks < MANY_CLICKS),
            f"news_clicked_{MANY_CLICKS}_up": train_clicks >= MANY_CLICKS,
        }
    return kinds


def _among(
    is_kind: NDArray[np.bool_],
    users: NDArray[np.integer],
    impressions: Impressions,
    scores: Ragged,
    found: NDArray[np.int32],
    *,
    are_targets: bool,
) -> _Measured:
    """Measure the candidates of one kind against each other, in impressions that have any."""
    mask = is_kind[impressions.candidates.values] & (impressions.candidates.values != PAD_NEWS)
    offsets = np.concatenate([[0], np.cumsum(mask)])
    selected = Ragged(values=scores.values[mask], offsets=offsets[scores.offsets])
    measured = _measure(users, selected, found[mask], impressions.labels[mask], are_targets=are_targets)
    return measured.select(selected.lengths > 0)


def _summarise(measured: _Measured, rng: np.random.Generator, resamples: int) -> Summary:
    skipped = measured.is_one_class | measured.is_unlabelled
    drawn = Bootstrap(measured.users, rng, resamples)
    metrics = {name: drawn.estimate(values) for name, values in (measured.values | measured.targets).items()}
    num_unlabelled = int(measured.is_unlabelled.sum())
    if measured.targets:
        num_scored = metrics[f"hit@{TARGET_AT}"].num_impressions
        return Summary(
            metrics=metrics,
            num_impressions=num_scored,
            num_one_class=0,
            num_unlabelled=num_unlabelled,
            num_in_history=len(skipped) - num_scored - num_unlabelled,
        )
    return Summary(
        metrics=metrics,
        num_impressions=int((~skipped).sum()),
        num_one_class=int(measured.is_one_class.sum()),
        num_unlabelled=num_unlabelled,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
