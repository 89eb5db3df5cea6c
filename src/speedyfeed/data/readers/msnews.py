"""Microsoft News as the paper records it: one line per user, with all impressions of that user in time order.

    U7#17#2019-11-11 09:05:58#N3#N1 N2    18#2019-11-12 20:14:00#N4 N9#N6
    user#id#time#clicked#impressed <tab>  id#time#clicked#impressed ...

"Impressed" are the articles shown but not clicked. One `news.tsv` with bodies serves all splits. The record
itself is the whole history; the order in which articles were shown is unknown.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from speedyfeed.data.readers.folders import find_split_or_self, require_file
from speedyfeed.data.readers.text import read_lines, split_lists
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split

FILES = "news.tsv, and train/ and dev/ (and test/), each with users.tsv"

_RECORD = ("user_id", "impressions")
_IMPRESSION = ("impression_id", "time", "clicked", "impressed")


def recognises(folder: Path) -> bool:
    return any((split / "users.tsv").is_file() for split in find_split_or_self(folder).values())


def open_splits(folder: Path) -> tuple[Split, ...]:
    news = require_file(folder / "news.tsv", FILES)
    users = {name: require_file(path / "users.tsv", FILES) for name, path in find_split_or_self(folder).items()}
    return tuple(
        Split(
            name=name,
            files=(news, path),
            news=partial(read_news, news),
            impressions=partial(_read_impressions, path),
        )
        for name, path in users.items()
    )


def read_news(path: Path) -> Iterator[pa.RecordBatch]:
    """Read articles with the canonical columns in their order, separated by tabs."""
    for lines in read_lines(path):
        yield pa.record_batch(lines.split(tuple(NEWS.names)), schema=NEWS)


def _read_impressions(path: Path) -> Iterator[pa.RecordBatch]:
    for lines in read_lines(path):
        user_id, record = lines.split(_RECORD, "#", max_splits=1)
        records = split_lists(record, "\t")
        impressions = lines.explode(records)
        if not len(impressions.text):
            continue  # users without impressions alone
        impression_id, time, clicked, skipped = impressions.split(_IMPRESSION, "#")
        num_rows = len(impression_id)
        yield pa.record_batch(
            [
                impression_id,
                user_id.take(pc.list_parent_indices(records)),
                impressions.parse_times(time, time, "year-month-day hour:minute:second, as 2019-11-11 09:05:58"),
                split_lists(clicked, " "),
                split_lists(skipped, " "),
                pa.repeat(pa.scalar([], IMPRESSIONS.field("history").type), num_rows),
                pa.nulls(num_rows, IMPRESSIONS.field("candidates").type),
            ],
            schema=IMPRESSIONS,
        )
