"""Ranking metrics of ragged impressions, by the definitions of MIND; a million impressions take seconds.

    scores  [[.9, .2, .5], [.1, .7]]   labels  [0, 0, 1, 1, 0]   ->   one value per impression, metric by metric

Ties: a metric is its mean over all orders of the candidates that share a score. For AUC that is "a tie counts
half"; MRR and nDCG follow the same rule, so no metric depends on the order in which candidates are listed, and a
model that scores everything alike cannot gain from a log that lists clicks first. Without ties these are exactly
the official formulas.

An impression with unknown labels, or whose candidates are all clicked or all not clicked, has no value (NaN).
Candidates that cannot be scored have score -inf, which ranks them last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.ragged import Ragged

Pool = Literal["split", "day", "all"]
"""Articles that recall searches: candidates of the split, candidates of the impression's day, or all articles."""
CTR_AT = (1, 3, 5, 10)
"""Numbers of first candidates whose click-through rate is measured."""
IN_HISTORY = -1
"""Rank of a click on an article that the user has clicked before: it is not retrieved and does not count."""
RANKING = ("auc", "mrr", "ndcg@5", "ndcg@10", *(f"ctr@{k}" for k in CTR_AT))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingMetrics:
    """Ranking metrics of each impression, and which impressions have none."""

    values: Mapping[str, NDArray[np.float64]]
    """One array per name in `RANKING`; NaN where an impression has no value."""
    is_unlabelled: NDArray[np.bool_]
    """Whether the clicks of an impression are unknown."""
    is_one_class: NDArray[np.bool_]
    """Whether all candidates were clicked or none was; also an impression without candidates."""


def measure_ranking(scores: Ragged, labels: NDArray[np.integer]) -> RankingMetrics:
    """AUC, MRR, nDCG@k and CTR@k of every impression; labels are 1 clicked, 0 not clicked, -1 unknown.

    Each metric sums, over the clicks, a weight that depends on the click's rank alone: the rank itself (AUC),
    1 / rank (MRR), 1 / log2(1 + rank) down to k (nDCG@k; a click's gain 2^1 - 1 is 1), 1 down to k (CTR@k, divided
    by the number of candidates down to k). Under ties a click gets the mean weight of the ranks of its score.
    """
    assert len(scores.values) == len(labels), (len(scores.values), len(labels))
    clicks = _clicks_by_rank(scores, labels == 1)
    lengths = scores.lengths
    num_clicked = np.bincount(clicks.row, minlength=len(scores))
    is_unlabelled = _rows_with(labels < 0, scores.offsets)
    is_one_class = ~is_unlabelled & ((num_clicked == 0) | (num_clicked == lengths))
    scored = ~(is_unlabelled | is_one_class)

    ranks = np.arange(1, lengths.max(initial=0) + 1, dtype=np.float64)
    discounts = 1 / np.log2(ranks + 1)
    clicked, skipped = num_clicked[scored], (lengths - num_clicked)[scored]
    values = {name: np.full(len(scores), np.nan) for name in RANKING}
    # Each unclicked candidate above a click costs a rank: the excess over ranks 1..clicked counts inverted pairs.
    inverted = clicks.total(ranks)[scored] - clicked * (clicked + 1) / 2
    values["auc"][scored] = 1 - inverted / (clicked * skipped)
    values["mrr"][scored] = clicks.total(1 / ranks)[scored] / clicked
    for k in (5, 10):
        weights = np.where(ranks <= k, discounts, 0.0)
        values[f"ndcg@{k}"][scored] = clicks.total(weights)[scored] / _prefix_sums(weights)[clicked]
    for k in CTR_AT:
        num_clicked_k = clicks.total(np.where(ranks <= k, 1.0, 0.0))[scored]
        values[f"ctr@{k}"][scored] = num_clicked_k / np.minimum(k, lengths[scored])
    return RankingMetrics(values=values, is_unlabelled=is_unlabelled, is_one_class=is_one_class)


def measure_recall(found: Ragged, labels: NDArray[np.integer], k: int) -> NDArray[np.float64]:
    """Fraction of each impression's clicks among the first k articles retrieved for its user; NaN without a click.

    `found` is the rank of each candidate among the retrieved articles: 1 is first, 0 is not retrieved. Clicks on
    articles of the user's history (`IN_HISTORY`) do not count.
    """
    row = np.repeat(np.arange(len(found)), found.lengths)
    clicked = (labels == 1) & (found.values != IN_HISTORY)
    hit = clicked & (found.values >= 1) & (found.values <= k)
    num_clicked = np.bincount(row[clicked], minlength=len(found))
    num_hit = np.bincount(row[hit], minlength=len(found))
    recall = np.full(len(found), np.nan)
    np.divide(num_hit, num_clicked, out=recall, where=num_clicked > 0)
    return recall


