"""A few new articles to packed news, exactly as a store would hold them: serving sees what evaluation saw.

They go through the same queries as a log, in a scratch folder; a call takes some tenths of a second,
whether for one article or for a thousand.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from speedyfeed.data.engine import EngineConfig, open_engine
from speedyfeed.data.store import open_news
from speedyfeed.data.tables import FIELDS
from speedyfeed.data.text import TextRules, write_news
from speedyfeed.data.tokens import Tokenizer
from speedyfeed.encoding.tokens import packed
from speedyfeed.errors import InputError
from speedyfeed.folders import write_json
from speedyfeed.models.names import load_tokenizer
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.recommender import ENCODER, TEXT

WORDS = "words.parquet"


class Articles:
    """Packs articles by the rules of a store; an `ArticlePacker`."""

    def __init__(self, text: dict[str, Any], *, words: Path, plm: str) -> None:
        """From the `settings` and `statistics` of a manifest, its `words.parquet`, and where the tokenizer is."""
        self.text = text
        self.rules = TextRules.of(text, words=words, plm=plm)
        self._words = words
        self._tokenizer = Tokenizer(load_tokenizer(plm), self.rules.config.segment_tokens)

    def __call__(self, articles: Sequence[str | Sequence[str]]) -> PackedNews:
        rows = [_parts(article) for article in articles]
        columns = {name: pa.array([row[place] for row in rows], pa.string()) for place, name in enumerate(FIELDS)}
        table = pa.table({"news": pa.array(range(1, len(rows) + 1), pa.int64()), **columns})
        with TemporaryDirectory(prefix="speedyfeed-") as name:
            folder = Path(name)
            pq.write_table(table, folder / "texts.parquet")
            with open_engine(EngineConfig(memory=1, threads=1), folder) as engine:
                texts = engine.open(folder / "texts.parquet")
                write_news(engine, texts, len(rows), folder, self.rules, {"news": self._tokenizer})
            news = packed(open_news(folder / "news"), self.rules.config.fields)
            # They are in no store: an encoder that keeps something per news must not take them for its own.
            return replace(news.select(torch.arange(1, len(rows) + 1)), ids_M=None)

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
