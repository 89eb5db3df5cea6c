"""Raw logs to Parquet an engine can open: every row of the canonical tables, numbered; then every news, numbered.

The only pass over the raw files. Batches are written as they are read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError
from speedyfeed.preparation.engine import Engine
from speedyfeed.progress import Report, counted


def ingest_news(splits: Iterable[Split], path: Path, report: Report) -> int:
    """The news of all splits in one file, with their `row` in it, their split and their row in that split."""
    schema = pa.schema([("row", pa.int64()), ("split", pa.string()), ("split_row", pa.int64()), *NEWS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for split in splits:
            split_row = 0
            for batch in counted(split.news(), report, f"read {split.name} news"):
                numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
                split_numbers = pa.array(range(split_row, split_row + batch.num_rows), pa.int64())
                names = pa.repeat(pa.scalar(split.name), batch.num_rows)
                writer.write_batch(pa.record_batch([numbers, names, split_numbers, *batch.columns], schema=schema))
                row += batch.num_rows
                split_row += batch.num_rows
    return row


def ingest_impressions(split: Split, path: Path, report: Report) -> int:
    """The impressions of a split with their `row` in the log."""
    schema = pa.schema([("row", pa.int64()), *IMPRESSIONS])
    row = 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in counted(split.impressions(), report, f"read {split.name} impressions"):
            numbers = pa.array(range(row, row + batch.num_rows), pa.int64())
            writer.write_batch(pa.record_batch([numbers, *batch.columns], schema=schema))
            row += batch.num_rows
    return row


def number_news(engine: Engine, news: ir.Table, splits: Iterable[Split]) -> ir.Table:
    """(news_id, news, row): distinct news numbered from 1 by first appearance.

    The same news may come in several splits, but only with the same text.
    """
    text = ibis.literal("\x1f").join([news[name] for name in NEWS.names[1:]])
    copies = news.select("news_id", "row", text=text.hash())
    distinct = copies.group_by("news_id").agg(row=_.row.min(), last=_.row.max(), texts=_.text.nunique())
    numbered = engine.save(distinct.mutate(news=1 + ibis.row_number().over(order_by=distinct.row)), "news-numbers")
    clash = engine.load(numbered.filter(_.texts > 1).order_by("row").limit(1)).to_pylist()
    if clash:
        raise _two_texts(engine, news, clash[0]["news_id"], splits)
    return numbered.select("news_id", "news", "row")


def _two_texts(engine: Engine, news: ir.Table, news_id: str, splits: Iterable[Split]) -> InputError:
    copies = engine.load(news.filter(_.news_id == news_id).order_by("row")).to_pylist()
    first = copies[0]
    other = next(copy for copy in copies if any(copy[name] != first[name] for name in NEWS.names))
    here, there = (_place(copy, splits) for copy in (other, first))
    return InputError(
        f"{here}: found news {news_id} with another text than {there}, expected the same; "
        "keep one of them or give them different ids"
    )


def _place(copy: dict[str, Any], splits: Iterable[Split]) -> str:
    """Where a row of news comes from; text files have one news a line."""
    file = next(split.files[0] for split in splits if split.name == copy["split"])
    line = copy["split_row"] + 1
    return f"{file}:{line}" if file.suffix == ".tsv" else f"{file.parent}: news {line} of {copy['split']}"
