"""A few new articles to packed news, exactly as a store would hold them: serving sees what evaluation saw."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from speedyfeed.data.store import NewsTokens
from speedyfeed.data.tables import FIELDS
from speedyfeed.encoding.tokens import packed
from speedyfeed.errors import InputError
from speedyfeed.files import write_json
from speedyfeed.models.packed import PackedNews
from speedyfeed.preparation.bag import Bags
from speedyfeed.preparation.text import SEGMENT_WORDS, TextRules
from speedyfeed.preparation.tokens import (
    Segments,
    Tokenizer,
    gather_segments,
    segments_of_heads,
    segments_of_words,
)
from speedyfeed.ragged import offsets_of
from speedyfeed.tokenizers import load_tokenizer

WORDS = "words.parquet"
ENCODER = "encoder"
TEXT = "text.json"
CHOSEN_WORDS = pa.schema(
    {"news": pa.int64(), "field": pa.int8(), "form": pa.string(), "count": pa.int64()}
    | {"first": pa.int64(), "rank": pa.int64()}
)


class Articles:
    """Packs articles by the rules of a store; an `ArticlePacker`."""

    def __init__(self, text: dict[str, Any], *, words: Path, plm: str) -> None:
        """From the `settings` and `statistics` of a manifest, its `words.parquet`, and where the tokenizer is."""
        self.text = text
        self.rules = TextRules.of(text, words=words, plm=plm)
        self._words = words
        self._bags = Bags(self.rules.words) if self.rules.words is not None else None
        self._tokenizer = Tokenizer(load_tokenizer(plm), self.rules.config.segment_tokens)

    def __call__(self, articles: Sequence[str | Sequence[str]]) -> PackedNews:
        rows = [_parts(article) for article in articles]
        segments = gather_segments(self._segments(rows), self._tokenizer, len(rows))
        tokens = NewsTokens(
            tokens=segments.tokens,
            frequencies=segments.frequencies.values,
            fields=segments.field,
            segments=offsets_of(np.bincount(segments.news, minlength=len(rows) + 1)),
        )
        news = packed(tokens, self.rules.config.fields)
        # They are in no store: an encoder that keeps something per news must not take them for its own.
        return replace(news.select(torch.arange(1, len(rows) + 1)), ids_M=None)

    def _segments(self, rows: Sequence[Sequence[str]]) -> Iterator[Segments]:
        config = self.rules.config
        texts = {name: [row[FIELDS.index(name)] for row in rows] for name in config.fields}
        if self._bags is None:
            heads = pa.record_batch({"news": pa.array(range(1, len(rows) + 1), pa.int64()), **texts})
            return segments_of_heads(iter([heads]), self._tokenizer, fields=config.fields, parts=config.parts)
        words = [
            {"news": news, "field": field, **asdict(word)}
            for news in range(1, len(rows) + 1)
            for field, (name, part) in enumerate(zip(config.fields, config.parts, strict=True))
            for word in self._bags.choose(texts[name][news - 1], field, SEGMENT_WORDS * part)
        ]
        chosen = pa.RecordBatch.from_pylist(words, CHOSEN_WORDS)
        return segments_of_words(iter([chosen]), self._tokenizer, segment_words=SEGMENT_WORDS)

    def save(self, folder: Path) -> None:
        """Write into a folder beside the tokenizer's."""
        write_json(folder / TEXT, self.text)
        if self.rules.words is not None and self._words != folder / WORDS:
            shutil.copyfile(self._words, folder / WORDS)


def load_packer(folder: Path) -> Articles:
    """What `Articles.save` wrote, with the tokenizer of the same folder."""
    text = json.loads((folder / TEXT).read_text("utf-8"))
    return Articles(text, words=folder / WORDS, plm=str(folder / ENCODER))


def _parts(article: str | Sequence[str]) -> tuple[str, ...]:
    """Title, abstract and body, those not given empty."""
    parts = (article,) if isinstance(article, str) else tuple(article)
    if len(parts) > len(FIELDS):
        raise InputError(f"an article has {len(parts)} parts, expected title, abstract and body")
    return parts + ("",) * (len(FIELDS) - len(parts))
