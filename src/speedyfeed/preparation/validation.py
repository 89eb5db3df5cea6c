"""The validation split: train impressions set aside, so that training chooses nothing on what it is evaluated on.

    by time, a share of them            a log without times
    1 2 3 4 5 6 7 8 | 9 10              U7: 1 2 | 3     U8: 4 | 5     U9: 6
         train        valid                train  valid   (6 is all that U9 has, and stays in train)

What is set aside is gone from train, as clicks and as histories: a timeline begins with the history of the first
impression that stays. The engine chooses the impressions; the rest is one pass over the ingested file.
"""

from contextlib import ExitStack
from pathlib import Path

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ibis import _
from numpy.typing import NDArray

from speedyfeed.data.manifest import SetAside
from speedyfeed.preparation.engine import Engine

SHARE = 0.1
"""Share of the train impressions that is set aside by default."""
FEWEST, MOST = 500, 10_000
"""Bounds on the default number of impressions that are set aside."""
LARGEST_SHARE = 0.25
"""Upper bound on the default share, for logs where even the fewest would be more."""


def num_to_set_aside(num_impressions: int, share: float | None) -> int:
    """Number of impressions to set aside: the given share of all, or by default a tenth within bounds."""
    if share is not None:
        return int(num_impressions * share)
    wanted = max(FEWEST, min(MOST, round(num_impressions * SHARE)))
    return min(wanted, int(num_impressions * LARGEST_SHARE))


def set_aside(
    engine: Engine, source: Path, train: Path, valid: Path, share: float | None, *, has_times: bool
) -> SetAside | None:
    """Divide the ingested train impressions into two files; None, and no file, where none is set aside.

    By default the latest impressions are set aside, equal times in the order of the log. Without times, it is the
    last impression of each user who has several, of as many users as the share allows, evenly spread.
    """
    impressions = engine.open(source)
    found = engine.load(impressions.agg(rows=_.count(), first=_.time.min(), last=_.time.max())).to_pylist()[0]
    has_times = has_times and found["rows"] > 0 and found["first"] < found["last"]
    count = num_to_set_aside(found["rows"], share)
    if not count:
        return None
    if has_times:
        rows = _load_rows(engine, latest(impressions, count))
    else:
        rows = _load_rows(engine, last_of_users(impressions))
        rows = rows[np.linspace(0, len(rows) - 1, min(count, len(rows)), dtype=np.int64)]
    if not len(rows):
        return None
    is_aside = np.zeros(found["rows"], np.bool_)
    is_aside[rows] = True
    first, last = _divide(source, train, valid, is_aside)
    return SetAside(
        impressions=len(rows), first_time=first if has_times else None, last_time=last if has_times else None
    )


def latest(impressions: ir.Table, count: int) -> ir.Table:
    """(row) of the latest impressions; equal times in the order of the log."""
    return impressions.select("row", "time").order_by(_.time.desc(), _.row.desc()).limit(count).select("row")


def last_of_users(impressions: ir.Table) -> ir.Table:
    """(row) of the last impression with a click of each user who has several such."""
    of_user = ibis.window(group_by="user_id", order_by=[_.time.desc(), _.row.desc()])
    numbered = impressions.filter(_.clicked.length() > 0).select(
        "row", num_later=ibis.row_number().over(of_user), num_rows=_.row.count().over(group_by="user_id")
    )
    return numbered.filter(_.num_later == 0, _.num_rows > 1).select("row")


def _load_rows(engine: Engine, rows: ir.Table) -> NDArray[np.int64]:
    return np.sort(engine.load(rows)["row"].to_numpy())


def _divide(source: Path, train: Path, valid: Path, is_aside: NDArray[np.bool_]) -> tuple[str, str]:
    """Write the impressions set aside to one file and the others to another, each numbered from 0.

    Returns the first and the last time of those set aside.
    """
    times: list[pa.Scalar] = []
    with ExitStack() as stack:
        file = stack.enter_context(pq.ParquetFile(source))
        schema = file.schema_arrow
        writers = [stack.enter_context(pq.ParquetWriter(path, schema)) for path in (train, valid)]
        num_rows, num_written = 0, [0, 0]
        for batch in file.iter_batches(batch_size=1 << 13):
            is_valid = is_aside[num_rows : num_rows + len(batch)]
            num_rows += len(batch)
            for part, wanted in enumerate((~is_valid, is_valid)):
                chosen = batch.filter(pa.array(wanted))
                numbers = pa.array(num_written[part] + np.arange(len(chosen)), pa.int64())
                writers[part].write_batch(chosen.set_column(0, schema.field(0), numbers))
                num_written[part] += len(chosen)
            times += pc.min_max(batch["time"].filter(pa.array(is_valid))).values()
    known = [time.as_py() for time in times if time.is_valid]
    return str(min(known)), str(max(known))
