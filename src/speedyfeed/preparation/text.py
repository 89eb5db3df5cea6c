"""Text rules: everything that decides which tokens a text becomes.

A store makes the rules and every run trained on it inherits them. Later articles, a whole log or a single one, are
treated by the run's rules, so its model sees them as it saw the articles of its training.

By default only long texts are refined; a text that fits its segments stays as it is:

    room for 4 tokens    "The cat ran."                     ->  the cat ran .         frequencies 1 1 1 1
                         "The cat saw the other cat run"    ->  cat saw run           frequencies 2 1 1

Whether a text fits depends on the tokenizer, so plain texts and refined words are streamed side by side.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed.data.manifest import TEXT_VERSION, TextFacts
from speedyfeed.preparation import refine
from speedyfeed.preparation.config import TextConfig
from speedyfeed.preparation.tokens import (
    Segments,
    Tokenizer,
    TokenTable,
    encode_heads,
    merge_segments,
    segments_of_heads,
    segments_of_plain,
    segments_of_table,
)

if TYPE_CHECKING:
    import ibis.expr.types as ir

log = logging.getLogger(__name__)

SEGMENT_WORDS = 32  # the paper's; words beyond the segment's tokens are dropped by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """Text settings together with the statistics that refinement uses."""

    config: TextConfig
    statistics: refine.WordStatistics | None = None
    """Statistics to refine by; None uses those of the texts themselves."""
    text_version: int = TEXT_VERSION
    """Text version of the store that made the rules."""

    @classmethod
    def of(cls, facts: TextFacts, *, document_frequencies: Path, encoder: str) -> "TextRules":
        """Rules of an existing store, with the files of its document frequencies and of its tokenizer."""
        settings, statistics = facts.settings, None
        if facts.statistics is not None:
            statistics = refine.WordStatistics(
                num_news=facts.statistics.num_news,
                mean_words=facts.statistics.mean_words,
                document_frequencies=document_frequencies,
            )
        return cls(
            config=TextConfig(
                encoder=encoder,
                refine=settings.refine,
                fields=settings.fields,
                segment_tokens=settings.segment_tokens,
                body_segments=settings.body_segments,
                body_paragraphs=settings.body_paragraphs,
            ),
            statistics=statistics,
            text_version=settings.text_version,
        )

    def note_version(self) -> None:
        """Warn, once in a process, that a model does not get the tokens it was trained on."""
        if self.text_version != TEXT_VERSION:
            _warn_of_version(self.text_version)


@cache
def _warn_of_version(version: int) -> None:
    log.warning(
        "the model was trained on tokens of text version %s; articles are now read by version %s, and some become "
        "other tokens than in its training: prepare its log again and train anew",
        version,
        TEXT_VERSION,
    )


def first_paragraphs(texts: "ir.Table", count: int) -> "ir.Table":
    """Cut the column `body` to its first paragraphs; 0 leaves it whole."""
    from ibis import _

    if not count:
        return texts
    return texts.mutate(body=_.body.re_extract(_paragraphs(count), 1).fill_null(""))


def first_paragraphs_of(text: str, count: int) -> str:
    """Cut one text as `first_paragraphs` does."""
    if not count:
        return text
    found = re.match(_paragraphs(count), text)
    return found[1] if found else ""


def _paragraphs(count: int) -> str:
    """Regular expression whose group 1 is so many paragraphs; every engine reads it alike."""
    return rf"^[ \t\r\n]*((?:[^\r\n]+[ \t\r\n]*){{1,{count}}})"


def segments_of_texts(
    config: TextConfig, tokenizer: Tokenizer, heads: Iterator[pa.RecordBatch], words: Iterator[pa.RecordBatch]
) -> Iterator[Segments]:
    """Segments of (news, ...) rows that are not all refined; `words` are read where some are."""
    if config.refine == "none":
        return segments_of_heads(heads, tokenizer, fields=config.fields, parts=config.parts)
    return segments_of_long(
        heads, words, tokenizer, fields=config.fields, parts=config.parts, segment_words=SEGMENT_WORDS
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
