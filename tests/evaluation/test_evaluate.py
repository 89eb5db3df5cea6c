import dataclasses
import json

import numpy as np
import pytest

from speedyfeed.cli.evaluate import print_report
from speedyfeed.data.store import Impressions, Timelines
from speedyfeed.evaluation.evaluate import SplitFacts, evaluate, seen_in_training
from speedyfeed.evaluation.metrics import RANKING, measure_ranking
from speedyfeed.evaluation.ranking import score_candidates
from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import ExactIndex
from speedyfeed.scoring import Users

KEYS = (*RANKING, "recall@20", "recall@50", "recall@100", "recall@200")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def encoder(news_VD):
    """The mean of the clicks; the first news for a user without any."""
    return lambda histories, users: Users.single(
        np.stack([news_VD[row if len(row) else [1]].mean(0) for row in histories])
    )


def test_the_report_has_the_keys_that_programs_rely_on(impressions, news_VD):
    report = evaluate(impressions, news_VD, encoder(news_VD), rng(), resamples=50)
    figures = json.loads(json.dumps(report.to_json(), allow_nan=False))
    for key in KEYS:
        low, high = figures[f"{key}_ci95"]
        assert 0 <= low <= figures[key] <= high <= 1
    labels = [
        set(row.tolist()) for row in Ragged(values=impressions.labels, offsets=impressions.candidates.offsets)
    ]
    assert figures["impressions"] == sum(kinds == {0, 1} for kinds in labels) > 20
    assert figures["skipped"]["unlabelled"] == 2
    assert figures["skipped"]["one_class"] == sum(kinds in ({0}, {1}) for kinds in labels) > 0
    assert figures["candidates_without_text"] == (impressions.candidates.values == 0).sum() > 0
    assert figures["index"]["recall"] == pytest.approx(1.0)


def test_the_figures_are_the_means_of_the_metrics(impressions, news_VD):
    report = evaluate(impressions, news_VD, encoder(news_VD), rng(), resamples=50)
    expected = measure_ranking(score_candidates(impressions, news_VD, encoder(news_VD)), impressions.labels)
    for name in RANKING:
        np.testing.assert_array_equal(report.values[name], expected.values[name])
        assert report.overall.metrics[name].mean == pytest.approx(np.nanmean(expected.values[name]))
    assert len(report.values["recall@50"]) == len(impressions.users)
    assert "hit@10" not in report.values  # it is for clicks without impressions


def test_groups_by_history_share_out_the_impressions(impressions, news_VD):
    report = evaluate(impressions, news_VD, encoder(news_VD), rng(), resamples=50)
    num_clicks = impressions.histories.lengths[impressions.users]
    groups = {
        "history_empty": num_clicks == 0,
        "history_1_to_5": (num_clicks >= 1) & (num_clicks <= 5),
        "history_over_5": num_clicks >= 6,
    }
    assert set(report.groups) == set(groups)
    for name, rows in groups.items():
        group = report.groups[name]
        assert group.num_impressions == np.isfinite(report.values["auc"][rows]).sum() > 0
        assert group.metrics["auc"].mean == pytest.approx(np.nanmean(report.values["auc"][rows]))


def test_seen_and_unseen_articles_are_ranked_among_their_own_kind():
    news_VD = np.array([[0.0], [4], [3], [2], [1]], np.float32)
    shown = Impressions(  # scores equal the embeddings; one click has no text
        candidates=Ragged(values=np.array([1, 2, 3, 4, 0, 1, 2]), offsets=np.array([0, 5, 7])),
        labels=np.array([1, 0, 0, 1, 1, 1, 0], np.int8),
        users=np.array([0, 0]),
        histories=Ragged(values=np.array([4]), offsets=np.array([0, 1, 1])),
    )
    train = Timelines(
        clicks=Ragged(values=np.array([3]), offsets=np.array([0, 1])),
        click_pools=np.array([0], np.int32),
        user_pools=np.array([0], np.int64),
        pools=Ragged(values=np.array([1]), offsets=np.array([0, 1])),
    )
    seen = seen_in_training(train, 4)
    assert seen.tolist() == [False, True, False, True, False]
    alone = evaluate(shown, news_VD, encoder(news_VD), rng(), facts=SplitFacts(seen=seen), resamples=10)
    facts = SplitFacts(seen=seen, train_clicks=np.array([0, 5, 1, 9, 0]))
    report = evaluate(shown, news_VD, encoder(news_VD), rng(), facts=facts, resamples=10)
    groups = report.groups
    assert report.overall == alone.overall, "more groups change no interval"
    assert groups["news_clicked_5_up"].metrics["auc"].mean == 1.0  # 1 above 3
    assert groups["news_clicked_1_to_4"].num_one_class == 2  # 2 alone, twice
    assert groups["news_clicked_0"].num_one_class == 1  # 4 alone; padding is no article
    assert groups["news_seen"].metrics["auc"].mean == 1.0  # 1 above 3
    assert groups["news_unseen"].metrics["auc"].mean == 0.0  # 4 below 2
    assert (groups["news_seen"].num_impressions, groups["news_seen"].num_one_class) == (1, 1)