def measure_targets(found: Ragged, k: int) -> dict[str, NDArray[np.float64]]:
    """Hit and NDCG at k of impressions whose only candidate is the click; `found` is as in `measure_recall`."""
    ranks = np.full(len(found), np.nan)
    has_target = found.lengths == 1
    ranks[has_target] = found.values
    is_hit = np.where(has_target & (ranks != IN_HISTORY), (ranks >= 1) & (ranks <= k), np.nan)
    return {f"hit@{k}": is_hit, f"pool_ndcg@{k}": is_hit / np.log2(np.maximum(ranks, 1) + 1)}


def ranks_of(scores: Ragged) -> NDArray[np.int32]:
    """Rank of each candidate in its impression, 1 is best; ties by the order listed.

    [[.9, .2, .5], [.1, .7]] -> [1, 3, 2, 2, 1]
    """
    lengths = scores.lengths
    ranks = np.empty(len(scores.values), np.int32)
    ranks[best_first(scores)] = np.arange(1, len(ranks) + 1) - np.repeat(scores.offsets[:-1], lengths)
    return ranks


def best_first(scores: Ragged) -> NDArray[np.int64]:
    """Positions of all candidates, impression by impression, best first; ties by the order listed.

    [[.9, .2, .5], [.1, .7]] -> [0, 2, 1, 4, 3]

    Impressions of one length are sorted together as a matrix: five times faster than one sort of them all.
    """
    assert not np.isnan(scores.values).any()
    lengths, starts = scores.lengths, scores.offsets[:-1]
    by_length = np.argsort(lengths, kind="stable")
    order = np.empty(len(scores.values), np.int64)
    for rows in np.split(by_length, np.flatnonzero(np.diff(lengths[by_length])) + 1):
        if len(rows) == 0:
            continue
        positions = starts[rows, None] + np.arange(lengths[rows[0]])
        best = np.argsort(-scores.values[positions], axis=1, kind="stable")
        order[positions] = np.take_along_axis(positions, best, axis=1)
    return order


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clicks:
    """The clicked candidates, best first, and the ranks that each one's score occupies in its impression.

    scores [.9, .5, .5, .2], clicked [0, 1, 0, 1]  ->  row [0, 0]  first [1, 3]  last [3, 4]
    """

    row: NDArray[np.int64]
    first: NDArray[np.int64]
    """Rank of the first candidate with that score, counted from 0."""
    last: NDArray[np.int64]
    """One past the rank of the last; first + 1 without ties."""
    num_rows: int

    def total(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of the weights of each impression's clicks, given by rank and averaged over ties."""
        sums = _prefix_sums(weights)
        mean = (sums[self.last] - sums[self.first]) / (self.last - self.first)
        return np.bincount(self.row, mean, minlength=self.num_rows).astype(np.float64)


def _clicks_by_rank(scores: Ragged, is_clicked: NDArray[np.bool_]) -> _Clicks:
    order = best_first(scores)
    ranked = scores.values[order]
    begins = np.ones(len(ranked), np.bool_)  # where a run of equal scores begins
    begins[1:] = ranked[1:] != ranked[:-1]
    begins[scores.offsets[:-1][scores.lengths > 0]] = True
    bounds = np.append(np.flatnonzero(begins), len(ranked))
    positions = np.flatnonzero(is_clicked[order])
    run = np.searchsorted(bounds, positions, side="right")
    row = np.searchsorted(scores.offsets, positions, side="right") - 1
    offset = scores.offsets[row]
    return _Clicks(row=row, first=bounds[run - 1] - offset, last=bounds[run] - offset, num_rows=len(scores))


def _rows_with(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether any flag of a row is set."""
    sums = _prefix_sums(flags)
    return sums[offsets[1:]] > sums[offsets[:-1]]


def _prefix_sums(values: NDArray[Any]) -> NDArray[Any]:
    """[2, 0, 1] -> [0, 2, 2, 3]"""
    return np.concatenate([[0], np.cumsum(values)])
