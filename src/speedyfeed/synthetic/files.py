"""Files of a synthetic newsroom: MIND's text files or the canonical tables as Parquet, written block by block."""

from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from speedyfeed.data.tables import IMPRESSIONS, NEWS
from speedyfeed.ragged import Ragged
from speedyfeed.synthetic.pages import Pages

OPENING = datetime(2020, 5, 1)
"""First day of the log, as in the paper."""


class SplitWriter(Protocol):
    """Writes one split; `news_ids` has the id of each article number."""

    def write_pages(self, pages: Pages, first_user: int, news_ids: pa.StringArray) -> None: ...

    def write_news(self, news: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class ParquetSplit:
    """Writes `news.parquet` and `impressions.parquet`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._stack = ExitStack()
        self._news = self._open(folder / "news.parquet", NEWS)
        self._impressions = self._open(folder / "impressions.parquet", IMPRESSIONS)
        self._num_impressions = 0

    def write_pages(self, pages: Pages, first_user: int, news_ids: pa.StringArray) -> None:
        impression = self._num_impressions + np.arange(1, len(pages.user) + 1)
        time = np.datetime64(OPENING, "us") + pages.time.astype("timedelta64[s]")
        columns = [
            pa.array(impression).cast(pa.string()),
            _user_ids(pages, first_user),
            pa.array(time),
            _lists(pages.pick(pages.is_clicked), news_ids),
            _lists(pages.pick(~pages.is_clicked), news_ids),
            _lists(pages.history, news_ids),
            _lists(pages.candidates, news_ids),
        ]
        self._impressions.write_batch(pa.record_batch(columns, schema=IMPRESSIONS))
        self._num_impressions += len(pages.user)

    def write_news(self, news: pa.RecordBatch) -> None:
        self._news.write_batch(news)

    def _open(self, path: Path, schema: pa.Schema) -> pq.ParquetWriter:
        return self._stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))

    def close(self) -> None:
        self._stack.close()


class MindSplit:
    """Writes `news.tsv` and `behaviors.tsv`; bodies are left out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._stack = ExitStack()
        self._news = self._open(folder / "news.tsv")
        self._behaviors = self._open(folder / "behaviors.tsv")
        self._num_impressions = 0

    def write_pages(self, pages: Pages, first_user: int, news_ids: pa.StringArray) -> None:
        candidates = pc.binary_join_element_wise(
            news_ids.take(pa.array(pages.candidates.values)),
            pa.array(pages.is_clicked).cast(pa.int8()).cast(pa.string()),
            "-",
        )
        offsets = pa.array(pages.candidates.offsets.astype(np.int32))
        columns = zip(
            _user_ids(pages, first_user).to_pylist(),
            pages.time.tolist(),
            pc.binary_join(_lists(pages.history, news_ids), " ").to_pylist(),
            pc.binary_join(pa.ListArray.from_arrays(offsets, candidates), " ").to_pylist(),
            strict=True,
        )
        for impression, (user, time, history, shown) in enumerate(columns, self._num_impressions + 1):
            print(impression, user, _mind_time(time), history, shown, sep="\t", file=self._behaviors)
        self._num_impressions += len(pages.user)

    def write_news(self, news: pa.RecordBatch) -> None:
        for row in news.to_pylist():
            url = f"https://newsroom.example/{row['news_id']}"
            fields = ("news_id", "category", "subcategory", "title", "abstract")
            print(*(row[field] for field in fields), url, "[]", "[]", sep="\t", file=self._news)

    def _open(self, path: Path) -> TextIO:
        return self._stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))

    def close(self) -> None:
        self._stack.close()


def _user_ids(pages: Pages, first_user: int) -> pa.StringArray:
    return pc.binary_join_element_wise("U", pa.array(first_user + pages.user + 1).cast(pa.string()), "")


def _lists(rows: Ragged, news_ids: pa.StringArray) -> pa.ListArray:
    offsets = pa.array(rows.offsets.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, news_ids.take(pa.array(rows.values)))


def _mind_time(seconds: int) -> str:
    time = OPENING + timedelta(seconds=seconds)
    half = "AM" if time.hour < 12 else "PM"
    return f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time:%M:%S} {half}"
