"""Articles that one impression lists both as clicked and as skipped: they count as clicked, once.

    clicked [N3]   skipped [N1, N3]   candidates [N1, N3, N3]   ->   [N3]   [N1]   [N1, N3]

So no click is a negative of itself, and no candidate has two labels. Costs one lookup per article listed.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.ragged import offsets_of


def resolve(impressions: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Impressions in which nothing is both clicked and skipped, and the number of articles that were."""
    clicked_ids = pc.unique(impressions["clicked"].flatten())
    keys = {name: _keys(impressions[name], clicked_ids) for name in ("clicked", "skipped", "candidates")}
    both = np.intersect1d(keys["clicked"], keys["skipped"])
    both = both[both >= 0]
    if not len(both):
        return impressions, 0
    for name, own in keys.items():
        drop = np.isin(own, both)
        if name != "skipped":
            drop[np.unique(own, return_index=True)[1]] = False  # the first of each stays
        column = impressions.schema.get_field_index(name)
        kept = _filter(impressions[name], ~drop)
        impressions = impressions.set_column(column, impressions.schema.field(name), kept)
    return impressions, len(both)


def _keys(lists: pa.ListArray, ids: pa.StringArray) -> NDArray[np.int64]:
    """For each value of the lists, a number that is the same for the same row and id; -1 for other ids."""
    code = pc.fill_null(pc.index_in(lists.flatten(), value_set=ids), -1).to_numpy()
    row = pc.list_parent_indices(lists).to_numpy()
    return np.where(code >= 0, row.astype(np.int64) * len(ids) + code, -1)


def _filter(lists: pa.ListArray, keep: NDArray[np.bool_]) -> pa.ListArray:
    """Filter the values of lists; a null list stays null."""
    rows = pc.list_parent_indices(lists).to_numpy()[keep]
    offsets = offsets_of(np.bincount(rows, minlength=len(lists))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), lists.flatten().filter(pa.array(keep)), mask=lists.is_null()
    )
