"""Raw logs as Parquet files for the engine: rows of the canonical tables with their number, then article numbers.

This is the only pass over the raw files. Batches are written as they are read.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError
from speedyfeed.preparation.engine import Engine
from speedyfeed.progress import Report, counted

LATEST = datetime(2100, 1, 1)
"""Time after which no impression can be; times in a wrong unit are later."""
HEADER_TITLES = ("title", "headline")
HEADER_IDS = ("id", "news", "article", "item")
"""Words of a header line, in the columns of titles and of ids."""


def ingest_news(splits: Iterable[Split], path: Path, report: Report) -> int:
    """Write the articles of all splits to one file, each with its `row`, its split and its row in that split.

    Returns the number of rows.
    """
    schema = pa.schema([("row", pa.int64()), ("split", pa.string()), ("split_row", pa.int64()), *NEWS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for split in splits:
            split_row = 0
            for batch in counted(split.news(), report, f"read {split.name} articles"):
                _check_news(batch, split, split_row)
                numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
                split_numbers = pa.array(range(split_row, split_row + batch.num_rows), pa.int64())
                names = pa.repeat(pa.scalar(split.name), batch.num_rows)
                writer.write_batch(pa.record_batch([numbers, names, split_numbers, *batch.columns], schema=schema))
                row += batch.num_rows
                split_row += batch.num_rows
    return row


def ingest_impressions(split: Split, path: Path, report: Report) -> int:
    """Write the impressions of a split to one file, each with its `row` in the log; returns the number of rows."""
    schema = pa.schema([("row", pa.int64()), *IMPRESSIONS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in counted(split.impressions(), report, f"read {split.name} impressions"):
            _check_impressions(batch, split, row)
            numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
            writer.write_batch(pa.record_batch([numbers, *batch.columns], schema=schema))
            row += batch.num_rows
    return row


def _check_news(batch: pa.RecordBatch, split: Split, first_row: int) -> None:
    """Refuse articles with a blank id, and a header line that was read as an article."""
    _refuse_blank(batch["news_id"], "article", split, first_row)
    if first_row == 0 and batch.num_rows:
        news_id, title = (batch[name][0].as_py().strip().lower() for name in ("news_id", "title"))
        if title in HEADER_TITLES and any(word in news_id for word in HEADER_IDS):
            raise InputError(
                f"{split.files[0]}: found the header {news_id!r} ... {title!r} as the first article, expected an "
                "article; remove the header line"
            )


def _check_impressions(batch: pa.RecordBatch, split: Split, first_row: int) -> None:
    """Refuse impressions with a blank id, and times that can only be in another unit."""
    for name in ("impression_id", "user_id"):
        _refuse_blank(batch[name], f"{name.removesuffix('_id')} of impression", split, first_row)
    latest = pa.scalar(LATEST, pa.timestamp("us"))
    row = pc.index(pc.greater(batch["time"], latest), True).as_py()
    if row >= 0:
        raise InputError(
            f"{_files(split)}: found the time {batch['time'][row].cast(pa.string())} in impression "
            f"{first_row + row + 1} of {split.name}, expected one up to {LATEST:%Y}; are these milliseconds?"
        )


def _refuse_blank(ids: pa.StringArray, kind: str, split: Split, first_row: int) -> None:
    row = pc.index(pc.equal(pc.utf8_trim_whitespace(ids), ""), True).as_py()
    if row >= 0:
        raise InputError(
            f"{_files(split)}: found a blank id in {kind} {first_row + row + 1} of {split.name}, expected a text; "
            "fill it, or leave the row out"
        )


def _files(split: Split) -> str:
    return ", ".join(str(file) for file in split.files[-1:])


def number_news(engine: Engine, news: ir.Table, splits: Iterable[Split], first: ir.Table | None) -> ir.Table:
    """(news_id, news, row, is_first): distinct articles, numbered from 1 by first appearance.

    Articles in `first` (news_id) have the first numbers, and `is_first` is 1 for them. An article may occur in
    several splits, but only with the same text.
    """
    text = ibis.literal("\x1f").join([news[name] for name in NEWS.names[1:]])
    copies = news.select("news_id", "row", text=text.hash())
    distinct = copies.group_by("news_id").agg(row=_.row.min(), last=_.row.max(), texts=_.text.nunique())
    if first is None:
        marked = distinct.mutate(is_first=ibis.literal(0, "int64"))
    else:
        known = first.select(key="news_id", is_known=ibis.literal(1, "int64"))
        joined = distinct.left_join(known, distinct.news_id == known.key)
        marked = joined.select("news_id", "row", "texts", is_first=_.is_known.fill_null(0))
    by_first = ibis.window(order_by=[_.is_first.desc(), _.row])
    numbered = engine.save(marked.mutate(news=1 + ibis.row_number().over(by_first)), "news-numbers")
    clash = engine.load(numbered.filter(_.texts > 1).order_by("row").limit(1)).to_pylist()
    if clash:
        raise _two_texts(engine, news, clash[0]["news_id"], splits)
    return numbered.select("news_id", "news", "row", "is_first")


def _two_texts(engine: Engine, news: ir.Table, news_id: str, splits: Iterable[Split]) -> InputError:
    copies = engine.load(news.filter(_.news_id == news_id).order_by("row")).to_pylist()
    first = copies[0]
    other = next(copy for copy in copies if any(copy[name] != first[name] for name in NEWS.names))
    here, there = (_place(copy, splits) for copy in (other, first))
    return InputError(
        f"{here}: found article {news_id} with another text than {there}, expected the same; "
        "remove one of them or give them different ids"
    )


def _place(copy: dict[str, Any], splits: Iterable[Split]) -> str:
    """Origin of a row of `news`; text files have one article per line."""
    file = next(split.files[0] for split in splits if split.name == copy["split"])
    line = copy["split_row"] + 1
    return f"{file}:{line}" if file.suffix == ".tsv" else f"{file.parent}: article {line} of {copy['split']}"
