"""Raw logs as Parquet files for the engine: rows of the canonical tables with their number, then article numbers.

This is the only pass over the raw files. Batches are written as they are read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.manifest import SetAside
from speedyfeed.data.tables import FIELDS, IMPRESSIONS, NEWS, Split
from speedyfeed.errors import InputError
from speedyfeed.preparation.contradictions import resolve
from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.plain_text import compose, strip_markup
from speedyfeed.progress import Report, counted

LATEST = datetime(2100, 1, 1)
"""Time after which no impression can be; times in a wrong unit are later."""
HEADER_TITLES = ("title", "headline")
HEADER_IDS = ("id", "news", "article", "item")
"""Words of a header line, in the columns of titles and of ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Ingested impressions of every split of a store."""

    files: dict[str, Path]
    """File of each split, in the order train, valid, dev, test."""
    whole_train: Path
    """File of all train impressions of the log, those set aside included."""
    set_aside: SetAside | None = None
    """Facts about the validation split that was set aside from train; None where none was."""
    has_set_aside_histories: bool = False
    """Whether impressions that were set aside have got their histories, which the log does not give."""
    num_both: int
    """Articles that an impression listed both as clicked and as skipped."""


def ingest_splits(splits: Sequence[Split], scratch: Path, report: Report) -> Sources:
    """Write the impressions of every split to a file of its own."""
    files = {split.name: scratch / f"{split.name}.parquet" for split in splits}
    num_both = sum(ingest_impressions(split, files[split.name], report) for split in splits)
    return Sources(files=files, whole_train=scratch / "train.parquet", num_both=num_both)


@dataclass(slots=True)
class IngestedNews:
    """Counts of the rows of articles that were read, and of their texts that were changed."""

    rows: int = 0
    with_markup: int = 0
    """Titles, abstracts and bodies that markup was taken out of."""
    decomposed: int = 0
    """Titles, abstracts and bodies whose accents were characters of their own."""


def ingest_news(splits: Iterable[Split], path: Path, report: Report) -> IngestedNews:
    """Write the articles of all splits to one file, each with its `row` and plain texts."""
    schema = pa.schema([("row", pa.int64()), *NEWS])
    counts = IngestedNews()
    with pq.ParquetWriter(path, schema) as writer:
        for split in splits:
            first_row = counts.rows
            for batch in counted(split.news(), report, f"read {split.name} articles"):
                _check_news(batch, split, counts.rows - first_row)
                numbers = pa.array(range(counts.rows, counts.rows + batch.num_rows), pa.int64())
                columns = [
                    _plain_texts(name, batch[name], counts) if name in FIELDS else batch[name]
                    for name in NEWS.names
                ]
                writer.write_batch(pa.record_batch([numbers, *columns], schema=schema))
                counts.rows += batch.num_rows
    return counts


def _plain_texts(field: str, texts: pa.StringArray, counts: IngestedNews) -> pa.StringArray:
    """Texts of this field without markup, in composed characters; what changes is counted."""
    written = texts.to_pylist()
    stripped = [strip_markup(field, text) for text in written]
    plain = [compose(text) for text in stripped]
    counts.with_markup += sum(a != b for a, b in zip(written, stripped, strict=True))
    counts.decomposed += sum(a != b for a, b in zip(stripped, plain, strict=True))
    return pa.array(plain, pa.string())


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
