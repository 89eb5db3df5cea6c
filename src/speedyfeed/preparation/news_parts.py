"""Tokens of all articles: texts are refined by the engine, then tokenized and written in parts by workers.

chosen words, by article    1 1 1 2 2 | 3 3 4 ...     parts end where an article does
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speedyfeed.data.manifest import CollectionStatistics
from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.preparation import parts, refine
from speedyfeed.preparation.config import TextConfig
from speedyfeed.preparation.parts import Facts, RowRange, join_offsets, join_values, load_facts, write_parts
from speedyfeed.preparation.text import SEGMENT_WORDS, TextRules, segments_of_texts
from speedyfeed.preparation.tokens import Tokenizer, segments_of_words, write_segments
from speedyfeed.progress import Report, silent

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from speedyfeed.preparation.engine import Engine

CHOSEN = "chosen-words"  # their name in the engine's scratch folder
PLAIN = "plain-texts"
ROWS_PER_TEXT = 64
"""Number of words that a plain text counts as, where texts are cut into parts."""
TEXTS_AT_ONCE = 1 << 13


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenNews:
    """Facts about the articles that `write_news` wrote."""

    num_empty: int
    """Articles without a word, by the first tokenizer."""
    statistics: CollectionStatistics | None
    """Statistics they were refined by; None where they were not refined."""


def write_news(
    engine: "Engine",
    texts: "ir.Table",
    num_news: int,
    folder: Path,
    rules: TextRules,
    tokenizers: Mapping[str, str],
    num_measured: int,
    report: Report = silent,
) -> WrittenNews:
    """Write the tokens of all articles below `folder`, one folder per tokenizer, named by its key.

    `tokenizers` are names of encoders, or folders. `texts` has the number of each article and a column per field.
    Where the rules bring no statistics, those of articles 1 to `num_measured` are measured, and their document
    frequencies are written to `folder`.
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
    common = {"config": _text_settings(config), "tokenizers": dict(tokenizers)}
    jobs = [common | part for part in _cut(engine, config, num_news)]
    scratch = engine.scratch / "parts" / "news"
    folders = write_parts(write_token_part, jobs, scratch, report, "tokenize", workers=engine.workers)
    for name in tokenizers:
        (folder / name).mkdir(exist_ok=True)
        own = [part / name for part in folders]
        join_values(own, folder / name, "tokens.values", np.int32)
        join_values(own, folder / name, "frequencies", np.uint8)
        join_values(own, folder / name, "fields", np.uint8)
        join_offsets(own, folder / name, "tokens.offsets")
        join_offsets(own, folder / name, "segments.offsets")
    num_empty = sum(facts["num_empty"] for facts in load_facts(folders))
    return WrittenNews(num_empty=num_empty, statistics=statistics)


def write_token_part(
    folder: Path,
    *,
    config: dict[str, Any],
    tokenizers: dict[str, str],
    words: dict[str, Any] | None,
    plain: str | None,
    first_news: int,
    end_news: int,
) -> Facts:
    """Write the tokens of articles `first_news` to `end_news - 1`; 0 is padding.

    `words` are the rows of their chosen words, `plain` is the file of all plain texts, where each is needed.
    """
    from speedyfeed.tokenizers import load_tokenizer

    settings = TextConfig(**config | {"fields": tuple(config["fields"])})
    num_empty = []
    for name, source in tokenizers.items():
        (folder / name).mkdir()
        tokenizer = Tokenizer(load_tokenizer(source), settings.segment_tokens)
        chosen = _rows(words).read() if words is not None else iter(())
        if plain is None:
            segments = segments_of_words(chosen, tokenizer, segment_words=SEGMENT_WORDS)
        else:
            heads = RowRange(path=Path(plain), first=max(first_news - 1, 0), end=end_news - 1)
            segments = segments_of_texts(settings, tokenizer, heads.read(TEXTS_AT_ONCE), chosen)
        num_empty.append(write_segments(folder / name, segments, tokenizer, end_news - 1, first_news))
    return {"num_empty": num_empty[0]}


def _cut(engine: "Engine", config: TextConfig, num_news: int) -> list[dict[str, Any]]:
    """Articles of each part, with the rows of their words or the file of their texts."""
    plain = None if config.refine == "bm25" else str(engine.path(PLAIN))
    ranges: list[RowRange] = []
    if config.refine == "none":
        firsts = list(range(1, num_news + 1, max(1, parts.PART_ROWS // ROWS_PER_TEXT)))[1:]
    else:
        ranges = parts.cut(engine.path(CHOSEN), "news")
        firsts = parts.first_keys(ranges[1:], "news")
    bounds = [0, *firsts, num_news + 1]
    return [
        {
            "words": ranges[number].arguments() if ranges else None,
            "plain": plain,
            "first_news": bounds[number],
            "end_news": bounds[number + 1],
        }
        for number in range(len(bounds) - 1)
    ]


def _text_settings(config: TextConfig) -> dict[str, Any]:
    """Settings of texts alone, of a config that may have more."""
    return {field.name: getattr(config, field.name) for field in fields(TextConfig)}


def _rows(arguments: dict[str, Any]) -> RowRange:
    return RowRange(path=Path(arguments["path"]), first=arguments["first"], end=arguments["end"])