def test_an_unlabelled_split_has_no_figures_but_is_valid_json(impressions, news_VD):
    unlabelled = dataclasses.replace(impressions, labels=np.full_like(impressions.labels, -1))
    report = evaluate(unlabelled, news_VD, encoder(news_VD), rng(), resamples=10)
    figures = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert figures["auc"] is None
    assert figures["recall@50_ci95"] == [None, None]
    assert figures["impressions"] == 0
    assert figures["skipped"]["unlabelled"] == len(impressions.users)


@pytest.mark.parametrize("build_index", [ExactIndex.build, HnswIndex.build])
def test_planted_interests_are_found_and_noise_is_not(build_index):
    """Users click news of their own topic out of twelve: known answers are 1 with the topics, chance without."""
    draws = np.random.default_rng(5)
    topic_of = np.concatenate([[-1], np.repeat(np.arange(12), 50)])
    planted = np.eye(12, dtype=np.float32)[topic_of] + draws.normal(0, 0.05, (601, 12)).astype(np.float32)
    planted[0] = 0
    topic = draws.integers(0, 12, 300)
    own = np.stack([np.flatnonzero(topic_of == t)[draws.permutation(50)[:4]] for t in topic])
    other = np.stack([draws.permutation(np.flatnonzero((topic_of != t) & (topic_of >= 0)))[:5] for t in topic])
    candidates = np.concatenate([other, own[:, :1]], axis=1)
    shown = Impressions(
        candidates=Ragged(values=candidates.ravel(), offsets=offsets_of(np.full(300, 6))),
        labels=np.tile([0, 0, 0, 0, 0, 1], 300).astype(np.int8),
        users=np.arange(300),
        histories=Ragged(values=own[:, 1:].ravel(), offsets=offsets_of(np.full(300, 3))),
    )
    found = evaluate(shown, planted, encoder(planted), rng(), build_index=build_index).overall.metrics
    assert found["auc"].mean > 0.999
    assert found["recall@50"].mean > 0.98  # the pool holds at most 50 news of a topic
    noise = draws.standard_normal((601, 12)).astype(np.float32)
    found = evaluate(shown, noise, encoder(noise), rng(), build_index=build_index).overall.metrics
    assert found["auc"].ci95[0] < 0.5 < found["auc"].ci95[1]
    assert found["recall@50"].mean < 0.2


def test_the_same_seed_gives_the_same_report(impressions, news_VD):
    reports = [evaluate(impressions, news_VD, encoder(news_VD), rng(), resamples=50).to_json() for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_single_target_has_hit_and_ndcg_among_the_pool(capsys):
    news_VD = np.concatenate([np.zeros((1, 1)), np.arange(20, 0, -1)[:, None]]).astype(np.float32)
    shown = Impressions(  # articles 1, 2, ... are retrieved in this order by everyone; article 0 has no text
        candidates=Ragged(values=np.array([1, 3, 0, *range(1, 21)]), offsets=np.arange(24)),
        labels=np.ones(23, np.int8),
        users=np.zeros(23, np.int64),
        histories=Ragged(values=np.array([4]), offsets=np.array([0, 1])),
    )
    seen = np.arange(21) <= 3
    report = evaluate(
        shown,
        news_VD,
        encoder(news_VD),
        rng(),
        facts=SplitFacts(seen=seen, train_clicks=np.array([0, *[7] * 11, *[2] * 9])),
        build_index=ExactIndex.build,
        resamples=10,
    )
    # Article 4 was clicked before: the first ten are 1 to 11.
    hits = [1, 1, 0, *[1] * 3, np.nan, *[1] * 7, *[0] * 9]
    np.testing.assert_array_equal(report.values["hit@10"], hits)
    assert report.values["pool_ndcg@10"][:3].tolist() == [1, 0.5, 0]
    assert report.values["pool_ndcg@10"][13] == pytest.approx(1 / np.log2(11))
    assert report.overall.metrics["hit@10"].mean == pytest.approx(12 / 22)
    figures = report.to_json()
    assert figures["impressions"] == 22
    assert figures["skipped"] == {"one_class": 0, "unlabelled": 0, "in_history": 1}
    assert report.groups["news_seen"].metrics["hit@10"].mean == 1
    assert report.groups["news_clicked_1_to_4"].metrics["hit@10"].mean == 0
    assert report.groups["news_clicked_5_up"].metrics["hit@10"].mean == 1
    print_report(report, "dev")
    left_out = "left out: 1 on articles that the user had clicked before"
    assert f"dev: 22 clicks, each to be found among all articles; {left_out}" in capsys.readouterr().out
