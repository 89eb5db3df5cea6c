"""Raw logs as Parquet files for the engine: rows of the canonical tables with their number, then article numbers.

This is the only pass over the raw files. Batches are written as they are read.
"""

from collections.abc import Iterable
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.preparation.contradictions import resolve
from speedyfeed.preparation.engine import Engine
from speedyfeed.progress import Report, counted


def ingest_news(splits: Iterable[Split], path: Path, report: Report) -> int:
    """Write the articles of all splits to one file, each with its `row`; returns the number of rows."""
    schema = pa.schema([("row", pa.int64()), *NEWS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for split in splits:
            for batch in counted(split.news(), report, f"read {split.name} articles"):
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
            numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
            resolved, count = resolve(batch)
            writer.write_batch(pa.record_batch([numbers, *resolved.columns], schema=schema))
            row += batch.num_rows
            num_both += count
    return num_both


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
