"""A feed ranks as the recommender itself does, and its reasons add up to the score."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from speedyfeed.models.catalogue import Catalogue
from speedyfeed.pretrained import Recommender
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig
from speedyfeed.serving import opening as opening_module
from speedyfeed.serving.feed import Feed
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import GraphConfig, build_index
from speedyfeed.serving.micro_batcher import MicroBatcher
from speedyfeed.serving.opening import open_feed
from speedyfeed.serving.query import Query
from speedyfeed.serving.reasons import MIN_SIMILARITY
from tests.serving.small_run import build_recommender

HISTORY = ["N1", "N9", "N2"]


@pytest.fixture
def feed(run, tmp_path, graphs):
    batcher = MicroBatcher()
    yield open_feed(run, tmp_path, batcher, graphs)
    batcher.close()


@pytest.fixture(scope="module")
def model(run):
    return Recommender.from_pretrained(run)


def ids(answer):
    return [one.news.news_id for one in answer.ranked]


@pytest.mark.parametrize("history", [[], ["N1"], HISTORY])
def test_it_recommends_what_the_recommender_recommends(feed, model, history):
    answer = feed.recommend(Query(history=history, k=5))
    expected = model.recommend(history, k=5)
    assert ids(answer) == [one.news_id for one in expected]
    assert [one.score for one in answer.ranked] == pytest.approx([one.score for one in expected], rel=1e-4)
    assert answer.unknown == []


@pytest.mark.parametrize("rerank", [PLAIN, RerankConfig()], ids=["plain", "re-ranked"])
def test_learned_popularity_is_part_of_the_scores_where_the_model_says_so(rerank):
    model = build_recommender()
    before = {one.news_id: one.score for one in model.recommend(HISTORY, k=9, rerank=PLAIN)}
    biases = [0.0] * len(model.catalogue)
    biases[model.catalogue.row[min(before, key=before.get)]] = 5.0
    model.catalogue = replace(model.catalogue, biases=biases, adds_biases=True)
    expected = model.recommend(HISTORY, k=9, rerank=rerank)
    assert expected[0].news_id == min(before, key=before.get)
    assert expected[0].score == pytest.approx(min(before.values()) + 5, rel=1e-4)
    answer = Feed(model, "fingerprint", None, batcher=None).recommend(
        Query(history=HISTORY, k=9, rerank=rerank), model.catalogue.embeddings_VD[:0].numpy()
    )
    assert ids(answer) == [one.news_id for one in expected]
    assert answer.ranked[0].score == pytest.approx(expected[0].score, rel=1e-4)


@pytest.mark.parametrize("score_all", [10_000, 0], ids=["scored whole", "searched"])
def test_one_click_each_on_three_sections_gives_all_three(score_all, monkeypatch):
    """Articles of one section are close to each other, and score higher than all of the others."""
    monkeypatch.setattr("speedyfeed.serving.retriever.SCORE_ALL", score_all)
    rng = np.random.default_rng(0)
    section = np.repeat([0, 1, 2], [400, 100, 100])
    noise = rng.normal(size=(600, 16)) * np.array([0.1, 0.4, 0.4])[section, None]
    news = np.eye(3, 16)[section] + noise
    news = (news / np.linalg.norm(news, axis=1, keepdims=True)).astype(np.float32)
    names = [f"N{number}" for number in range(600)]
    model = build_recommender()
    model.catalogue = Catalogue(
        news_ids=names,
        titles=names,
        categories=[("sports", "food", "travel")[one] for one in section],
        embeddings_VD=torch.from_numpy(news),
    )
    feed = Feed(model, "fingerprint", build_index(news, GraphConfig(graphs_from=0)), batcher=None)
    history = [names[0], names[400], names[500]]
    for rerank, num_sections in ((PLAIN, 1), (RerankConfig(), 3)):
        expected = model.recommend(history, k=10, rerank=rerank)
        answer = feed.recommend(Query(history=history, k=10, rerank=rerank), news[:0])
        assert len({one.category for one in expected}) == num_sections
        assert len({one.news.category for one in answer.ranked}) == num_sections
        if score_all:
            assert ids(answer) == [one.news_id for one in expected]


def test_a_story_with_the_headline_of_one_read_or_seen_is_not_shown_again(feed, model):
    rng = np.random.default_rng(0)
    unlike = rng.normal(size=(3, feed.catalogue.embeddings([0]).shape[1])).astype(np.float32)
    titles = {"again": "late goal  wins the cup", "other": "Late goal wins the match", "new": "Late goal"}
    feed.catalogue.add([News(news_id=name, title=title) for name, title in titles.items()], unlike)
    assert {"again", "other", "new"} < set(
        ids(feed.recommend(Query(history=["N2"], seen=["N1"], k=20, rerank=PLAIN)))
    )
    for query in ({"history": ["N1"]}, {"seen": ["N1"]}, {"history": [("Late Goal wins the cup", "", "", "")]}):
        found = ids(feed.recommend(Query(k=20, **query)))
        assert {"other", "new"} < set(found)
        assert "again" not in found
    same = replace(model.catalogue, titles=["Late goal wins the cup"] * 5 + list(model.catalogue.titles[5:]))
    twin = build_recommender()
    twin.catalogue = same
    assert not {"N2", "N3", "N4", "N5"} & {one.news_id for one in twin.recommend(["N1"], k=12)}
    assert {"N2", "N3"} < {one.news_id for one in twin.recommend(["N1"], k=12, rerank=PLAIN)}


def test_a_text_counts_like_the_article_with_that_text(feed):
    title = feed.catalogue.news(feed.catalogue.row("N9")).title
    by_id = feed.recommend(Query(history=["N1", "N9", "N2"], k=12, rerank=PLAIN))
    by_text = feed.recommend(Query(history=["N1", (title, "", "", ""), "N2"], k=12, rerank=PLAIN))
    assert "N9" not in ids(by_id)
    assert [name for name in ids(by_text) if name != "N9"] == ids(by_id)
    assert by_text.user == pytest.approx(by_id.user, abs=1e-3)


def test_unknown_ids_are_named_and_have_no_effect(feed):
    answer = feed.recommend(Query(history=["N1", "X1", "N2", "X1"], candidates=["N3", "X2"], exclude=["X3"]))
    assert answer.unknown == ["X1", "X2"]
    assert ids(answer) == ["N3"]
    assert [click is None for click in answer.clicks] == [False, True, False, True]
    assert (
        feed.recommend(Query(history=["N1", "X1", "N2"])).user == feed.recommend(Query(history=["N1", "N2"])).user
    )


def test_only_unknown_ids_are_a_new_user(feed):
    assert ids(feed.recommend(Query(history=["X1"]))) == ids(feed.recommend(Query()))


def test_candidates_exclusions_and_filters(feed):
    assert set(ids(feed.recommend(Query(candidates=["N3", "N1", "N3"])))) == {"N1", "N3"}
    assert len(feed.recommend(Query(candidates=["N3", "N1"], k=1)).ranked) == 1
    assert ids(feed.recommend(Query(candidates=[]))) == []
    assert "N5" not in ids(feed.recommend(Query(exclude=["N5"], k=12)))
    assert {one.news.category for one in feed.recommend(Query(categories=["money"], k=12)).ranked} == {"money"}
    assert ids(feed.recommend(Query(max_age_seconds=60))) == []  # they were first shown in 2020
    assert ids(feed.recommend(Query(rerank=RerankConfig(popularity=1, diversity=0), k=2))) == ["N12", "N11"]


@pytest.mark.parametrize("user", ["attentive", "additive"])
def test_attention_times_inner_product_is_the_contribution_of_each_click_to_the_score(user):
    model = build_recommender(user=user)
    catalogue = model.catalogue
    clicks = catalogue.embeddings_VD[[0, 8, 1]].numpy()
    attention = model.weigh_clicks(clicks)
    candidate = catalogue.embeddings_VD[5].numpy()
    score = float(model.score(HISTORY, ["N6"])[0])
    if user == "attentive":  # a soft maximum
        sharpness = model.config.user.sharpness
        shares = attention * np.exp(sharpness * (clicks @ candidate))
        assert np.log(shares.sum()) / sharpness == pytest.approx(score, rel=1e-4)
        return
    start = (1 - attention.sum()) * (model.user.start.detach().numpy() @ candidate)
    assert (attention * (clicks @ candidate)).sum() + start == pytest.approx(score, rel=1e-4)


def test_reasons_are_the_clicks_that_contribute_most(feed, model):
    answer = feed.recommend(Query(history=["X1", *HISTORY], k=9, explain=True))
    clicks = model.catalogue.embeddings_VD[[0, 8, 1]].numpy()
    attention = model.weigh_clicks(clicks)
    num_reasons = 0
    for one in answer.ranked:
        news = feed.catalogue.embeddings([feed.catalogue.row(one.news.news_id)])[0]
        contributions = attention * np.exp(model.config.user.sharpness * (clicks @ news))
        cosines = clicks @ news / np.linalg.norm(clicks, axis=1) / np.linalg.norm(news)
        is_reason = (clicks @ news > 0) & (cosines >= MIN_SIMILARITY)
        expected = [click for click in np.argsort(-contributions)[:2] if is_reason[click]]
        assert [reason.click - 1 for reason in one.reasons] == expected
        for reason, click in zip(one.reasons, expected, strict=True):
            assert reason.attention == pytest.approx(attention[click])
            assert reason.similarity == pytest.approx(cosines[click], rel=1e-4)
        num_reasons += len(expected)
    assert num_reasons
    assert all(one.reasons == [] for one in feed.recommend(Query(explain=True)).ranked)


@pytest.mark.parametrize("user", ["self-attention", "gru"])
def test_every_user_encoder_can_be_served_and_explained(user):
    model = build_recommender(user=user)
    batcher = MicroBatcher()
    feed = Feed(model, "m", build_index(model.catalogue.embeddings_VD.numpy(), GraphConfig()), batcher)
    answer = feed.recommend(Query(history=HISTORY, k=9, explain=True))
    batcher.close()
    assert ids(answer) == [one.news_id for one in model.recommend(HISTORY, k=9)]
    reasons = [reason for one in answer.ranked for reason in one.reasons]
    assert reasons
    assert all((reason.attention is None) == (user == "gru") for reason in reasons)


@pytest.mark.parametrize(
    ("more", "is_quick"),
    [
        ({}, True),
        ({"candidates": ["N1", "N2"], "exclude": ["N3"]}, True),
        ({"k": 500}, False),
        ({"exclude": ["N1"] * 1000}, False),
        ({"candidates": ["N1"] * 1000}, False),
        ({"categories": ["sports"]}, False),
        ({"max_age_seconds": 60.0}, False),
        ({"seen": ["N1"] * 1000}, False),
    ],
)
def test_what_may_take_long_is_not_quick(feed, more, is_quick):
    assert feed.is_quick(Query(history=["N1"], **more)) is is_quick


def test_the_map_has_every_kind_of_point_in_its_frame(feed):
    answer = feed.recommend(Query(history=HISTORY, k=9))
    positions = [answer.user, *answer.clicks, *(one.map_position for one in answer.ranked)]
    assert np.abs(np.array(positions)).max() <= 1
    assert len(feed.sample(5)) <= 5
    assert {one.news.news_id for one in feed.sample(100)} == {f"N{n}" for n in range(1, 13)}


def test_graphs_are_cached_for_the_next_start(run, tmp_path, graphs, monkeypatch):
    batcher = MicroBatcher()
    first = open_feed(run, tmp_path, batcher, graphs)
    if graphs.graphs_from == 0:
        monkeypatch.setattr("speedyfeed.serving.opening.build_index", None)  # must not be called
    second = open_feed(run, tmp_path, batcher, graphs)
    assert ids(second.recommend(Query(history=HISTORY))) == ids(first.recommend(Query(history=HISTORY)))
    batcher.close()


def test_the_precision_is_measured_once_for_a_model_and_a_machine(run, another_run, tmp_path, monkeypatch):
    trials = []
    real = opening_module.choose_precision

    def choose(name, device, trial, **options):
        trials.append(name)
        trial()
        return real("bf16", device, trial)

    monkeypatch.setattr(opening_module, "choose_precision", choose)
    batcher = MicroBatcher()
    for path, measured in ((run, 1), (run, 1), (another_run, 2), (another_run, 2)):
        open_feed(path, tmp_path, batcher, precision="auto")
        assert len(trials) == measured
    monkeypatch.setattr("torch.get_num_threads", lambda: 1000)
    open_feed(another_run, tmp_path, batcher, precision="auto")
    assert len(trials) == 3
    (tmp_path / "precision.json").write_text("[")
    open_feed(another_run, tmp_path, batcher, precision="auto")
    assert len(trials) == 4
    (tmp_path / "precision.json").unlink()
    (tmp_path / "precision.json").mkdir()  # it cannot be written: every start measures
    open_feed(another_run, tmp_path, batcher, precision="auto")
    assert len(trials) == 5
    batcher.close()
