"""Canonical tables that every log reader yields, as streams of Arrow batches.

`news` has one row per article, `impressions` one row per page shown to a user:

    impression_id  user_id  time                 clicked  skipped    history    candidates
    "17"           "U7"     2019-11-11 09:05:58  [N3]     [N1, N2]   [N8, N5]   [N1, N3, N2]

`history` is what the user clicked before the split began, oldest first. `candidates` is everything shown, in the
order shown; null means clicked, then skipped. `skipped` is what was shown but not clicked. An impression with
candidates but neither clicked nor skipped is unlabelled: it can be ranked but not learned from. Ids are strings;
a news id may have no row in `news`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.errors import InputError, list_words

NEWS = pa.schema(
    [
        pa.field("news_id", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("subcategory", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("abstract", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)

FIELDS = ("title", "abstract", "body")
"""Text columns of `news`."""

IMPRESSIONS = pa.schema(
    [
        pa.field("impression_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us"), nullable=False),
        pa.field("clicked", pa.list_(pa.string()), nullable=False),
        pa.field("skipped", pa.list_(pa.string()), nullable=False),
        pa.field("history", pa.list_(pa.string()), nullable=False),
        pa.field("candidates", pa.list_(pa.string())),
    ]
)

SPLITS = ("train", "valid", "dev", "test")
TO_RANK = ("dev", "test")
"""Splits whose impressions can be ranked, in order of preference."""

Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Function that starts a new pass over a table, a few thousand rows at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """One part of a log (`train`, `valid`, `dev` or `test`) as canonical tables, not yet read."""

    name: str
    files: tuple[Path, ...]
    """All files that the two streams read; their contents are the fingerprint of the input."""
    news: Batches
    impressions: Batches
    has_times: bool = True
    """Whether the times are those of the log; False where they only stand in for the order of its rows."""
    notes: Callable[[], tuple[str, ...]] = tuple
    """Function that returns statements about the reading for the summary, each one line; reads what it needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logs:
    """A folder of raw logs, recognised but not yet read."""

    format: str
    splits: tuple[Split, ...]
    options: ReaderOptions | None = None
    """Options it is read with; None where the format takes none."""


def choose_split(where: Path, found: Sequence[str], wanted: str | None, *, prefer: Sequence[str] = TO_RANK) -> str:
    """Choose the split to rank: the wanted one, or the first preferred one that exists."""
    names = [name for name in prefer if name in found]
    if wanted == "valid" and wanted in found:
        return wanted  # only when asked for: the model was chosen by it
    if not names:
        raise InputError(
            f"{where}: found only {list_words(found, 'and')}, expected dev or test to rank; add one, or give a "
            "split's own folder"
        )
    if wanted is not None and wanted not in names:
        raise InputError(f"{where}: has no split {wanted!r} to rank, only {', '.join(names)}")
    return wanted or names[0]
