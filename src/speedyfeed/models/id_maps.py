"""Names a recommender was trained with: categories and users, by number.

categories  sport  world          number of "world" is 2; of one that was never met, 0
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


@dataclass(frozen=True, kw_only=True, slots=True)
class IdMaps:
    """The n-th name has number n + 1; 0 is any other. Kinds that a recommender makes no use of are empty."""

    categories: Sequence[str] = ()
    subcategories: Sequence[str] = ()
    users: Sequence[str] = ()

    def save(self, folder: Path) -> None:
        """Write one file into a folder that exists."""
        kinds = [kind for kind in KINDS for _ in getattr(self, kind)]
        names = [name for kind in KINDS for name in getattr(self, kind)]
        table = {"kind": pa.array(kinds, pa.string()), "name": pa.array(names, pa.string())}
        pq.write_table(pa.table(table), folder / FILE)


def load_id_maps(folder: Path) -> IdMaps:
    """What `IdMaps.save` wrote."""
    table = pq.read_table(folder / FILE)
    return IdMaps(**{kind: table.filter(pc.field("kind") == kind)["name"].to_pylist() for kind in KINDS})


def lookup_indices(names: pa.Array | pa.ChunkedArray, known: Sequence[str]) -> NDArray[np.int64]:
    """The number of each name."""
    found = pc.index_in(names, value_set=pa.array(known, pa.string()))
    numbers: NDArray[np.int64] = pc.add(pc.fill_null(pc.cast(found, pa.int64()), -1), 1).to_numpy()
    return numbers
