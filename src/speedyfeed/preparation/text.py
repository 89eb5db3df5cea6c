"""Texts to tokens by rules that can be kept: the settings, and what BM25 counted in the collection.

A store makes the rules and a run inherits them. Later news, a whole log or one article, are treated by the run's
rules and so look to its model as its own news did.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ibis.expr.types as ir

from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError
from speedyfeed.preparation import refine
from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.tokens import Segments, Tokenizer, segments_of_heads, segments_of_words, write_segments
from speedyfeed.progress import Report, counted, silent

CHOSEN = "chosen-texts"  # their name in the engine's scratch folder
SEGMENT_WORDS = 32  # the paper's; what does not fit into the segment's tokens is cut by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """How text becomes tokens."""

    plm: str = "minilm"
    """Encoder whose tokenizer is used: a name, a folder or a Hub id."""
    refine: Literal["bm25", "none"] = "bm25"
    """bm25 keeps the most telling words of each field, none keeps its head."""
    fields: tuple[str, ...] = FIELDS
    """Which of title, abstract and body are read, in this order."""
    segment_tokens: int = 32
    """Tokens per segment at most, special tokens included."""
    body_segments: int = 1
    """Segments a long body may fill."""

    def __post_init__(self) -> None:
        if not self.fields or not set(self.fields) <= set(FIELDS) or len(set(self.fields)) < len(self.fields):
            raise InputError(f"--fields {' '.join(self.fields)}: expected some of {' '.join(FIELDS)}, each once")
        if self.body_segments < 1:
            raise InputError(f"--body-segments {self.body_segments}: expected at least 1")

    @property
    def parts(self) -> tuple[int, ...]:
        """How many segments each field may fill."""
        return tuple(self.body_segments if field == "body" else 1 for field in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """All that decides which tokens a text becomes."""

    config: TextConfig
    words: refine.WordStatistics | None = None
    """None refines a collection by its own statistics, where it is refined."""

    @classmethod
    def of(cls, text: Mapping[str, Any], *, words: Path, plm: str) -> "TextRules":
        """From the `settings` and `statistics` of a manifest, its `words.parquet`, and where the tokenizer is."""
        settings = {name: text["settings"][name] for name in ("refine", "segment_tokens", "body_segments")}
        statistics = text["statistics"]
        return cls(
            config=TextConfig(plm=plm, fields=tuple(text["settings"]["fields"]), **settings),
            words=refine.WordStatistics(**statistics, frequencies=words) if statistics else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenNews:
    """What is to be said of news that were written."""

    num_empty: int
    """News without a word, to the first tokenizer."""
    statistics: dict[str, Any]
    """What treats later news alike, beside the settings and `words.parquet`."""


def write_news(
    engine: Engine,
    texts: ir.Table,
    num_news: int,
    folder: Path,
    rules: TextRules,
    tokenizers: Mapping[str, Tokenizer],
    report: Report = silent,
) -> WrittenNews:
    """The tokens of all news below `folder`, one folder for each tokenizer, by its name.

    `texts` has the number of each news and a column per field.

    Where the rules bring no word statistics, those of these texts are kept as `words.parquet`.
    """
    config = rules.config
    statistics: dict[str, Any] = {}
    if config.refine == "none":
        engine.save(texts.order_by("news").select("news", *config.fields), CHOSEN)
    else:
        report("count words", 0, 0)
        counts = refine.count_words(engine, texts, config.fields)
        words = rules.words or refine.measure_words(
            engine, counts, num_news, len(config.fields), folder / "words.parquet"
        )
        statistics = {"num_news": words.num_news, "mean_words": list(words.mean_words)}
        report("choose words", 0, 0)
        limits = [SEGMENT_WORDS * part for part in config.parts]
        best = refine.top_words(engine, counts, words, limits)
        engine.save(best.order_by("news", "field", "first"), CHOSEN)
    num_empty = []
    for name, tokenizer in tokenizers.items():
        (folder / name).mkdir(exist_ok=True)
        segments = _segments(engine, config, tokenizer, num_news, report)
        num_empty.append(write_segments(folder / name, segments, tokenizer, num_news))
    return WrittenNews(num_empty=num_empty[0], statistics=statistics)


def _segments(
    engine: Engine, config: TextConfig, tokenizer: Tokenizer, num_news: int, report: Report
) -> Iterator[Segments]:
    """All news in order, from what was chosen of their texts."""
    if config.refine == "none":
        heads = counted(engine.reread(CHOSEN, batch_rows=1 << 13), report, "tokenize", num_news)
        return segments_of_heads(heads, tokenizer, fields=config.fields, parts=config.parts)
    words = counted(engine.reread(CHOSEN), report, "tokenize")
    return segments_of_words(words, tokenizer, segment_words=SEGMENT_WORDS)
