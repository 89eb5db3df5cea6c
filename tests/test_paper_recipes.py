"""The paper as recipes: every value it states, and a short run of them."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from speedyfeed.cli.main import main
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.packed import pack_texts
from speedyfeed.preparation.config import TextConfig
from speedyfeed.preparation.refine import BM25_K1
from speedyfeed.preparation.text import SEGMENT_WORDS
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import RECIPES, recipe
from tests.models.test_unilm import published, write

ENCODERS = {
    "paper-unilm": "unilm:unilm2-base",
    "paper-mini": "minilm",
    "paper-half": "half:unilm:unilm2-base",
    "paper-last": "last:unilm:unilm2-base",
}
STATED = {
    "train.encoder_lr": 8e-6,  # "The learning rate is 8e-6 for pretrained model and 1e-4 for other layers"
    "train.lr": 1e-4,
    "train.schedule": "constant",  # "with the Adam optimizer", and nothing else about it
    "train.weight_decay": 0.0,
    "train.clip": 0.0,
    "train.init": "random",
    "batch.negatives": 1,  # "The negative sampling ratio is 1"
    "batch.max_clicks": 100,  # "The max length of user click history is 100"
    "batch.mode": "padded",
    "batch.num_buckets": 2,  # "We use 2 buckets"
    "batch.token_budget": 39_800,  # "once a basket is filled with 39800 tokens"
    "batch.max_clicks_per_batch": 16_384,  # nothing is said of such a limit
    "batch.central": True,
    "batch.autoregressive": True,
    "batch.first_click": False,  # Eq. auto: the sum has the clicks 2 to L
    "batch.size": 0,
    "cache.gamma": 20,  # "the default expiration-step of cache is 20"
    "cache.beta": 2e-3,  # "the hyper-parameter beta is 2e-3"
    "cache.draw": "step",  # Algorithm 2, line 4
    "cache.dtype": "fp32",
    "cache.gradients": False,
    "loss.temperature": 1.0,  # "inner product"
    "loss.learn_temperature": False,
    "loss.article_bias": False,
    "user.recency": False,
    "user.sharpness": 0.0,
    "loss.in_batch": 0.0,
    "loss.fallback_negatives_weight": 0.0,
    "news.dim": 0,  # e is the sum of the segments, of the encoder's own width
    "news.normalize": False,
    "news.categories": False,  # "news categories ... are omitted here"
    "news.bus": True,
    "news.segments": True,
    "news.segment_length": 32,  # "a text segment from each of them, whose length is no more than 32"
    "news.train_layers": 0,
    "news.hidden_dropout": None,  # not stated: the encoder's own
    "news.attention_dropout": None,
    "user.name": "attentive",  # "Attentive YouTube-DNN"
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_recipe_of_the_paper_has_the_values_that_the_paper_states(name):
    run = recipe(name)
    found = {key: getattr(getattr(run, key.split(".")[0]), key.split(".")[1]) for key in STATED}
    assert found == STATED
    assert run.news.encoder == ENCODERS[name]
    assert (run.news.frozen_gigabytes == 0) == (name == "paper-last")
    usual = replace(recipe("paper-mini").news, encoder=ENCODERS[name], frozen_gigabytes=run.news.frozen_gigabytes)
    assert run.news == usual  # they differ in their encoder alone
    assert {part.name: getattr(run, part.name) for part in fields(run) if part.name != "news"} == {
        part.name: getattr(recipe("paper-mini"), part.name) for part in fields(run) if part.name != "news"
    }


@pytest.mark.parametrize("name", [name for name, encoder in ENCODERS.items() if "unilm" in encoder])
def test_a_recipe_of_the_paper_builds_and_trains_unilm(name, tmp_path):
    path = write(tmp_path, published(fused=True))
    settings = replace(recipe(name).news, encoder=ENCODERS[name].replace("unilm2-base", str(path)))
    encoder = NewsEncoder(settings).train()
    news = pack_texts(["storm coast", ("storms", "coast", "storm")], encoder.tokenizer, settings.segment_length)
    rows = encoder(replace(news, pad_to=0))
    rows.square().sum().backward()
    assert rows.shape == (2, encoder.encoder.config.hidden_size)
    trained = [layer.attention.output.dense.weight.grad is not None for layer in encoder.encoder.encoder.layer]
    assert trained[-1]
    assert all(trained[:-1]) == (name != "paper-last" or len(trained) == 1)
    assert encoder.encoder.config.attention_probs_dropout_prob > 0  # the encoder's own


def test_texts_can_be_prepared_as_the_paper_says():
    """k1 of BM25 is 2, the 32 best words of a segment, three segments of 32 tokens, a body's first paragraph."""
    text = TextConfig(refine="long", body_paragraphs=1)
    assert (BM25_K1, SEGMENT_WORDS, text.segment_tokens, text.parts) == (2.0, 32, 32, (1, 1, 1))
    assert (TextConfig().refine, TextConfig().body_paragraphs) == ("bm25", 0)


def test_the_recipes_of_the_paper_are_in_the_help_of_train():
    source = (Path(__file__).parents[1] / "src/speedyfeed/cli/train.py").read_text("utf-8")
    assert set(RECIPES) <= set(re.findall(r"[a-z]+(?:-[a-z]+)?", source))


@pytest.mark.parametrize(
    ("name", "prefix"), [("paper-mini", ""), ("paper-half", "half:"), ("paper-last", "last:")]
)
def test_a_recipe_of_the_paper_trains(name, prefix, newsroom, tiny_encoder, tmp_path, capsys):
    store = tmp_path / "store"
    encoder = f"--encoder={prefix}{tiny_encoder}"
    main(["prepare", str(newsroom.logs), str(store), "--refine", "long", "--body-paragraphs", "1", encoder])
    run = tmp_path / "run"
    limits = ["--steps", "2", "--validations", "1", "--validation-impressions", "20", "--precision", "fp32"]
    main(["train", str(store), str(run), "--recipe", name, encoder, *limits])
    capsys.readouterr()
    saved = json.loads((run / "run.json").read_text("utf-8"))
    assert saved["config"]["train"]["init"] == "random"
    model = Recommender.from_pretrained(run)
    assert isinstance(model.news, NewsEncoder)
    assert isinstance(model.news.projection, torch.nn.Identity)
    assert model.news.category is None
    assert model.news.dim == model.news.width == (16 if prefix == "half:" else 32)
    assert model.user.score.weight.any()
    assert not model.user.start.any()
    texts = ["Late goal wins the cup", "Ministers agree on the budget"]
    rows = torch.from_numpy(model.encode_news(texts))
    assert not torch.allclose(rows.norm(dim=1), torch.ones(2), atol=1e-3)  # of no unit norm
    main(["evaluate", str(run), str(store), "--json", "--exact"])
    assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["auc"] < 1
