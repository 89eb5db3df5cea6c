"""MIND: `news.tsv` and `behaviors.tsv` per split, tab-separated, no header, no quoting.

    58376  U81994  11/12/2019 2:14:46 PM  N138 N64727  N11817-0 N26572-1

becomes one impression with history [N138, N64727], clicked [N26572] and skipped [N11817]. In a test split the
labels are absent and only `candidates` is filled. About 5 microseconds per impression on one core.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from speedyfeed.data.readers.folders import find_split_or_self, require_file
from speedyfeed.data.readers.text import Lines, filter_lists, quote, read_lines, split_lists
from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split

FILES = "train/ and dev/ (and test/), each with news.tsv and behaviors.tsv"

_NEWS = (
    "news_id",
    "category",
    "subcategory",
    "title",
    "abstract",
    "url",
    "title entities",
    "abstract entities",
)
_BEHAVIORS = ("impression_id", "user_id", "time", "history", "impressions")

_TIME = (
    r"^(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}) "
    r"(?P<hour>0?[1-9]|1[0-2]):(?P<minute_second>\d{2}:\d{2}) (?P<half>AM|PM)$"
)
_HALF_DAY = 12 * 3600 * 1_000_000  # in microseconds


def recognises(folder: Path) -> bool:
    return any((split / "behaviors.tsv").is_file() for split in find_split_or_self(folder).values())


def open_splits(folder: Path) -> tuple[Split, ...]:
    return tuple(_open_split(name, path) for name, path in find_split_or_self(folder).items())


def _open_split(name: str, folder: Path) -> Split:
    news, behaviors = require_file(folder / "news.tsv", FILES), require_file(folder / "behaviors.tsv", FILES)
    return Split(
        name=name,
        files=(news, behaviors),
        news=partial(_read_news, news),
        impressions=partial(_read_impressions, behaviors),
    )


def _read_news(path: Path) -> Iterator[pa.RecordBatch]:
    for lines in read_lines(path):
        news_id, category, subcategory, title, abstract, *_ = lines.split(_NEWS)
        body = pa.repeat("", len(title))
        yield pa.record_batch([news_id, category, subcategory, title, abstract, body], schema=NEWS)


def _read_impressions(path: Path) -> Iterator[pa.RecordBatch]:
    for lines in read_lines(path):
        impression_id, user_id, time, history, shown = lines.split(_BEHAVIORS)
        clicked, skipped, candidates = _split_labels(lines, split_lists(shown, " "))
        yield pa.record_batch(
            [
                impression_id,
                user_id,
                _parse_times(lines, time),
                clicked,
                skipped,
                split_lists(history, " "),
                candidates,
            ],
            schema=IMPRESSIONS,
        )


def _parse_times(lines: Lines, times: pa.StringArray) -> pa.TimestampArray:
    """Parse `11/12/2019 2:14:46 PM`: month first, with or without leading zeros."""
    expected = "month/day/year hour:minute:second AM or PM, as 11/12/2019 2:14:46 PM"
    parts = pc.extract_regex(times, _TIME)
    lines.check(parts.is_valid(), lambda row: f"time {quote(times[row])}", expected, "correct the time")
    month, day, year, hour, minute_second, half = parts.flatten()
    date = pc.binary_join_element_wise(year, _two_digits(month), _two_digits(day), "-")
    clock = pc.binary_join_element_wise(_two_digits(hour), minute_second, ":")
    morning = lines.parse_times(pc.binary_join_element_wise(date, clock, " "), times, expected)

    # The clock runs 12, 1, ..., 11 twice a day: 12 AM is midnight, 12 PM is noon.
    is_twelve = pc.equal(hour, "12").to_numpy(zero_copy_only=False)
    is_afternoon = pc.equal(half, "PM").to_numpy(zero_copy_only=False)
    shift = _HALF_DAY * (is_afternoon.astype(np.int64) - is_twelve)
    return pa.array(morning.cast(pa.int64()).to_numpy() + shift).cast(pa.timestamp("us"))


def _two_digits(numbers: pa.StringArray) -> pa.StringArray:
    return pc.utf8_lpad(numbers, 2, "0")


def _split_labels(lines: Lines, shown: pa.ListArray) -> tuple[pa.ListArray, pa.ListArray, pa.ListArray]:
    """Split candidates into clicked, skipped and all; a row without any label has candidates only.

    [N1-1, N2-0] -> [N1], [N2], [N1, N2]        [N1, N2] -> [], [], [N1, N2]
    """
    tokens = shown.values
    is_clicked, is_skipped = pc.ends_with(tokens, "-1"), pc.ends_with(tokens, "-0")
    is_labelled = pc.or_(is_clicked, is_skipped)
    ids = pc.utf8_slice_codeunits(tokens, 0, -2)
    if not pc.all(is_labelled).as_py():
        lines.explode(shown).check(
            pc.or_(is_labelled, _may_lack_label(shown)),
            lambda token: f"candidate {quote(tokens[token])}",
            "the label -0 or -1 at its end",
            "label every candidate of the row, or none",
        )
        ids = pc.if_else(is_labelled, ids, tokens)
    candidates = pa.ListArray.from_arrays(shown.offsets, ids)
    return filter_lists(candidates, is_clicked), filter_lists(candidates, is_skipped), candidates


def _may_lack_label(shown: pa.ListArray) -> pa.BooleanArray:
    """Whether each candidate is of a row without any label; a dash and a digit at the end are a label."""
    rows = pc.list_parent_indices(shown).to_numpy()
    has_label = pc.match_substring_regex(shown.values, "-[0-9]$").to_numpy(zero_copy_only=False)
    num_labels = np.bincount(rows, weights=has_label, minlength=len(shown))
    return pa.array(num_labels[rows] == 0)
