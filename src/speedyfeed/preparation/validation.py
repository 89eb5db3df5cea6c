"""The validation split: train impressions set aside, so that training chooses nothing on what it is evaluated on.

    by time, a share of them            a log without times
    1 2 3 4 5 6 7 8 | 9 10              U7: 1 2 | 3     U8: 4 | 5     U9: 6
         train        valid                train  valid   (6 is all that U9 has, and stays in train)

What is set aside is gone from train, as clicks and as histories: a timeline begins with the history of the first
impression that stays. The engine chooses the impressions; the rest is one pass over the ingested file.

In a log of single clicks, which gives no histories, a click that is set aside has all earlier ones of its user as
history, also those set aside with it, as clicks of dev have.

Shapes: C clicks.
"""

from contextlib import ExitStack
from dataclasses import replace
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
from speedyfeed.data.readers.interactions import HISTORY_CLICKS
from speedyfeed.data.tables import SPLITS
from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.ingest import Sources
from speedyfeed.ragged import offsets_of

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


def divide_train(engine: Engine, sources: Sources, share: float | None, *, has_times: bool) -> Sources:
    """Set a validation split aside from train, unless the log has one."""
    if "valid" in sources.files:
        return sources
    train, valid = (engine.scratch / name for name in ("train-rest.parquet", "valid.parquet"))
    single = _are_single_clicks(engine, engine.open(sources.whole_train))
    aside = set_aside(
        engine, sources.whole_train, train, valid, share, has_times=has_times, gives_histories=single
    )
    if aside is None:
        return sources
    files = sources.files | {"train": train, "valid": valid}
    ordered = {name: files[name] for name in SPLITS if name in files}
    return replace(sources, files=ordered, set_aside=aside, has_set_aside_histories=single)


def set_aside(
    engine: Engine,
    source: Path,
    train: Path,
    valid: Path,
    share: float | None,
    *,
    has_times: bool,
    gives_histories: bool = False,
) -> SetAside | None:
    """Divide the ingested train impressions into two files; None, and no file, where none is set aside.

    With `gives_histories`, those set aside get all earlier clicks of their user as history.
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
    histories = earlier_clicks(engine, impressions, rows) if gives_histories else None
    first, last = _divide(source, train, valid, is_aside, histories)
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


def earlier_clicks(engine: Engine, impressions: ir.Table, rows: NDArray[np.int64]) -> pa.ListArray:
    """Articles that the user of each of these rows, each of one click, clicked before, oldest first."""
    pq.write_table(pa.table({"row": rows}), path := engine.path("set-aside"))
    users = impressions.semi_join(engine.open(path), "row").select("user_id").distinct()
    of_users = impressions.semi_join(users, "user_id").order_by("user_id", "time", "row")
    clicks = engine.load(of_users.select("user_id", "row", news_id=_.clicked[0]))
    user_C = clicks["user_id"].combine_chunks().dictionary_encode().indices.to_numpy()  # rises from user to user
    row_C = clicks["row"].to_numpy()
    by_row = np.argsort(row_C)
    ends = by_row[np.searchsorted(row_C, rows, sorter=by_row)]
    begins = np.maximum(np.searchsorted(user_C, user_C[ends]), ends - HISTORY_CLICKS)
    offsets = offsets_of(ends - begins)
    positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], ends - begins)
    return pa.ListArray.from_arrays(
        offsets.astype(np.int32), clicks["news_id"].combine_chunks().take(pa.array(positions))
    )


def _are_single_clicks(engine: Engine, impressions: ir.Table) -> bool:
    """Whether each impression is one click, and the log gives neither what else was shown nor histories."""
    is_click = (_.clicked.length() == 1) & (_.skipped.length() == 0) & (_.history.length() == 0)
    return not engine.load(impressions.filter(~is_click).agg(others=_.count()))["others"][0].as_py()


def _load_rows(engine: Engine, rows: ir.Table) -> NDArray[np.int64]:
    return np.sort(engine.load(rows)["row"].to_numpy())


def _divide(
    source: Path, train: Path, valid: Path, is_aside: NDArray[np.bool_], histories: pa.ListArray | None
) -> tuple[str, str]:
    """Write the impressions set aside to one file and the others to another, each numbered from 0.

    Those set aside get `histories`, if given. Returns the first and the last time of those set aside.
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
                if part and histories is not None:
                    column = schema.get_field_index("history")
                    some = histories.slice(num_written[part], len(chosen)).cast(schema.field(column).type)
                    chosen = chosen.set_column(column, schema.field(column), some)
                writers[part].write_batch(chosen.set_column(0, schema.field(0), numbers))
                num_written[part] += len(chosen)
            times += pc.min_max(batch["time"].filter(pa.array(is_valid))).values()
    known = [time.as_py() for time in times if time.is_valid]
    return str(min(known)), str(max(known))
