"""Sorted rows cut into parts, each written by a process of its own, and the parts joined to one array.

    timelines.parquet, by user    U1 U1 U1 U2 | U3 U3 U4 | U5 ...      cut where a user ends
                                       |          |        |
    worker processes                part-0     part-1   part-2         folders that appear complete or not at all
                                       |          |        |
    joined in order                 clicks.values.npy, clicks.offsets.npy, ...

The joined files are those that one process would write. A worker that is killed is started again with its part.
"""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import DTypeLike

from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, write_json
from speedyfeed.progress import Report
from speedyfeed.ragged import ArrayWriter, in_blocks, open_array

PART_ROWS = 1 << 23
"""Number of sorted rows of a part: some seconds of work."""
MAX_STARTS = 3
"""Number of times that a part is begun before its worker is given up."""
SECONDS_PER_LOOK = 0.02
FACTS = "facts.json"

Facts = dict[str, Any]
Arguments = dict[str, Any]
Write = Callable[..., Facts]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRange:
    """Consecutive rows of a Parquet file, or of a folder of files whose names sort in row order."""

    path: Path
    first: int
    end: int

    def arguments(self) -> Arguments:
        """Plain values, as JSON has them."""
        return asdict(self) | {"path": str(self.path)}

    def read(self, batch_rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Stream the rows in order; row groups without any of them are not read."""
        start = 0
        for file_path in _files(self.path):
            with pq.ParquetFile(file_path) as file:
                for group in range(file.num_row_groups):
                    end = start + file.metadata.row_group(group).num_rows
                    if start < self.end and end > self.first:
                        yield from self._slices(file, group, start, batch_rows)
                    start = end

    def _slices(self, file: pq.ParquetFile, group: int, start: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in file.iter_batches(batch_rows, row_groups=[group], use_threads=False):
            first, end = max(self.first - start, 0), min(self.end - start, batch.num_rows)
            if first < end:
                yield batch.slice(first, end - first)
            start += batch.num_rows


def whole(path: Path) -> RowRange:
    """All rows of a Parquet file or folder."""
    num_rows = sum(pq.read_metadata(file).num_rows for file in _files(path))
    return RowRange(path=path, first=0, end=num_rows)


def cut(path: Path, key: str) -> list[RowRange]:
    """Parts of about `PART_ROWS` rows of a table sorted by `key`; rows with the same key are in one part."""
    every = whole(path)
    firsts = [0]
    while firsts[-1] + PART_ROWS < every.end:
        firsts.append(_next_key(RowRange(path=path, first=firsts[-1] + PART_ROWS - 1, end=every.end), key))
    return [
        RowRange(path=path, first=first, end=end)
        for first, end in zip(firsts, [*firsts[1:], every.end], strict=True)
        if first < end or every.end == 0
    ]


def first_keys(ranges: Sequence[RowRange], key: str) -> list[Any]:
    """Key of the first row of each range."""
    return [next(rows.read(batch_rows=1))[key][0].as_py() for rows in ranges]


def _next_key(rows: RowRange, key: str) -> int:
    """Number of the first row whose key is not that of the first one; the end if there is none."""
    number = rows.first
    first: Any = None
    for batch in rows.read():
        values = batch[key].to_pylist()
        first = values[0] if first is None else first
        for value in values:
            if value != first:
                return number
            number += 1
    return rows.end


def write_parts(
    write: Write, parts: Sequence[Arguments], scratch: Path, report: Report, stage: str, *, workers: int
) -> list[Path]:
    """Call `write(folder, **part)` for each part in a process of its own, at most `workers` at a time.

    Arguments are plain values, as JSON has them. Returns the folders, with what `write` returned in `FACTS`. One
    part alone is written by this process.
    """
    folders = [scratch / f"part-{number:05d}" for number in range(len(parts))]
    scratch.mkdir(parents=True, exist_ok=True)
    report(stage, 0, len(parts))
    if len(parts) == 1 or workers <= 1:
        for done, (folder, part) in enumerate(zip(folders, parts, strict=True), 1):
            _write_part(write, folder, part)
            report(stage, done, len(parts))
        return folders
    for folder, part in zip(folders, parts, strict=True):
        job = {"module": write.__module__, "write": write.__name__, "arguments": part}
        write_json(folder.with_suffix(".json"), job)
    waiting = folders[::-1]
    running: dict[Path, subprocess.Popen[bytes]] = {}
    starts = dict.fromkeys(folders, 0)
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                folder = waiting.pop()
                running[folder] = subprocess.Popen([sys.executable, "-m", __name__, str(folder)])
                starts[folder] += 1
            time.sleep(SECONDS_PER_LOOK)
            for folder, process in list(running.items()):
                if process.poll() is not None:
                    del running[folder]
                    if not folder.exists():
                        _require_killed(folder, process.returncode, starts[folder])
                        waiting.append(folder)
                    report(stage, len(parts) - len(waiting) - len(running), len(parts))
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return folders


def load_facts(folders: Sequence[Path]) -> list[Facts]:
    """What the writers of parts returned."""
    return [json.loads((folder / FACTS).read_text("utf-8")) for folder in folders]


def join_values(folders: Sequence[Path], folder: Path, name: str, dtype: DTypeLike) -> None:
    """Write one array: those of the parts, one after the other."""
    with ArrayWriter(folder, name, dtype) as joined:
        for part in folders:
            for block in in_blocks(open_array(part, name)):
                joined.append(block)


def join_offsets(folders: Sequence[Path], folder: Path, name: str) -> None:
    """Write the offsets of rows that are joined; those of each part begin at 0."""
    with ArrayWriter(folder, name, np.int64) as joined:
        joined.append(np.zeros(1, np.int64))
        before = 0
        for part in folders:
            offsets = open_array(part, name)
            for block in in_blocks(offsets[1:]):
                joined.append(block + before)
            before += int(offsets[-1])


def _files(path: Path) -> list[Path]:
    # Spark writes a folder of parts whose names sort in row order; DuckDB writes one file.
    return sorted(path.glob("part-*")) if path.is_dir() else [path]


def _work(folder: Path) -> int:
    """Write a part, as its job says; a mistake of the user is left as one line for the parent process."""
    job = json.loads(folder.with_suffix(".json").read_text("utf-8"))
    try:
        _write_part(getattr(importlib.import_module(job["module"]), job["write"]), folder, job["arguments"])
    except InputError as error:
        folder.with_suffix(".error").write_text(str(error), "utf-8")
        return 2
    return 0


def _write_part(write: Write, folder: Path, part: Arguments) -> None:
    with new_folder(folder) as partial:
        write_json(partial / FACTS, write(partial, **part))


def _require_killed(folder: Path, code: int, num_starts: int) -> None:
    """Raise the error of a worker that left no part, unless it was killed and may be started again."""
    message = folder.with_suffix(".error")
    if message.exists():
        raise InputError(message.read_text("utf-8"))
    if code >= 0:
        raise RuntimeError(f"the worker of {folder.name} failed with exit code {code}; see its error above")
    if num_starts >= MAX_STARTS:
        raise InputError(
            f"{folder.name}: its worker was killed {num_starts} times, the last time by signal {-code}; give "
            "prepare more memory, or fewer --workers"
        )


if __name__ == "__main__":
    sys.exit(_work(Path(sys.argv[1])))
