"""Categories and users that a recommender was trained with, as indices of its embeddings.

categories  sport  world          index of "world" is 2; of a category not seen in training, 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

FILE = "id_maps.parquet"
KINDS = ("categories", "subcategories", "users")
UNKNOWN = 0
"""Index of every name that was not seen in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdMaps:
    """Names by index, from 1; 0 is an unknown name. Kinds that the recommender does not use are empty."""

    categories: Sequence[str] = ()
    subcategories: Sequence[str] = ()
    users: Sequence[str] = ()

    def save(self, folder: Path) -> None:
        """Write `id_maps.parquet` into an existing folder."""
        kinds = [kind for kind in KINDS for _ in getattr(self, kind)]
        names = [name for kind in KINDS for name in getattr(self, kind)]
        table = {"kind": pa.array(kinds, pa.string()), "name": pa.array(names, pa.string())}
        pq.write_table(pa.table(table), folder / FILE)


def load_id_maps(folder: Path) -> IdMaps:
    """Load what `IdMaps.save` wrote."""
    table = pq.ParquetFile(folder / FILE).read()  # read_table would import pandas
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, name in zip(table["kind"].to_pylist(), table["name"].to_pylist(), strict=True):
        names[kind].append(name)
    return IdMaps(**names)


def lookup_indices(names: pa.Array | pa.ChunkedArray, known: Sequence[str]) -> NDArray[np.int64]:
    """Index of each name in `known`, counted from 1; 0 where it is unknown."""
    found = pc.index_in(names, value_set=pa.array(known, pa.string()))
    indices: NDArray[np.int64] = pc.add(pc.fill_null(pc.cast(found, pa.int64()), -1), 1).to_numpy()
    return indices.copy()  # torch warns of arrays that it must not write to
