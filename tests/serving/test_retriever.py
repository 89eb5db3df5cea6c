"""What a list is chosen from: the best by score, as if all articles were scored."""

import numpy as np
import pytest
import torch

from speedyfeed.models.catalogue import Catalogue
from speedyfeed.retrieval.interests import group_clicks
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig, UserClicks, retrieval_size
from speedyfeed.serving import retriever as retriever_module
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import LiveCatalogue, SearchFilter, build_index
from speedyfeed.serving.retriever import Retriever
from speedyfeed.serving.rules import Rules
from tests.serving.small_run import build_recommender

K = 5


@pytest.fixture(scope="module")
def model():
    """A recommender with 1,500 articles on 30 topics."""
    model = build_recommender()
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(30, model.news.dim, generator=generator)
    noise = torch.randn(1500, model.news.dim, generator=generator)
    news = torch.nn.functional.normalize(topics.repeat(50, 1) + 0.5 * noise, dim=1)
    names = [f"N{number}" for number in range(1500)]
    model.catalogue = Catalogue(news_ids=names, titles=names, categories=["a"] * 1500, embeddings_VD=news)
    return model


def clicks_on(*topics):
    """Rows of three clicks on each topic."""
    return np.array([30 * place + topic for topic in topics for place in range(3)])


def exact(model, clicks, config):
    """The slow twin: every article is scored for the user."""
    news = model.catalogue.embeddings_VD
    scores = model.encode_clicks(news[clicks].numpy()).score_all(news)[0, 0].numpy()
    scores[clicks] = -np.inf
    return set(np.argsort(-scores)[: retrieval_size(K, config)].tolist())


def retrieve(model, clicks, config, graphs):
    news = model.catalogue.embeddings_VD.numpy()
    index = build_index(news, graphs)
    live = LiveCatalogue([News(news_id=name, title=name) for name in model.catalogue.news_ids], news, None, index)
    retriever = Retriever(catalogue=live, added=model.catalogue.added, adds_biases=False)
    users = model.encode_interests(news[clicks], config.interests)
    only = SearchFilter(excluded_rows=frozenset(clicks.tolist()))
    reads = UserClicks.from_sections(np.zeros(len(clicks), np.int64), np.ones(1))
    return *retriever.retrieve(users, K, config, reads, only, Rules()), users


@pytest.mark.parametrize("config", [PLAIN, RerankConfig(halving_clicks=0)], ids=["plain", "re-ranked"])
@pytest.mark.parametrize("topics", [(0,), (3, 17, 4, 9, 21, 28)], ids=["one topic", "six topics"])
def test_a_small_catalogue_is_scored_whole(model, graphs, topics, config):
    rows, scores, users = retrieve(model, clicks_on(*topics), config, graphs)
    assert set(rows.tolist()) == exact(model, clicks_on(*topics), config)
    expected = users.score_all(model.catalogue.embeddings_VD[rows])[0].numpy().T
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("score_all", [0, 10_000], ids=["searched", "scored whole"])
def test_where_freshness_counts_the_newest_are_candidates(model, graphs, score_all, monkeypatch):
    """The newest are as far from the user as can be, and some have no time."""
    monkeypatch.setattr(retriever_module, "SCORE_ALL", score_all)
    news = model.catalogue.embeddings_VD.numpy()
    clicks = clicks_on(0)
    order = np.argsort(news @ news[clicks].sum(0))
    hours = np.argsort(order)  # since publication: the least like the user first
    times = [None if number % 3 == 0 else 1e9 - 3600.0 * hour for number, hour in enumerate(hours)]
    named = zip(model.catalogue.news_ids, times, strict=True)
    live = LiveCatalogue(
        [News(news_id=name, title=name, published=time) for name, time in named],
        news,
        None,
        build_index(news, graphs),
    )
    retriever = Retriever(catalogue=live, added=model.catalogue.added, adds_biases=False)
    reads = UserClicks.from_sections(np.zeros(len(clicks), np.int64), np.ones(1))

    def found(freshness):
        config = RerankConfig(halving_clicks=0, freshness=freshness)
        users = model.encode_interests(news[clicks], config.interests)
        return set(retriever.retrieve(users, K, config, reads, SearchFilter(), Rules())[0].tolist())

    newest = [row for row in order.tolist() if row % 3][: retrieval_size(K, RerankConfig())]
    assert set(newest) <= found(1)
    assert not set(newest) <= found(0)


@pytest.mark.parametrize("config", [PLAIN, RerankConfig(halving_clicks=0)], ids=["plain", "re-ranked"])
def test_centres_of_clicks_find_what_a_large_catalogue_has(model, graphs, config, monkeypatch):
    monkeypatch.setattr(retriever_module, "SCORE_ALL", 0)
    found, by_mean = [], []
    for start in range(10):
        clicks = clicks_on(*((start + 5 * place) % 30 for place in range(6)))
        best = exact(model, clicks, config)
        found.append(len(best & set(retrieve(model, clicks, config, graphs)[0].tolist())) / len(best))
        with monkeypatch.context() as one:
            one.setattr(retriever_module, "CENTRES", 1)
            by_mean.append(len(best & set(retrieve(model, clicks, config, graphs)[0].tolist())) / len(best))
    assert np.mean(found) > 0.9
    assert np.mean(by_mean) < 0.7  # so that the first figure says something


def test_centres_are_the_weighted_means_of_groups_of_clicks(model):
    users = model.encode_interests(model.catalogue.embeddings_VD[clicks_on(3, 17, 4)].numpy(), 1)
    weights, vectors = users.weights_BPK[0, 0].numpy(), users.vectors_BKD[0].numpy()
    vectors, weights = vectors[weights > 0], weights[weights > 0]
    groups = group_clicks(vectors, retriever_module.CENTRES)
    assert 1 < len(groups) < len(vectors)
    expected = [np.average(vectors[group], axis=0, weights=weights[group]) for group in groups]
    np.testing.assert_allclose(retriever_module._centres(users), expected, atol=1e-6)


@pytest.mark.parametrize("user", ["attentive", "additive"])
def test_users_with_one_vector_have_interests_and_a_soft_maximum_has_them_all(user):
    model = build_recommender(user=user)
    news = model.catalogue.embeddings_VD
    clicks = np.array([0, 5, 9, 10])
    scores = model.encode_interests(news[clicks].numpy(), 3).score_all(news)[0]
    groups = group_clicks(news[clicks].numpy(), 3) if user == "additive" else []
    parts = [np.arange(4), *groups]
    alone = [model.encode_clicks(news[clicks[part]].numpy()).score_all(news)[0, 0] for part in parts]
    assert len(parts) == (4 if user == "additive" else 1)
    torch.testing.assert_close(scores, torch.stack(alone))


def test_a_new_user_is_the_start(model, graphs):
    new = np.zeros(0, np.int64)
    rows, scores, _ = retrieve(model, new, RerankConfig(), graphs)
    assert set(rows.tolist()) == exact(model, new, RerankConfig())
    assert scores.shape[1] == 1
