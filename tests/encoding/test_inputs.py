"""Articles packed one by one look as the store holds them."""

import numpy as np
import pytest
import torch

from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.encoding.inputs import Articles, load_packer, open_packed
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.news import NewsEncoder
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.tokenizers import load_tokenizer

ARTICLES = [
    ("The cat saw the other cat run", "A cat ran."),
    ("Ministers agree: budget cut by 3.5%",),
    ('He said "no" to the budget', "Ærlig talt, über alt", ""),
    ("Late goal wins the cup", "The cup goes north after a late, late goal."),
    "Cup final moved to Sunday",
]


def same(a, b):
    names = ("tokens_T", "frequencies_T", "segment_starts", "news_starts")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def packer_of(store):
    return Articles(store.text_facts, document_frequencies=store.path / DOCUMENT_FREQUENCIES, encoder="minilm")


@pytest.fixture(params=["bm25", "long", "none"])
def store(request, mind_logs, tmp_path):
    return prepare(mind_logs, tmp_path / "store", PrepareConfig(refine=request.param, segment_tokens=8)).store


def test_articles_become_what_the_store_holds(store):
    pack = packer_of(store)
    news = open_packed(store)
    assert same(pack(ARTICLES), news.select(torch.arange(1, 6)))
    assert same(pack(ARTICLES[3:]), news.select(torch.tensor([4, 5])))  # no matter in what company
    assert len(pack([])) == 0


def test_an_encoder_with_frozen_layers_does_not_take_articles_for_news_it_knows(mind_logs, tiny_encoder, tmp_path):
    store = prepare(mind_logs, tmp_path / "store", PrepareConfig()).store
    encoder = NewsEncoder(NewsEncoderConfig(encoder=str(tiny_encoder), train_layers=1)).eval()
    encoder.packer = packer_of(store)
    known = encoder.encode_all(open_packed(store))  # its lower layers are kept by the id of the article
    last, again = encoder.encode(ARTICLES[4:]), encoder.encode(ARTICLES[4:])
    np.testing.assert_allclose(last[0], known[5], atol=1e-6)
    np.testing.assert_allclose(last, again, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(ARTICLES[:1])[0], known[1], atol=1e-6)


def test_an_empty_article_is_an_empty_segment(store):
    pack = packer_of(store)
    assert pack(["", ("", " ", "")]).lengths_K.tolist() == [2, 2]
    with pytest.raises(InputError, match="4 parts, expected title, abstract and body"):
        pack([("a", "b", "c", "d")])


def test_rules_are_saved_with_the_model(store, tmp_path):
    pack = packer_of(store)
    (tmp_path / "model").mkdir()
    load_tokenizer("minilm").save_pretrained(tmp_path / "model" / "encoder")
    pack.save(tmp_path / "model")
    again = load_packer(tmp_path / "model")
    assert same(again(ARTICLES), pack(ARTICLES))
    again.save(tmp_path / "model")  # over itself
    assert same(load_packer(tmp_path / "model")(ARTICLES), pack(ARTICLES))
