"""Arrays of the splits on disk: timelines of the train split, impressions of a valid, dev or test split.

The engine sorts and this module streams: memory holds a few numbers per impression of a split to rank, never the
lists. Timelines, of which a log has most, are written in parts (`timeline_parts`).
"""

from collections.abc import Iterator
from pathlib import Path

import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ibis import _
from numpy.typing import NDArray

from speedyfeed.data.manifest import SplitCounts
from speedyfeed.preparation import timeline
from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.ingest import Sources
from speedyfeed.preparation.timeline_parts import write_clicks, write_pools
from speedyfeed.progress import Report, counted
from speedyfeed.ragged import ArrayWriter, offsets_of

Counts = dict[str, int]


def write_splits(
    engine: Engine, sources: Sources, ids: ir.Table, folder: Path, report: Report, *, has_times: bool
) -> dict[str, SplitCounts]:
    """Write every split; histories that the log does not give are the clicks of train before the split."""
    counts: dict[str, SplitCounts] = {}
    for name, source in sources.files.items():
        if name == "train":
            counts[name] = write_timelines(engine, source, ids, folder / name, report, has_times=has_times)
            continue
        is_from_train = name == "valid" and sources.set_aside is not None
        before = sources.files.get("train") if is_from_train else sources.whole_train
        train = before if "train" in sources.files else None
        use_longer = is_from_train and not sources.has_set_aside_histories
        counts[name] = write_impressions(
            engine, source, ids, folder / name, report, train=train, use_longer=use_longer
        )
    return counts


def write_timelines(
    engine: Engine, source: Path, ids: ir.Table, folder: Path, report: Report, *, has_times: bool
) -> SplitCounts:
    """Write the train split: clicks by user, and pools of negatives by impression, to which the clicks refer.

    Where no impression has negatives and the log has times, the time of each click is written too.
    """
    folder.mkdir()
    impressions = engine.open(source)
    report("count train", 0, 0)
    read, without_text = _count_references(engine, impressions, ids)
    num_shown = impressions.clicked.length() + impressions.skipped.length()
    without_click = _number(engine, impressions.filter(num_shown > 0, _.clicked.length() == 0))
    without_label = _number(engine, impressions.filter(num_shown == 0))

    report("sort negatives", 0, 0)
    engine.save(timeline.pools(impressions, ids), "pools")
    workers, scratch = engine.workers, engine.scratch / "parts"
    pools_path, clicks_path = engine.path("pools"), engine.path("timelines")
    num_negatives = write_pools(pools_path, read["impressions"], folder, scratch, report, workers=workers)
    textless = impressions.filter(_.skipped.length() > 0).anti_join(engine.reopen("pools"), "row")
    num_textless = engine.load(timeline.count_references(textless, "clicked", ids))["known"][0].as_py()
    report("sort timelines", 0, 0)
    engine.save(timeline.clicks(impressions, ids), "timelines")
    times = source if has_times and not num_negatives else None
    written = write_clicks(clicks_path, times, folder, scratch, report, workers=workers)
    return SplitCounts(
        read=read,
        kept={
            "users": written["users"],
            "clicks": written["clicks"],
            "clicks_with_negatives": written["with_pool"],
            "clicks_whose_negatives_lack_text": num_textless,
        },
        dropped={
            **without_text,
            "impressions_without_click": without_click,
            "impressions_without_label": without_label,
            "users_without_click": read["users"] - written["users"],
        },
    )


def write_impressions(
    engine: Engine,
    source: Path,
    ids: ir.Table,
    folder: Path,
    report: Report,
    *,
    train: Path | None,
    use_longer: bool = False,
) -> SplitCounts:
    """Write a valid, dev or test split: candidates and labels by impression, and the history of each user once.

    `train` are the impressions before the split; their clicks are the histories that the log does not give. With
    `use_longer`, impressions have the longer of both: those that were set aside from train, because the log may
    give each user one history for all of train.
    """
    folder.mkdir()
    impressions = engine.open(source)
    split = folder.name
    report(f"count {split}", 0, 0)
    read, without_text = _count_references(engine, impressions, ids)

    shown = engine.read(timeline.candidates(impressions, ids), f"{split}-candidates")
    with ArrayWriter(folder, "labels", np.int8) as labels:
        batches = counted(shown, report, f"join {split} candidates", read["candidates"])
        _write_by_row(folder, "candidates", _labels_aside(batches, labels), read["impressions"])

    users = timeline.users(impressions)
    with ArrayWriter(folder, "users", np.int64) as rows:
        for batch in engine.read(users.order_by("row").select("user"), f"{split}-users"):
            rows.append(batch["user"].to_numpy())
    train_clicks = None
    if train is not None:
        without = impressions if use_longer else impressions.filter(_.history.length() == 0)
        train_clicks = timeline.clicks(engine.open(train).semi_join(without, "user_id"), ids)
    joined = timeline.histories(users, ids, train_clicks, use_longer=use_longer)
    histories = engine.read(joined, f"{split}-histories")
    sizes = _write_by_row(folder, "histories", counted(histories, report, f"join {split} histories"), len(rows))
    facts = pq.read_table(source, columns=["impression_id", "user_id", "time"])
    pq.write_table(facts.combine_chunks(), folder / "impressions.parquet")
    return SplitCounts(
        read=read,
        kept={
            "impressions": read["impressions"],
            "candidates": read["candidates"] - without_text["candidates_without_text"],
            "history_clicks": int(sizes.sum()),
        },
        dropped=without_text,
    )


def _count_references(engine: Engine, impressions: ir.Table, ids: ir.Table) -> tuple[Counts, Counts]:
    """Count the ids in a split, and those of them without text; repeated histories count each time."""
    total = engine.load(impressions.agg(impressions=_.count(), users=_.user_id.nunique())).to_pylist()[0]
    shown = impressions.mutate(shown=timeline.shown_news(impressions))
    read: Counts = dict(total)
    without_text: Counts = {}
    for name, column in (("history_clicks", "history"), ("clicks", "clicked"), ("candidates", "shown")):
        found = engine.load(timeline.count_references(shown, column, ids)).to_pylist()[0]
        read[name] = found["total"]
        without_text[f"{name}_without_text"] = found["total"] - found["known"]
    return read, without_text


def _number(engine: Engine, rows: ir.Table) -> int:
    return int(engine.load(rows.agg(rows=_.count()))["rows"][0].as_py())


def _write_by_row(folder: Path, name: str, batches: Iterator[pa.RecordBatch], num_rows: int) -> NDArray[np.int64]:
    """Write (row, news), ordered by row, as a ragged array of `num_rows` rows; returns their lengths."""
    lengths = np.zeros(num_rows, np.int64)
    with ArrayWriter(folder, f"{name}.values", np.int32) as values:
        for batch in batches:
            np.add.at(lengths, batch["row"].to_numpy(), 1)
            values.append(batch["news"].to_numpy())
    with ArrayWriter(folder, f"{name}.offsets", np.int64) as offsets:
        offsets.append(offsets_of(lengths))
    return lengths


def _labels_aside(batches: Iterator[pa.RecordBatch], labels: ArrayWriter) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged and write their labels."""
    for batch in batches:
        labels.append(batch["label"].to_numpy())
        yield batch
