"""The files of SpeedyRec, the paper's own code: `DocFeatures.tsv` and numbered `ProtoBuf_*.tsv`, which are text.

    train  U7 <tab> N3;N5&N1;N2|N4&N6           one line per user: clicked & skipped of each impression
    dev    U7 <tab> N3;N5 <tab> N4 <tab> N6     one line per impression: history, clicked, skipped

The files have neither impression ids nor times. Impressions are numbered, and each is placed one second after the
one before, which preserves their order and puts dev after train.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from speedyfeed.data.readers.folders import require_file
from speedyfeed.data.readers.msnews import read_news
from speedyfeed.data.readers.text import Lines, read_lines, split_lists
from speedyfeed.data.tables import IMPRESSIONS, Split
from speedyfeed.errors import InputError

FILES = "DocFeatures.tsv, traindata/ProtoBuf_*.tsv and testdata/impressions/ProtoBuf_*.tsv"

_FOLDERS = {"train": ("traindata", "."), "dev": ("testdata/impressions", "testdata")}
"""Folders where the files of a split may be; the first that has any is used. `testdata` has labels: it is dev."""

_START = {"train": datetime(1970, 1, 1), "dev": datetime(2000, 1, 1)}


def recognises(folder: Path) -> bool:
    return (folder / "DocFeatures.tsv").is_file()


def open_splits(folder: Path) -> tuple[Split, ...]:
    news = require_file(folder / "DocFeatures.tsv", FILES)
    parts = {name: _find_parts(folder, name) for name in _FOLDERS}
    if not any(parts.values()):
        raise InputError(f"{folder}: found no ProtoBuf_*.tsv, expected {FILES}; add the click logs")
    return tuple(
        Split(
            name=name,
            files=(news, *paths),
            news=partial(read_news, news),
            impressions=partial(_read_impressions, paths, name),
            has_times=False,
        )
        for name, paths in parts.items()
        if paths
    )


def _find_parts(folder: Path, split: str) -> tuple[Path, ...]:
    """Files of a split, ordered by their numbers: 2 comes before 10."""
    for name in _FOLDERS[split]:
        if paths := sorted((folder / name).glob("ProtoBuf_*.tsv"), key=lambda path: (len(path.name), path.name)):
            return tuple(paths)
    return ()


def _read_impressions(paths: tuple[Path, ...], split: str) -> Iterator[pa.RecordBatch]:
    parse = _PARSERS[split]
    first = 1
    for path in paths:
        for lines in read_lines(path):
            user_id, history, clicked, skipped = parse(lines)
            numbers = np.arange(first, first + len(user_id))
            yield pa.record_batch(
                [
                    pa.array(numbers).cast(pa.string()),
                    user_id,
                    pa.array(np.datetime64(_START[split], "us") + numbers.astype("timedelta64[s]")),
                    split_lists(clicked, ";"),
                    split_lists(skipped, ";"),
                    split_lists(history, ";"),
                    pa.nulls(len(user_id), IMPRESSIONS.field("candidates").type),
                ],
                schema=IMPRESSIONS,
            )
            first += len(user_id)


def _parse_users(lines: Lines) -> list[pa.StringArray]:
    user_id, record = lines.split(("user_id", "impressions"))
    records = split_lists(record, "|")
    clicked, skipped = lines.explode(records).split(("clicked", "skipped"), "&")
    return [user_id.take(pc.list_parent_indices(records)), pa.repeat("", len(clicked)), clicked, skipped]


def _parse_impressions(lines: Lines) -> list[pa.StringArray]:
    return lines.split(("user_id", "history", "clicked", "skipped"))


_PARSERS: dict[str, Callable[[Lines], list[pa.StringArray]]] = {"train": _parse_users, "dev": _parse_impressions}
"""Parsers of each split to user id, history, clicked and skipped, one row per impression."""
