"""Rankings without text, checked by eye on three impressions of five articles."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from speedyfeed.data.store import Impressions
from speedyfeed.sweep import references
from speedyfeed.sweep.references import (
    measure_categories,
    measure_chance,
    measure_popularity,
    measure_title_length,
)
from tests.batching.small_logs import timelines
from tests.evaluation.conftest import ragged

ONE_DAY = np.zeros(3, np.int64)
CATEGORIES = pa.chunked_array([["sport", "world", "world", "sport", ""]])
TITLES = pa.chunked_array([["a" * length for length in (29, 35, 26, 22, 25)]])


@pytest.fixture
def shown():
    """Candidates 3 5 (clicked) 0, then 3 (clicked) 1, of a user who clicked 1 4 2; then 1 and 3 (clicked)."""
    return Impressions(
        candidates=ragged([[3, 5, 0], [3, 1], [1, 3]]),
        labels=np.array([0, 1, 0, 1, 0, 0, 1], np.int8),
        users=np.array([0, 0, 2]),
        histories=ragged([[1, 4, 2], [], []]),
    )


@pytest.fixture
def store():
    """Train clicks 4, 2, 2 beside articles that were shown but not clicked, and 1 and 5 of histories."""
    log = timelines([[(1, -1), (4, 0), (2, 1)], [(5, -1), (2, 2)]], [[5], [3], [1]])
    return SimpleNamespace(train=log, num_news=5)


def test_popularity_counts_all_clicks_of_train(store, shown):
    found = measure_popularity(store, shown, ONE_DAY)
    assert found.name == "popularity"
    assert found.metrics["auc"] == pytest.approx((1 + 0 + 0) / 3)  # clicks of 1 to 5: 1, 2, 0, 1, 1


@pytest.mark.parametrize(
    ("pools", "auc"), [([[5], [3], [1]], (0.5 + 0 + 0) / 3), ([[2], [2], [2]], (1 + 1 + 1) / 3)]
)
def test_titles_are_ranked_as_clicks_of_train_have_it(pools, auc, store, shown):
    """Clicked titles of 22, 35 and 35 letters are longer than 25, 26 and 29, and shorter than 35."""
    store.train = timelines([[(1, -1), (4, 0), (2, 1)], [(5, -1), (2, 2)]], pools)
    assert measure_title_length(store, shown, ONE_DAY, TITLES).metrics["auc"] == pytest.approx(auc)


def test_a_metric_that_no_impression_has_is_none():
    targets = Impressions(
        candidates=ragged([[3], [5]]),
        labels=np.ones(2, np.int8),
        users=np.array([0, 1]),
        histories=ragged([[1], []]),
    )
    found = measure_chance(targets, np.zeros(2, np.int64), num_all=5).metrics
    assert found["auc"] is None
    assert found["recall@20"] == 1
    assert found["hit@10"] == 1
    # Of the four articles besides the history, or all five, each is as likely to be any of the first ones.
    gains = [1, 1 / np.log2(3), 1 / 2, 1 / np.log2(5), 1 / np.log2(6)]
    assert found["pool_ndcg@10"] == pytest.approx((sum(gains[:4]) / 4 + sum(gains) / 5) / 2)


def test_categories_are_counted_in_the_history(shown):
    (found,) = measure_categories(shown, ONE_DAY, CATEGORIES)
    # Two clicks on sport, one on world; 5 has no category; a user without clicks tells nothing.
    assert found.metrics["auc"] == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert measure_categories(shown, ONE_DAY, pa.chunked_array([[""] * 5])) == []


def test_chance_retrieves_the_pool_less_the_history(shown, monkeypatch):
    monkeypatch.setattr(references, "RECALL_AT", (1, 2))
    found = measure_chance(shown, ONE_DAY).metrics  # the pool is 1 3 5, less 1 for the first user
    assert found["auc"] == 0.5
    assert found["recall@1"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3)
    assert found["recall@2"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    among_all = measure_chance(shown, ONE_DAY, num_all=50).metrics["recall@1"]  # of 50, less all of the history
    num_own = [len(set(shown.histories[user].tolist())) for user in shown.users]
    assert among_all == pytest.approx(np.mean([1 / (50 - own) for own in num_own]))
    days = np.array([0, 1, 1])  # 3 5; 1 3, less 1 for the first user
    assert measure_chance(shown, days).metrics["recall@1"] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert measure_chance(shown, ONE_DAY).metrics["ctr@1"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
