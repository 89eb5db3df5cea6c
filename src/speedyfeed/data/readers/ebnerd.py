"""EB-NeRD: one `articles.parquet`, and `behaviors.parquet` and `history.parquet` per split, with integer ids.

A user's history is the same for the whole split and stored once, so it is held in memory (four bytes per click)
and gathered for each impression. The test split has no clicks and its impressions are unlabelled.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.readers.columns import read_columns
from speedyfeed.data.readers.folders import find_split_or_self, require_file
from speedyfeed.data.readers.text import filter_lists
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split

FILES = "articles.parquet, and train/ and validation/ (and test/), each with behaviors.parquet and history.parquet"

_ARTICLES = pa.schema(
    [
        pa.field("article_id", pa.string(), nullable=False),
        pa.field("category_str", pa.string(), nullable=False),
        pa.field("subcategory", pa.list_(pa.string()), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("subtitle", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)
_BEHAVIORS = pa.schema(
    [
        pa.field("impression_id", pa.string(), nullable=False),
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("impression_time", pa.timestamp("us"), nullable=False),
        pa.field("article_ids_inview", pa.list_(pa.int32()), nullable=False),
        pa.field("article_ids_clicked", pa.list_(pa.int32())),
    ]
)
_HISTORY = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("article_id_fixed", pa.list_(pa.int32()), nullable=False),
    ]
)
_DEFAULTS: Mapping[str, Any] = {
    "category_str": "",
    "subcategory": [],
    "title": "",
    "subtitle": "",
    "body": "",
    "article_ids_clicked": None,
}
_NO_IDS = pa.scalar([], pa.list_(pa.int32()))


def recognises(folder: Path) -> bool:
    return any((split / "behaviors.parquet").is_file() for split in find_split_or_self(folder).values())


def open_splits(folder: Path) -> tuple[Split, ...]:
    articles = require_file(folder / "articles.parquet", FILES)
    return tuple(_open_split(name, path, articles) for name, path in find_split_or_self(folder).items())


def _open_split(name: str, folder: Path, articles: Path) -> Split:
    behaviors, history = (
        require_file(folder / "behaviors.parquet", FILES),
        require_file(folder / "history.parquet", FILES),
    )
    return Split(
        name=name,
        files=(articles, behaviors, history),
        news=partial(_read_news, articles),
        impressions=partial(_read_impressions, behaviors, history),
    )


def _read_news(path: Path) -> Iterator[pa.RecordBatch]:
    for batch in read_columns(path, _ARTICLES, _DEFAULTS):
        article_id, category, subcategory, title, subtitle, body = batch.columns
        columns = [article_id, category, pc.binary_join(subcategory, " "), title, subtitle, body]
        yield pa.record_batch(columns, schema=NEWS)


def _read_impressions(behaviors: Path, history: Path) -> Iterator[pa.RecordBatch]:
    users, histories = _load_histories(history)
    for batch in read_columns(behaviors, _BEHAVIORS, _DEFAULTS):
        impression_id, user_id, time, shown, clicked = batch.columns
        columns = [
            impression_id,
            user_id.cast(pa.string()),
            time,
            clicked.fill_null(_NO_IDS),
            _skipped(shown, clicked),
            histories.take(_positions(users, user_id)).fill_null(_NO_IDS),
            shown,
        ]
        columns = [column.cast(field.type) for column, field in zip(columns, IMPRESSIONS, strict=True)]
        yield pa.record_batch(columns, schema=IMPRESSIONS)


def _load_histories(path: Path) -> tuple[NDArray[np.int64], pa.ListArray]:
    """All user ids, ascending, and the clicks of each before the split began, oldest first."""
    table = pa.Table.from_batches(read_columns(path, _HISTORY, _DEFAULTS)).sort_by("user_id").combine_chunks()
    return table["user_id"].to_numpy(), table["article_id_fixed"].chunk(0)


def _positions(users: NDArray[np.int64], wanted: pa.Int64Array) -> pa.Int64Array:
    """Position of each wanted user among the sorted users; null where it is not among them."""
    wanted = wanted.to_numpy()
    positions = np.searchsorted(users, wanted).clip(max=len(users) - 1)
    return pa.array(positions, mask=users[positions] != wanted)


def _skipped(shown: pa.ListArray, clicked: pa.ListArray) -> pa.ListArray:
    """Articles shown but not clicked; empty where the clicks are unknown."""
    rows = pc.list_parent_indices(shown).to_numpy()
    was_clicked = np.isin(_keys(shown), _keys(clicked))
    is_known = clicked.is_valid().to_numpy(zero_copy_only=False)
    return filter_lists(shown, pa.array(~was_clicked & is_known[rows]))


def _keys(lists: pa.ListArray) -> NDArray[np.int64]:
    """Row and id of every value as one number, so that equal ids in two rows have different keys."""
    rows: NDArray[np.int64] = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    ids: NDArray[np.int32] = lists.flatten().to_numpy()
    return (rows << 32) + ids
