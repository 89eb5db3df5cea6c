"""Read logs of your own format: here two JSON-lines files per split, with your own field names.

python examples/own_reader.py LOGS STORE
"""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pyarrow as pa

import speedyfeed
from speedyfeed.data.readers import READERS
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split


class JsonLinesReader:
    """LOGS/train and LOGS/dev, each with articles.jsonl and views.jsonl."""

    FILES = "train/articles.jsonl and train/views.jsonl"

    def recognises(self, folder: Path) -> bool:
        """Tell by its files whether a folder is of this format."""
        return (folder / "train" / "views.jsonl").exists()

    def open_splits(self, folder: Path) -> tuple[Split, ...]:
        """Describe the splits; nothing is read yet."""
        return tuple(self._open(folder / name) for name in ("train", "dev") if (folder / name).is_dir())

    def _open(self, folder: Path) -> Split:
        files = (folder / "articles.jsonl", folder / "views.jsonl")
        news, impressions = partial(self._news, files[0]), partial(self._impressions, files[1])
        return Split(name=folder.name, files=files, news=news, impressions=impressions)

    def _news(self, file: Path) -> Iterator[pa.RecordBatch]:
        empty = dict.fromkeys(NEWS.names, "")
        rows = [empty | {"news_id": row["id"], "title": row["headline"]} for row in _rows(file)]
        yield pa.RecordBatch.from_pylist(rows, NEWS)

    def _impressions(self, file: Path) -> Iterator[pa.RecordBatch]:
        rows = [
            {"impression_id": str(number), "user_id": row["visitor"], "time": datetime.fromisoformat(row["at"])}
            | {"clicked": row["opened"], "skipped": row["ignored"], "history": row["before"], "candidates": None}
            for number, row in enumerate(_rows(file))
        ]
        yield pa.RecordBatch.from_pylist(rows, IMPRESSIONS)


def _rows(file: Path) -> Iterator[dict]:
    return map(json.loads, file.read_text("utf-8").splitlines())


if __name__ == "__main__":
    logs, folder = sys.argv[1:]
    READERS["my-jsonl"] = JsonLinesReader()
    store = speedyfeed.prepare(logs, folder)
    print(f"{store.num_news} articles, splits {', '.join(store.splits)}")
