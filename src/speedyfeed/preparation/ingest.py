"""Raw logs as Parquet files for the engine: rows of the canonical tables with their number, then article numbers.

This is the only pass over the raw files. Batches are written as they are read.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError
from speedyfeed.preparation.contradictions import resolve
from speedyfeed.preparation.engine import Engine
from speedyfeed.progress import Report, counted

LATEST = datetime(2100, 1, 1)
"""Time after which no impression can be; times in a wrong unit are later."""
HEADER_TITLES = ("title", "headline")
HEADER_IDS = ("id", "news", "article", "item")
"""Words of a header line, in the columns of titles and of ids."""


def ingest_news(splits: Iterable[Split], path: Path, report: Report) -> int:
    """Write the articles of all splits to one file, each with its `row`; returns the number of rows."""
    schema = pa.schema([("row", pa.int64()), *NEWS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for split in splits:
            first_row = row
            for batch in counted(split.news(), report, f"read {split.name} articles"):
                _check_news(batch, split, row - first_row)
                numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
                writer.write_batch(pa.record_batch([numbers, *batch.columns], schema=schema))
                row += batch.num_rows
    return row


def ingest_impressions(split: Split, path: Path, report: Report) -> int:
    """Write the impressions of a split to one file, each with its `row` in the log.

    Returns how many articles an impression listed both as clicked and as skipped; they count as clicked.
    """
    schema = pa.schema([("row", pa.int64()), *IMPRESSIONS])
    row, num_both = 0, 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in counted(split.impressions(), report, f"read {split.name} impressions"):
            _check_impressions(batch, split, row)
            numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
            resolved, count = resolve(batch)
            writer.write_batch(pa.record_batch([numbers, *resolved.columns], schema=schema))
            row += batch.num_rows
            num_both += count
    return num_both


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


def number_news(engine: Engine, news: ir.Table, first: ir.Table | None) -> ir.Table:
    """(news_id, news, row, is_first, is_changed): distinct articles, numbered from 1 by first appearance.

    Articles in `first` (news_id) have the first numbers, and `is_first` is 1 for them. `row` is the last row of an
    article, whose text is used; `is_changed` is 1 where an earlier row has another text.
    """
    text = ibis.literal("\x1f").join([news[name] for name in NEWS.names[1:]])
    copies = news.select("news_id", "row", text=text.hash())
    distinct = copies.group_by("news_id").agg(
        first_row=_.row.min(), row=_.row.max(), is_changed=(_.text.nunique() > 1).cast("int64")
    )
    if first is None:
        marked = distinct.mutate(is_first=ibis.literal(0, "int64"))
    else:
        known = first.select(key="news_id", is_known=ibis.literal(1, "int64"))
        joined = distinct.left_join(known, distinct.news_id == known.key)
        marked = joined.mutate(is_first=_.is_known.fill_null(0)).drop("key", "is_known")
    by_first = ibis.window(order_by=[_.is_first.desc(), _.first_row])
    numbered = engine.save(marked.mutate(news=1 + ibis.row_number().over(by_first)), "news-numbers")
    return numbered.select("news_id", "news", "row", "is_first", "is_changed")
