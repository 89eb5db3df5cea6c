"""Refinement of long texts alone: a text that fits its segments stays as it is.

    room for 4 tokens    "The cat ran."                     ->  the cat ran .         frequencies 1 1 1 1
                         "The cat saw the other cat run"    ->  cat saw run           frequencies 2 1 1

Whether a text fits depends on the tokenizer, so plain texts and refined words are streamed side by side.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed.preparation.tokens import (
    Segments,
    Tokenizer,
    TokenTable,
    encode_heads,
    merge_segments,
    segments_of_plain,
    segments_of_table,
)


def segments_of_long(
    texts: Iterator[pa.RecordBatch],
    words: Iterator[pa.RecordBatch],
    tokenizer: Tokenizer,
    *,
    fields: Sequence[str],
    parts: Sequence[int],
    segment_words: int,
) -> Iterator[Segments]:
    """Segments of (news, ...) rows: a text that fits its segments as it is, a longer one as its refined words.

    Takes what `segments_of_heads` and `segments_of_words` take; both streams are ordered by news.
    """
    table = TokenTable(tokenizer)
    chosen = _WordStream(words)
    for batch in texts:
        limits = [tokenizer.room * part for part in parts]
        heads = [
            encode_heads(tokenizer, batch[name].to_pylist(), limit + 1)
            for name, limit in zip(fields, limits, strict=True)
        ]
        is_long = np.array(
            [[len(tokens) > limit for tokens in encoded] for encoded, limit in zip(heads, limits, strict=True)],
            dtype=np.bool,
        )
        whole = [
            [[] if skip else tokens for tokens, skip in zip(encoded, skips, strict=True)]
            for encoded, skips in zip(heads, is_long, strict=True)
        ]
        news = batch["news"].to_numpy()
        segments = segments_of_plain(news.tolist(), whole, tokenizer)
        long_words = chosen.take(news, is_long)
        if long_words is not None:
            refined = segments_of_table(long_words, table, tokenizer.room, segment_words)
            segments = merge_segments(segments, refined)
        if len(segments.news):
            yield segments


class _WordStream:
    """Refined words ordered by news, taken for some articles at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.Table | None = None

    def take(self, news: NDArray[np.int64], is_wanted: NDArray[np.bool]) -> pa.Table | None:
        """Words of the next articles, sorted in `news`, of the wanted fields, `is_wanted[field, row]`."""
        if not len(news):
            return None
        while self._rest is None or not len(self._rest) or self._rest["news"][-1].as_py() <= news[-1]:
            batch = next(self._batches, None)
            if batch is None:
                break
            more = pa.Table.from_batches([batch])
            self._rest = more if self._rest is None else pa.concat_tables([self._rest, more])
        if self._rest is None:
            return None
        numbers = self._rest["news"].to_numpy()
        end = int(np.searchsorted(numbers, news[-1], side="right"))
        words, self._rest = self._rest[:end], self._rest[end:]
        rows = np.searchsorted(news, numbers[:end])
        wanted = words.filter(pa.array(is_wanted[words["field"].to_numpy(), rows]))
        return wanted if len(wanted) else None
