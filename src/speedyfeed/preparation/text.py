"""Text rules: everything that decides which tokens a text becomes.

A store makes the rules and every run trained on it inherits them. Later articles, a whole log or a single one, are
treated by the run's rules, so its model sees them as it saw the articles of its training.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from speedyfeed.data.manifest import CollectionStatistics, TextFacts
from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.preparation import refine
from speedyfeed.preparation.config import TextConfig
from speedyfeed.preparation.long_texts import segments_of_long
from speedyfeed.preparation.tokens import Segments, Tokenizer, segments_of_heads, segments_of_words, write_segments
from speedyfeed.progress import Report, counted, silent

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from speedyfeed.preparation.engine import Engine

CHOSEN = "chosen-words"  # their name in the engine's scratch folder
PLAIN = "plain-texts"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenNews:
    """Facts about the articles that `write_news` wrote."""

    num_empty: int
    """Articles without a word, by the first tokenizer."""
    statistics: CollectionStatistics | None
    """Statistics they were refined by; None where they were not refined."""


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


def write_news(
    engine: "Engine",
    texts: "ir.Table",
    num_news: int,
    folder: Path,
    rules: TextRules,
    tokenizers: Mapping[str, Tokenizer],
    num_measured: int,
    report: Report = silent,
) -> WrittenNews:
    """Write the tokens of all articles below `folder`, one folder per tokenizer, named by its key.

    `texts` has the number of each article and a column per field. Where the rules bring no statistics, those of
    articles 1 to `num_measured` are measured, and their document frequencies are written to `folder`.
    """
    config = rules.config
    statistics = None
    if config.refine != "bm25":
        engine.save(texts.order_by("news").select("news", *config.fields), PLAIN)
    if config.refine != "none":
        report("count words", 0, 0)
        counts = refine.count_words(engine, texts, config.fields)
        known = rules.statistics or refine.measure_words(
            engine,
            counts.filter(counts.news <= num_measured),
            num_measured,
            len(config.fields),
            folder / DOCUMENT_FREQUENCIES,
        )
        statistics = CollectionStatistics(num_news=known.num_news, mean_words=tuple(known.mean_words))
        report("rank words", 0, 0)
        limits = [SEGMENT_WORDS * part for part in config.parts]
        best = refine.top_words(engine, counts, known, limits)
        engine.save(best.order_by("news", "field", "first"), CHOSEN)
    num_empty = []
    for name, tokenizer in tokenizers.items():
        (folder / name).mkdir(exist_ok=True)
        segments = _segments(engine, config, tokenizer, num_news, report)
        num_empty.append(write_segments(folder / name, segments, tokenizer, num_news))
    return WrittenNews(num_empty=num_empty[0], statistics=statistics)


def _segments(
    engine: "Engine", config: TextConfig, tokenizer: Tokenizer, num_news: int, report: Report
) -> Iterator[Segments]:
    """Segments of all articles, in order, from the texts chosen before."""
    if config.refine == "bm25":
        words = counted(engine.reread(CHOSEN), report, "tokenize")
        return segments_of_words(words, tokenizer, segment_words=SEGMENT_WORDS)
    heads = counted(engine.reread(PLAIN, batch_rows=1 << 13), report, "tokenize", num_news)
    return segments_of_texts(config, tokenizer, heads, engine.reread(CHOSEN))


def segments_of_texts(
    config: TextConfig, tokenizer: Tokenizer, heads: Iterator[pa.RecordBatch], words: Iterator[pa.RecordBatch]
) -> Iterator[Segments]:
    """Segments of (news, ...) rows that are not all refined; `words` are read where some are."""
    if config.refine == "none":
        return segments_of_heads(heads, tokenizer, fields=config.fields, parts=config.parts)
    return segments_of_long(
        heads, words, tokenizer, fields=config.fields, parts=config.parts, segment_words=SEGMENT_WORDS
    )
