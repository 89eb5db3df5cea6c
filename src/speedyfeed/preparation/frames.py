"""A log in memory as a store: a frame of articles, and one of clicks or of impressions.

    news                    clicks                       impressions
    item_id  title          user_id  item_id  time       user_id  time  clicked  skipped
    N3       Snow           U7       N3       09:05      U7       09:05 [N3]     [N1]

A frame is anything that Arrow can take: pandas, Polars, DuckDB or Arrow itself. Both are written as Parquet to a
temporary folder and read from there, so the arrays of the store are those that the same log as files would give.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from speedyfeed.data.readers.columns import is_list
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.preparation.prepare import Prepared, prepare
from speedyfeed.progress import Report, silent


def prepare_frames(
    news: Any,
    log: Any,
    store_path: Path,
    config: PrepareConfig,
    engine_config: EngineConfig | None = None,
    report: Report = silent,
    *,
    like: str | Path | None = None,
) -> Prepared:
    """Make the store of two frames, or open it when it exists and is up to date.

    `log` with a column `clicked` of lists are impressions, with the columns of the parquet format, and all of them
    are the train split; anything else are clicks, read as format interactions.
    """
    articles, rows = to_arrow(news, "news"), to_arrow(log, "clicks or impressions")
    has_impressions = "clicked" in rows.column_names and is_list(rows.schema.field("clicked").type)
    with TemporaryDirectory(prefix="speedyfeed-") as folder:
        logs = Path(folder) / ("train" if has_impressions else "")
        logs.mkdir(exist_ok=True)
        names = ("news", "impressions") if has_impressions else ("items", "interactions")
        for name, table in zip(names, (articles, rows), strict=True):
            pq.write_table(table, logs / f"{name}.parquet")
        return prepare(Path(folder), store_path, config, engine_config, report, like=like)


def to_arrow(frame: Any, name: str) -> pa.Table:
    """A frame as an Arrow table; the index of a pandas frame is left out."""
    if isinstance(frame, pa.Table):
        return frame.replace_schema_metadata(None)
    is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else pa.table(frame)
        return table.replace_schema_metadata(None)
    except (TypeError, ValueError, pa.ArrowException) as error:
        if is_pandas:  # the last of the reasons names the column
            reasons = "; ".join(map(str, error.args))
            raise InputError(
                f"{name}: found a column that Arrow cannot take ({reasons}), expected values of one type in each; "
                "convert it, as with astype(str)"
            ) from None
        raise InputError(
            f"{name}: found {type(frame).__name__}, expected a frame of pandas, Polars, Arrow or DuckDB; "
            f"convert it ({error})"
        ) from None
