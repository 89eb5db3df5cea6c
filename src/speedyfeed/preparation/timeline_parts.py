"""Train timelines, written in parts by workers: pools of negatives cut by impression, then clicks cut by user."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from speedyfeed.data.store import CLICK_TIMES
from speedyfeed.preparation.parts import (
    Facts,
    RowRange,
    cut,
    first_keys,
    join_offsets,
    join_values,
    load_facts,
    write_parts,
)
from speedyfeed.progress import Report
from speedyfeed.ragged import ArrayWriter, offsets_of, open_array

USERS_FILE = "users.parquet"


def write_pools(
    sorted_pools: Path, num_impressions: int, folder: Path, scratch: Path, report: Report, *, workers: int
) -> int:
    """Write (row, news), ordered by row, as the ragged array `pools`; returns the number of articles in all."""
    ranges = cut(sorted_pools, "row")
    firsts = [0, *first_keys(ranges[1:], "row"), num_impressions]
    parts = [
        rows.arguments() | {"first_row": first, "end_row": end}
        for rows, first, end in zip(ranges, firsts, firsts[1:], strict=False)
    ]
    folders = write_parts(write_pool_part, parts, scratch / "pools", report, "join negatives", workers=workers)
    join_values(folders, folder, "pools.values", np.int32)
    join_offsets(folders, folder, "pools.offsets")
    return sum(facts["values"] for facts in load_facts(folders))


def write_pool_part(folder: Path, *, path: str, first: int, end: int, first_row: int, end_row: int) -> Facts:
    """Write the pools of the impressions from one row of the log to another."""
    lengths = np.zeros(end_row - first_row, np.int64)
    with ArrayWriter(folder, "pools.values", np.int32) as values:
        for batch in RowRange(path=Path(path), first=first, end=end).read():
            np.add.at(lengths, batch["row"].to_numpy() - first_row, 1)
            values.append(batch["news"].to_numpy())
    with ArrayWriter(folder, "pools.offsets", np.int64) as offsets:
        offsets.append(offsets_of(lengths))
    return {"values": int(lengths.sum())}


def write_clicks(
    sorted_clicks: Path, times: Path | None, folder: Path, scratch: Path, report: Report, *, workers: int
) -> Facts:
    """Write (user_id, row, first, news), ordered by user; the pools must be in `folder`.

    `times` are impressions whose times are written for each click. Returns the numbers of `users`, of `clicks` and
    of clicks `with_pool`.
    """
    common = {"pools": str(folder), "times": None if times is None else str(times)}
    parts = [rows.arguments() | common for rows in cut(sorted_clicks, "user_id")]
    folders = write_parts(write_click_part, parts, scratch / "clicks", report, "join timelines", workers=workers)
    join_values(folders, folder, "clicks.values", np.int32)
    join_offsets(folders, folder, "clicks.offsets")
    for name in ("click_pools", "user_pools") if times is None else ("click_pools", "user_pools", CLICK_TIMES):
        join_values(folders, folder, name, np.int64)
    users = pa.concat_tables([pq.read_table(part / USERS_FILE) for part in folders])
    pq.write_table(users.combine_chunks(), folder / USERS_FILE)
    facts = load_facts(folders)
    return {"users": len(users)} | {name: sum(one[name] for one in facts) for name in ("clicks", "with_pool")}


def write_click_part(folder: Path, *, path: str, first: int, end: int, pools: str, times: str | None) -> Facts:
    """Write the clicks of some users, and which pools they and their clicks have."""
    pool_offsets = open_array(Path(pools), "pools.offsets")
    time_of_row = None if times is None else _load_times(Path(times))
    users: list[pa.Array] = []
    lengths: list[NDArray[np.int64]] = []
    num_with_pool = 0
    with (
        ArrayWriter(folder, "clicks.values", np.int32) as clicks,
        ArrayWriter(folder, "click_pools", np.int64) as click_pools,
        ArrayWriter(folder, "user_pools", np.int64) as user_pools,
        ArrayWriter(folder, CLICK_TIMES, np.int64) if times is not None else nullcontext() as click_times,
    ):
        for batch in RowRange(path=Path(path), first=first, end=end).read():
            runs = pc.run_end_encode(batch["user_id"])
            ends = runs.run_ends.to_numpy().astype(np.int64)
            names, counts, nearest = runs.values, np.diff(ends, prepend=0), batch["first"].to_numpy()[ends - 1]
            if users and len(names) and users[-1][-1] == names[0]:  # the batch begins within a user
                lengths[-1][-1] += counts[0]
                names, counts, nearest = names[1:], counts[1:], nearest[1:]
            if len(names):
                users.append(names)
                lengths.append(counts)
                user_pools.append(_with_pool(nearest, pool_offsets))
            clicks.append(batch["news"].to_numpy())
            rows = _with_pool(batch["row"].to_numpy(), pool_offsets)
            click_pools.append(rows)
            num_with_pool += int(np.count_nonzero(rows >= 0))
            if time_of_row is not None and click_times is not None:
                # A click of a history has no impression: the user's first one is the nearest to it.
                own = batch["row"].to_numpy()
                click_times.append(time_of_row[np.where(own >= 0, own, batch["first"].to_numpy())])
        num_clicks = len(clicks)
    with ArrayWriter(folder, "clicks.offsets", np.int64) as offsets:
        offsets.append(offsets_of(np.concatenate(lengths) if lengths else np.zeros(0, np.int64)))
    names = pa.chunked_array(users, pa.string()).combine_chunks()
    pq.write_table(pa.table({"user_id": names}), folder / USERS_FILE)
    return {"clicks": num_clicks, "with_pool": num_with_pool}


def _with_pool(rows: NDArray[np.int64], pool_offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Impressions whose pool has articles; -1 for the others, and for -1."""
    sizes = pool_offsets[rows + 1] - pool_offsets[rows]
    return np.where((rows >= 0) & (sizes > 0), rows, -1)


def _load_times(source: Path) -> NDArray[np.int64]:
    """Time of each impression by row, in microseconds."""
    times = pq.read_table(source, columns=["row", "time"])
    by_row = np.empty(len(times), np.int64)
    by_row[times["row"].to_numpy()] = times["time"].cast(pa.int64()).to_numpy()
    return by_row
