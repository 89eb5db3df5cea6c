"""Histories are cut to the latest clicks, as many as in training, wherever users are encoded."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.checksums import CHECKSUMS
from speedyfeed.encoding.histories import history_encoder, user_dependent_encoder
from speedyfeed.models.config import RecommenderConfig
from speedyfeed.pretrained import Recommender
from speedyfeed.ragged import Ragged
from speedyfeed.saved_model import CONFIG
from speedyfeed.serving.feed import Feed
from speedyfeed.serving.query import Query
from speedyfeed.training.config import RunConfig
from tests.serving.small_run import build_recommender

HISTORY = ["N1", "N9", "N4", "N7", "N2"]


@pytest.fixture
def model() -> Recommender:
    """A recommender that encodes users from their latest two clicks."""
    model = build_recommender()
    model.config = replace(model.config, max_clicks=2)
    return model


def test_the_limit_of_training_is_that_of_the_model():
    assert RunConfig(batch=BatchConfig(max_clicks=7)).recommender.max_clicks == 7
    assert list(range(5))[RecommenderConfig(max_clicks=2).latest_clicks] == [3, 4]
    assert list(range(5))[RecommenderConfig().latest_clicks] == list(range(5))


def test_evaluation_encodes_the_latest_clicks(model):
    news_VD = torch.nn.functional.pad(model.catalogue.embeddings_VD, (0, 0, 1, 0))
    encode = history_encoder(model, news_VD)
    long = Ragged(values=np.array([1, 9, 4, 7, 2, 5]), offsets=np.array([0, 5, 6]))
    cut = Ragged(values=np.array([7, 2, 5]), offsets=np.array([0, 2, 3]))
    ours, expected = encode(long, np.arange(2)), encode(cut, np.arange(2))
    assert torch.equal(ours.score_all(news_VD), expected.score_all(news_VD))
    np.testing.assert_allclose(ours.means_BPD[0, 0], model.encode_user(HISTORY), atol=1e-6)


def test_user_dependent_models_encode_the_latest_clicks(model, monkeypatch):
    class Words:
        def for_users(self, news):
            return lambda index: model.catalogue.embeddings_VD

    monkeypatch.setattr("speedyfeed.encoding.histories.WordNewsEncoder", Words)
    stand_in = type("Model", (), {"news": Words(), "config": model.config, "encode_users": model.encode_users})()
    encode = user_dependent_encoder(stand_in, None, np.zeros(1, np.int64))
    np.testing.assert_array_equal(encode(0, np.array([0, 8, 3, 6, 1]))[1], encode(0, np.array([6, 1]))[1])


def test_recommendations_use_the_latest_clicks_and_leave_out_all(model):
    np.testing.assert_array_equal(model.encode_user(HISTORY), model.encode_user(HISTORY[-2:]))
    np.testing.assert_array_equal(model.score(HISTORY, ["N3"]), model.score(HISTORY[-2:], ["N3"]))
    found = [one.news_id for one in model.recommend(HISTORY, k=12)]
    assert len(found) == 12 - len(HISTORY)
    assert not set(found) & set(HISTORY)


@pytest.mark.parametrize("user", ["attentive", "gru"])
def test_serving_explains_by_the_latest_clicks_alone(model, user):
    if user == "gru":  # has no attention: every click would count
        model.weigh_clicks = lambda clicks: None
    feed = Feed(model, "fingerprint", None, batcher=None)
    texts = feed.catalogue.embeddings([])
    answer = feed.recommend(Query(history=HISTORY, k=7, explain=True), texts)
    assert [one.news.news_id for one in answer.ranked] == [one.news_id for one in model.recommend(HISTORY, k=7)]
    reasons = {reason.click for one in answer.ranked for reason in one.reasons}
    assert reasons
    assert reasons <= {3, 4}
    assert len(answer.clicks) == len(HISTORY)


def test_clicks_before_the_latest_have_no_weight(model):
    clicks = model.catalogue.embeddings_VD[[0, 8, 3, 6, 1]].numpy()
    weights = model.weigh_clicks(clicks)
    assert weights[:3].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(weights[3:], model.weigh_clicks(clicks[3:]))


def test_the_limit_is_saved_with_the_model_and_absent_in_earlier_ones(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert Recommender.from_pretrained(tmp_path).config.max_clicks == 2
    facts = json.loads((tmp_path / CONFIG).read_text("utf-8"))
    del facts["max_clicks"]
    (tmp_path / CONFIG).write_text(json.dumps(facts))
    (tmp_path / CHECKSUMS).unlink()
    earlier = Recommender.from_pretrained(tmp_path)
    assert earlier.config.max_clicks is None
    assert not np.allclose(earlier.encode_user(HISTORY), model.encode_user(HISTORY))
