"""Text rules: everything that decides which tokens a text becomes.

A store makes the rules and every run trained on it inherits them. Later articles, a whole log or a single one, are
treated by the run's rules, so its model sees them as it saw the articles of its training.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from speedyfeed.data.manifest import TextFacts
from speedyfeed.preparation import refine
from speedyfeed.preparation.config import TextConfig
from speedyfeed.preparation.long_texts import segments_of_long
from speedyfeed.preparation.tokens import Segments, Tokenizer, segments_of_heads

if TYPE_CHECKING:
    import ibis.expr.types as ir


SEGMENT_WORDS = 32  # the paper's; words beyond the segment's tokens are dropped by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """Text settings together with the statistics that refinement uses."""

    config: TextConfig
    statistics: refine.WordStatistics | None = None
    """Statistics to refine by; None uses those of the texts themselves."""

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
