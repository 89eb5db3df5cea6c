import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from speedyfeed.evaluation.metrics import RANKING, best_first, measure_ranking, measure_recall, ranks_of
from speedyfeed.ragged import Ragged, offsets_of

Impression = list[tuple[float, int]]  # (score, label) of each candidate

few_scores = st.sampled_from([-math.inf, -1.0, 0.0, 0.25, 0.5])  # so that ties are common
some_scores = st.one_of(few_scores, st.floats(-1, 1, width=32))
labelled = st.lists(st.tuples(some_scores, st.integers(0, 1)), max_size=7)
unlabelled = st.lists(st.tuples(some_scores, st.just(-1)), min_size=1, max_size=3)
logs = st.lists(st.one_of(labelled, unlabelled), max_size=8)


def table(log: list[Impression]) -> tuple[Ragged, np.ndarray]:
    offsets = offsets_of(np.array([len(impression) for impression in log], np.int64))
    scores = np.array([score for impression in log for score, _ in impression], np.float32)
    labels = np.array([label for impression in log for _, label in impression], np.int8)
    return Ragged(values=scores, offsets=offsets), labels


def official(ranked: list[int]) -> dict[str, float]:
    """MIND's metrics of labels listed best first, as written in its paper and scorer, and click-through rates."""

    def dcg(labels: list[int], k: int) -> float:
        return sum((2**label - 1) / math.log2(1 + rank) for rank, label in enumerate(labels[:k], start=1))

    pairs = [(above, below) for above, below in itertools.combinations(ranked, 2) if above != below]
    return {
        "auc": sum(above > below for above, below in pairs) / len(pairs),
        "mrr": sum(label / rank for rank, label in enumerate(ranked, start=1)) / sum(ranked),
        "ndcg@5": dcg(ranked, 5) / dcg(sorted(ranked, reverse=True), 5),
        "ndcg@10": dcg(ranked, 10) / dcg(sorted(ranked, reverse=True), 10),
        **{f"ctr@{k}": sum(ranked[:k]) / len(ranked[:k]) for k in (1, 3, 5, 10)},
    }


def orders(impression: Impression) -> list[list[int]]:
    """Labels best first, once for every order of the candidates that share a score."""
    groups = [
        [label for score, label in impression if score == level]
        for level in sorted({score for score, _ in impression}, reverse=True)
    ]
    choices = [list(itertools.permutations(group)) for group in groups]
    return [list(itertools.chain(*choice)) for choice in itertools.product(*choices)]


@given(log=logs)
@settings(deadline=None)
def test_metrics_equal_the_official_formulas_averaged_over_the_orders_of_ties(log):
    scores, labels = table(log)
    found = measure_ranking(scores, labels)
    for row, impression in enumerate(log):
        kinds = {label for _, label in impression}
        assert found.is_unlabelled[row] == (-1 in kinds)
        assert found.is_one_class[row] == (kinds in ({0}, {1}, set()))
        if kinds != {0, 1}:
            assert all(np.isnan(found.values[name][row]) for name in RANKING)
            continue
        expected = [official(ranked) for ranked in orders([(np.float32(score), y) for score, y in impression])]
        for name in RANKING:
            mean = sum(metrics[name] for metrics in expected) / len(expected)
            assert found.values[name][row] == pytest.approx(mean, abs=1e-9, rel=0), name


@given(seed=st.integers(0, 1000), num_levels=st.none() | st.integers(2, 400))
@settings(deadline=None)
def test_metrics_of_long_impressions_equal_scikit_learn_and_the_official_formulas(seed, num_levels):
    rng = np.random.default_rng(seed)
    log = []
    for _ in range(3):
        labels = rng.permutation([0, 1, *rng.integers(0, 2, rng.integers(0, 300))]).tolist()
        levels = rng.integers(0, num_levels, len(labels)) if num_levels else rng.permutation(len(labels))
        log.append(list(zip(levels.tolist(), labels, strict=True)))
    scores, labels = table(log)
    found = measure_ranking(scores, labels)
    assert not found.is_one_class.any()
    for row, impression in enumerate(log):
        auc = roc_auc_score([label for _, label in impression], scores[row])
        assert found.values["auc"][row] == pytest.approx(auc, abs=1e-9, rel=0)
        if num_levels is None:  # no ties
            ranked = [label for _, label in sorted(impression, reverse=True)]
            for name, value in official(ranked).items():
                assert found.values[name][row] == pytest.approx(value, abs=1e-9, rel=0), name


