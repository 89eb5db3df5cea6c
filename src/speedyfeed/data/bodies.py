"""Full texts of articles in one Parquet file, streamed when written and read one at a time when shown.

    texts --batches--> bodies.parquet (zstd, groups of some hundred articles) --> Bodies[row] -> text

They are kept to be shown beside a recommendation and exported with feedback; training reads tokens alone.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BODIES = "bodies.parquet"
"""Name of the file, in a store and in a saved model."""
BODIES_PER_GROUP = 512
"""Articles that are decompressed together to read one of them: some 10 ms."""
_SCHEMA = pa.schema([("body", pa.string())])


def write_bodies(batches: Iterable[pa.RecordBatch], path: Path, per_group: int = BODIES_PER_GROUP) -> None:
    """Write the column `body` of these batches in equal groups; no file where every body is empty."""
    is_any = False
    waiting = pa.array([], pa.string())
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        for batch in batches:
            bodies = batch["body"].cast(pa.string())
            is_any = is_any or pc.any(pc.not_equal(bodies, "")).as_py() is True
            waiting = pa.concat_arrays([waiting, bodies])
            while len(waiting) >= per_group:
                writer.write_batch(pa.record_batch([waiting[:per_group]], schema=_SCHEMA))
                waiting = waiting[per_group:]
        if len(waiting):
            writer.write_batch(pa.record_batch([waiting], schema=_SCHEMA))
    if not is_any:
        path.unlink()


class Bodies:
    """Full texts by row; any number of threads may read."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        groups = range(self._file.num_row_groups)
        self._ends = np.cumsum([self._file.metadata.row_group(group).num_rows for group in groups])
        self._latest: tuple[int, pa.ChunkedArray] | None = None  # group and texts, as rows are often read in order
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __getitem__(self, row: int) -> str:
        group = int(np.searchsorted(self._ends, row, side="right"))
        with self._lock:
            if self._latest is None or self._latest[0] != group:
                self._latest = group, self._file.read_row_group(group, ["body"])["body"]
            _, column = self._latest
        return str(column[row - int(self._ends[group])].as_py())  # counted from the end of its group
