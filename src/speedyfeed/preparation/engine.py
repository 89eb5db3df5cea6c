"""Engine of the relational work: DuckDB inside this process, or Spark for logs that outgrow the machine.

Queries are Ibis expressions over Parquet files, written once for both; an engine opens tables and writes sorted
results. Both spill to disk, so memory stays bounded by `EngineConfig.memory`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from speedyfeed.errors import InputError
from speedyfeed.preparation.config import EngineConfig


class Engine:
    """An Ibis backend with a scratch folder for its results."""

    def __init__(self, backend: Any, scratch: Path, workers: int = 1) -> None:
        self.backend = backend
        self.scratch = scratch
        self.workers = workers
        """Number of processes that make arrays of its results."""

    def path(self, name: str) -> Path:
        """File, or folder of files, of a result."""
        return self.scratch / f"{name}.parquet"

    def open(self, path: Path) -> ir.Table:
        """Open a Parquet file or folder as a table."""
        table: ir.Table = self.backend.read_parquet(str(path))
        return table

    def save(self, expression: ir.Table, name: str) -> ir.Table:
        """Compute an expression once and return a table that reads the result from disk."""
        self.backend.to_parquet(expression, str(self.path(name)))
        return self.reopen(name)

    def reopen(self, name: str) -> ir.Table:
        """Open a result that was computed before."""
        return self.open(self.path(name))

    def read(self, expression: ir.Table, name: str, batch_rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Compute an ordered expression and stream its rows in order, in bounded memory."""
        self.save(expression, name)
        yield from self.reread(name, batch_rows)

    def reread(self, name: str, batch_rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Stream again what `read` or `save` computed under that name."""
        path = self.path(name)
        # Spark writes a folder of parts whose names sort in row order; DuckDB writes one file.
        for part in sorted(path.glob("part-*")) if path.is_dir() else [path]:
            with pq.ParquetFile(part) as file:
                yield from file.iter_batches(batch_size=batch_rows)

    def load(self, expression: ir.Table) -> pa.Table:
        """Compute a small expression and load its result into memory."""
        table: pa.Table = self.backend.to_pyarrow(expression)
        return table.combine_chunks().replace_schema_metadata(None)  # metadata would differ between engines


@contextmanager
def open_engine(config: EngineConfig, scratch: Path) -> Iterator[Engine]:
    """Open an engine whose temporary files are in `scratch`, and close it at the end."""
    threads = config.threads or os.cpu_count() or 1
    if config.engine == "duckdb":
        backend = ibis.duckdb.connect(
            memory_limit=f"{config.memory}GB", temp_directory=str(scratch / "spill"), threads=threads
        )
        with suppress(
            duckdb.InvalidInputException
        ):  # in a notebook without ipywidgets there is no bar to turn off
            backend.raw_sql("SET enable_progress_bar = false")
        try:
            yield Engine(backend, scratch, config.workers or os.cpu_count() or 1)
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"DuckDB ran out of room: {reason}; free some disk space, or change --memory"
            ) from error
        finally:
            backend.disconnect()
    else:
        with _spark_session(config, threads, scratch) as session:
            yield Engine(ibis.pyspark.connect(session), scratch, config.workers or os.cpu_count() or 1)


@contextmanager
def _spark_session(config: EngineConfig, threads: int, scratch: Path) -> Iterator[Any]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InputError("--engine spark needs the spark extra: pip install 'speedyfeed[spark]'") from error
    active = SparkSession.getActiveSession()
    session = active or (
        SparkSession.builder.appName("speedyfeed")
        .master(os.environ.get("SPARK_MASTER", f"local[{threads}]"))
        .config("spark.driver.memory", f"{config.memory}g")
        .config("spark.local.dir", str(scratch / "spill"))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", str(2 * threads))
        .getOrCreate()
    )
    previous_zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield session
    finally:
        if active is None:
            session.stop()
        else:
            session.conf.set("spark.sql.session.timeZone", previous_zone)