def test_an_impression_checked_by_eye():
    scores, labels = table([[(0.1, 0), (0.9, 1), (0.5, 0), (0.4, 1)]])  # clicks at ranks 1 and 3 of 4
    found = measure_ranking(scores, labels).values
    assert found["auc"][0] == 0.75
    assert found["mrr"][0] == pytest.approx((1 + 1 / 3) / 2)
    assert found["ndcg@5"][0] == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))


def test_auc_is_the_mean_over_impressions_not_over_all_their_candidates():
    # Each impression is ranked perfectly, on a scale of its own: pooled, three of four pairs are in order.
    scores, labels = table([[(0.1, 0), (0.2, 1)], [(0.8, 0), (0.9, 1)]])
    assert measure_ranking(scores, labels).values["auc"].tolist() == [1.0, 1.0]
    assert roc_auc_score(labels, scores.values) == 0.75


def test_mrr_counts_every_click_not_the_first_alone():
    scores, labels = table([[(0.9, 1), (0.8, 0), (0.7, 0), (0.6, 1)]])
    assert measure_ranking(scores, labels).values["mrr"][0] == pytest.approx((1 + 1 / 4) / 2)


def test_scoring_everything_alike_gains_nothing_from_the_order_listed():
    first, last = [(0.5, 1), (0.5, 0), (0.5, 0)], [(0.5, 0), (0.5, 0), (0.5, 1)]
    found = measure_ranking(*table([first, last])).values
    assert found["auc"].tolist() == [0.5, 0.5]
    for name in RANKING:
        assert found[name][0] == found[name][1] < 1


def test_candidates_that_cannot_be_scored_are_last():
    scores, labels = table([[(-math.inf, 1), (-5.0, 0), (-math.inf, 0)]])
    found = measure_ranking(scores, labels).values
    assert found["auc"][0] == 0.25  # below the scored one, level with the other
    assert ranks_of(scores).tolist() == [2, 1, 3]


@given(log=st.lists(labelled, max_size=6))
@settings(deadline=None)
def test_ranks_are_a_permutation_with_ties_in_the_order_listed(log):
    scores, _ = table(log)
    ranks, order = ranks_of(scores), best_first(scores)
    for row in range(len(log)):
        expected = sorted(
            range(len(scores[row])), key=lambda position, row=row: (-scores[row][position], position)
        )
        start, end = scores.offsets[row], scores.offsets[row + 1]
        assert (order[start:end] - start).tolist() == expected
        assert np.argsort(ranks[start:end]).tolist() == expected
        assert sorted(ranks[start:end]) == list(range(1, end - start + 1))


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(AssertionError):
        measure_ranking(*table([[(math.nan, 1), (0.0, 0)]]))


def test_recall_is_the_share_of_clicks_found_among_the_first_k():
    found = Ragged(values=np.array([1, 50, 51, 0, 3, 2, 7]), offsets=np.array([0, 4, 6, 6, 7]))
    labels = np.array([0, 1, 1, 1, 0, 0, 1])
    assert measure_recall(found, labels, 50).tolist()[0] == pytest.approx(1 / 3)
    assert measure_recall(found, labels, 51).tolist()[0] == pytest.approx(2 / 3)
    assert np.isnan(measure_recall(found, labels, 50)).tolist() == [False, True, True, False]
    assert measure_recall(found, labels, 5)[3] == 0
