"""Rows that no reader can know to be wrong: blank ids, headers, times in another unit, logs without a word."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.data.readers.columns import read_columns
from speedyfeed.data.tables import IMPRESSIONS as IMPRESSION_SCHEMA
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare

NEWS = {"news_id": ["N1", "N2", "N3"], "title": ["A cat runs", "A dog sleeps", "A bird sings"]}
IMPRESSIONS = {
    "impression_id": ["1", "2"],
    "user_id": ["U1", "U2"],
    "time": [datetime(2026, 1, 1), datetime(2026, 1, 2)],
    "clicked": [["N1"], ["N2"]],
    "skipped": [["N2"], ["N3"]],
    "history": [["N3"], ["N1"]],
}


def write(folder, *, news=None, impressions=None, split="train"):
    (folder / split).mkdir(parents=True)
    pq.write_table(pa.table(NEWS | (news or {})), folder / split / "news.parquet")
    pq.write_table(pa.table(IMPRESSIONS | (impressions or {})), folder / split / "impressions.parquet")
    return folder


WRONG = {
    "blank article": ({"news_id": ["N1", " ", "N3"]}, {}, "blank id in article 2 of train"),
    "blank impression": ({}, {"impression_id": ["1", ""]}, "blank id in impression of impression 2 of train"),
    "blank user": ({}, {"user_id": ["\t", "U2"]}, "blank id in user of impression 1 of train"),
    "milliseconds": ({}, {"time": [datetime(2026, 1, 1), datetime(9999, 1, 2)]}, "milliseconds"),
    "header": ({"news_id": ["News ID", "N2", "N1"], "title": ["Title", "a b", "c d"]}, {}, "the header 'news id'"),
    "no word": ({"title": ["", "!", " "]}, {}, "none of 3 articles has a word in title, abstract, body"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_named(tmp_path, name):
    news, impressions, message = WRONG[name]
    with pytest.raises(InputError, match=message) as error:
        prepare(write(tmp_path / "logs", news=news, impressions=impressions), tmp_path / "store", PrepareConfig())
    assert str(tmp_path / "logs" / "train") in str(error.value)
    assert not (tmp_path / "store").exists()


def test_an_article_may_be_about_titles(tmp_path):
    news = {"title": ["Title", "A dog sleeps", "A bird sings"]}
    assert prepare(write(tmp_path / "logs", news=news), tmp_path / "store", PrepareConfig()).store.num_news == 3


def test_splits_may_be_named_in_any_case(tmp_path):
    write(write(tmp_path / "logs", split="Train"), split="Validation")
    assert prepare(tmp_path / "logs", tmp_path / "store", PrepareConfig()).store.splits == ("train", "dev")


def test_damaged_bytes_of_a_parquet_file_are_named_or_harmless(tmp_path):
    path = write(tmp_path / "logs") / "train" / "impressions.parquet"
    content = path.read_bytes()
    num_named = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            list(read_columns(path, IMPRESSION_SCHEMA, {"candidates": None}))
        except InputError as error:
            num_named += str(error).startswith(str(path))
    assert num_named > 20
