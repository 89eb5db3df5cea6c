"""Whatever is fitted to articles sees those of train alone: not those of validation, nor of dev."""

import json

import pyarrow.parquet as pq
import pytest

from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.encoding.ids import id_maps_of
from speedyfeed.models.config import NewsEncoderConfig, RecommenderConfig
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from tests.conftest import write_mind_split

NEWS = {
    "N1": ("later", "Storm storm coast", ""),  # shown in validation only
    "N2": ("sport", "Cup goal", ""),
    "N3": ("world", "Cup budget", ""),
    "N4": ("unused", "Storm harbour", ""),  # shown nowhere
    "N5": ("dev", "Storm goal", ""),  # shown in dev only
    "N6": ("past", "Budget vote goal", ""),  # in a history of train
}
TRAIN = [
    ("1", "U1", "11/11/2019 9:00:00 AM", "N6", "N2-1 N3-0"),
    ("2", "U1", "11/12/2019 9:00:00 AM", "N6", "N1-1 N3-0"),
]
DEV = [("3", "U1", "11/13/2019 9:00:00 AM", "N6", "N5-1 N3-0")]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train_articles")
    write_mind_split(folder / "logs" / "train", NEWS, TRAIN)
    write_mind_split(folder / "logs" / "dev", NEWS, DEV)
    return prepare(folder / "logs", folder / "store", PrepareConfig(validation=0.5)).store


def test_train_articles_have_the_first_numbers(store):
    assert store.load_titles()["news_id"].to_pylist() == ["N2", "N3", "N6", "N1", "N4", "N5"]
    assert store.num_train_news == 3
    assert [shown.tolist() for shown in store.impressions("valid").candidates] == [[4, 2]]


def test_document_frequencies_are_those_of_train(store):
    table = pq.read_table(store.path / DOCUMENT_FREQUENCIES)
    found = dict(zip(table["word"].to_pylist(), table["num_news"].to_pylist(), strict=True))
    assert found == {"budget": 2, "cup": 2, "goal": 2, "vote": 1}
    assert store.manifest.statistics.num_news == 3
    assert store.manifest.statistics.mean_words == (7 / 3, 0, 0)


def test_the_vocabulary_is_that_of_train(store):
    words = json.loads((store.word_tokenizer / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    assert {"budget", "cup", "goal"} == {word for word in words if not word.startswith("[")}


def test_categories_are_those_of_train(store):
    config = RecommenderConfig(news=NewsEncoderConfig(categories=True))
    assert id_maps_of(store, config).categories == ["past", "sport", "world"]
