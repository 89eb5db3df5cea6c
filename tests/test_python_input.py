"""Mistakes in Python calls are answered in one clear error; text is a path wherever a path is expected."""

from pathlib import Path

import numpy as np
import pytest

from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig, WordConfig
from speedyfeed.models.packed import article_parts
from speedyfeed.retrieval.index import ExactIndex
from speedyfeed.retrieval.storage import open_index
from tests.serving.small_run import build_recommender


@pytest.fixture(scope="module")
def model():
    return build_recommender()


def test_articles_are_titles_sequences_or_dictionaries():
    parts = article_parts(["a", ("a", "b"), {"title": "a", "body": "c"}, []])
    assert parts == [("a", "", ""), ("a", "b", ""), ("a", "", "c"), ("", "", "")]


@pytest.mark.parametrize(
    ("articles", "message"),
    [
        ("a title", "found a single one, expected a list"),
        ({"title": "a"}, "found a single one, expected a list"),
        (["a", {"headline": "b"}], "article 1: found headline, expected only title, abstract and body"),
        ([("a", None)], "article 0: found None, expected text"),
        ([{"title": 3}], "article 0: found 3, expected text"),
        ([("a", "b", "c", "d")], "article 0: found 4 parts"),
    ],
)
def test_other_articles_are_refused(articles, message, model):
    with pytest.raises(InputError, match=message):
        model.encode_news(articles)


def test_dictionaries_are_encoded_by_their_names(model):
    by_name = model.encode_news([{"body": "All week.", "title": "Rain"}])
    np.testing.assert_array_equal(by_name, model.encode_news([("Rain", "", "All week.")]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.encode_news(["a", "b"], ["sport"]), "categories: found 1 for 2 texts"),
        (lambda model: model.encode_news(["a"], "sport"), "categories 'sport': found a single text"),
        (lambda model: model.recommend("N1"), "articles 'N1': found a single text"),
        (lambda model: model.score(["N1"], "N2"), "articles 'N2': found a single text"),
        (lambda model: model.recommend([1]), "news 1: not among"),
        (lambda model: model.encode_user(np.zeros((2, 3), np.float32)), r"shape \(2, 3\), expected \(clicks, "),
    ],
)
def test_wrong_histories_and_categories_are_named(call, message, model):
    with pytest.raises(InputError, match=message):
        call(model)


def test_text_is_a_path(tmp_path):
    ExactIndex.build(np.array([1]), np.ones((1, 2), np.float32)).save(str(tmp_path / "index"))
    assert len(open_index(str(tmp_path / "index"))) == 1
    assert WordConfig(glove="vectors.txt").glove == Path("vectors.txt")
    assert NewsEncoderConfig(frozen_file="states").frozen_file == Path("states")
