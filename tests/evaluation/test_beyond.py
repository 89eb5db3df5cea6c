"""Figures beyond accuracy, by their definitions on small lists and by a plain second computation."""

from dataclasses import replace

import numpy as np
import pytest

from speedyfeed.evaluation.beyond import NewsFacts, measure_feeds
from speedyfeed.evaluation.evaluate import SplitFacts, evaluate
from speedyfeed.retrieval.index import ExactIndex
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig
from speedyfeed.scoring import Users


@pytest.fixture
def facts(news_VD):
    rng = np.random.default_rng(3)
    return NewsFacts(
        news_VD=news_VD,
        sections_V=np.append(0, rng.integers(0, 4, len(news_VD) - 1)),
        clicks_V=np.append(0, rng.integers(0, 50, len(news_VD) - 1)).astype(float),
        headlines_V=np.arange(len(news_VD)),
    )


def mean_of_clicks(news_VD):
    def encode(histories, users):
        return Users.single(np.stack([news_VD[history].sum(0) + news_VD[5] for history in histories]))

    return encode


def test_by_score_it_is_the_ranking_that_evaluate_measures(impressions, facts):
    encode = mean_of_clicks(facts.news_VD)
    pools = np.zeros(len(impressions.users), np.int64)
    found = measure_feeds(impressions, facts, encode, pools, PLAIN)
    split = SplitFacts(pools=pools)
    known = evaluate(
        impressions, facts.news_VD, encode, np.random.default_rng(0), facts=split, build_index=ExactIndex.build
    )
    for name in ("auc", "mrr", "ndcg@5", "ndcg@10", "ctr@1", "ctr@10"):
        assert found[name] == pytest.approx(known.overall.metrics[name].mean, abs=0.02), name  # but for ties
    assert found["impressions"] == len(impressions.users)


def test_lists_are_measured_by_their_definitions(impressions, facts):
    encode = mean_of_clicks(facts.news_VD)
    found = measure_feeds(impressions, facts, encode, np.zeros(len(impressions.users), np.int64), PLAIN)
    news = [one for one in np.unique(impressions.candidates.values).tolist() if one]
    diversity, sections, novelty, shown = [], [], [], set()
    total = sum(1 + facts.clicks_V[1:])
    for user in impressions.users:
        history = impressions.histories[user]
        user_D = encode([history], None).means_BPD[0, 0].numpy()
        unread = [one for one in news if one not in history]
        best = sorted(unread, key=lambda one: -facts.news_VD[one] @ user_D)[:10]
        units = [facts.news_VD[one] / np.linalg.norm(facts.news_VD[one]) for one in best]
        pairs = [1 - units[i] @ units[j] for i in range(len(best)) for j in range(i)]
        diversity.append(np.mean(pairs))
        sections.append(len({facts.sections_V[one] for one in best} - {0}))
        novelty.append(np.mean([-np.log2((1 + facts.clicks_V[one]) / total) for one in best]))
        shown.update(best)
    assert found["diversity"] == pytest.approx(np.mean(diversity), rel=1e-5)
    assert found["sections"] == pytest.approx(np.mean(sections))
    assert found["novelty"] == pytest.approx(np.mean(novelty))
    assert found["coverage"] == pytest.approx(len(shown) / len(news))


def test_a_feed_is_more_varied_and_better_calibrated(impressions, facts):
    encode = mean_of_clicks(facts.news_VD)
    pools = np.zeros(len(impressions.users), np.int64)
    plain = measure_feeds(impressions, facts, encode, pools, PLAIN)
    feed = measure_feeds(impressions, facts, encode, pools, RerankConfig(diversity=0.7))
    assert feed["diversity"] > plain["diversity"]
    assert feed["calibration_error"] < plain["calibration_error"]


def test_what_is_unknown_has_no_figure(impressions, facts):
    unknown = replace(facts, sections_V=np.zeros_like(facts.sections_V), clicks_V=None)
    encode = mean_of_clicks(facts.news_VD)
    found = measure_feeds(
        impressions, unknown, encode, np.zeros(len(impressions.users), np.int64), RerankConfig(), max_impressions=5
    )
    assert np.isnan([found["novelty"], found["calibration_error"], found["sections"]]).all()
    assert found["impressions"] == 5
    assert found["diversity"] > 0
