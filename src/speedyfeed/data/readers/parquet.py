"""Canonical tables as Parquet, so that any warehouse can export them.

Every split has `news.parquet` and `impressions.parquet`, or folders `news/` and `impressions/` of part files. Ids
may be integers; strings, lists and times may have any width.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from speedyfeed.data.readers.columns import read_columns
from speedyfeed.data.readers.folders import find_split_or_self, require_file
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split

FILES = "train/ and dev/ (and test/), each with news.parquet and impressions.parquet (or folders of part files)"

_DEFAULTS: Mapping[str, Any] = {
    "category": "",
    "subcategory": "",
    "abstract": "",
    "body": "",
    "history": [],
    "candidates": None,
}
"""Values for absent columns and for nulls; a column without a default is required."""


def recognises(folder: Path) -> bool:
    return any(_parts(split, "impressions") for split in find_split_or_self(folder).values())


def open_splits(folder: Path) -> tuple[Split, ...]:
    return tuple(_open_split(name, path) for name, path in find_split_or_self(folder).items())


def _open_split(name: str, folder: Path) -> Split:
    news = _parts(folder, "news") or (require_file(folder / "news.parquet", FILES),)
    impressions = _parts(folder, "impressions") or (require_file(folder / "impressions.parquet", FILES),)
    return Split(
        name=name,
        files=news + impressions,
        news=partial(_read_table, news, NEWS),
        impressions=partial(_read_table, impressions, IMPRESSIONS),
    )


def _parts(folder: Path, table: str) -> tuple[Path, ...]:
    """The single file of a table, or its part files ordered by name."""
    file = folder / f"{table}.parquet"
    return (file,) if file.is_file() else tuple(sorted((folder / table).glob("*.parquet")))


def _read_table(parts: tuple[Path, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in parts:
        yield from read_columns(path, schema, _DEFAULTS)
