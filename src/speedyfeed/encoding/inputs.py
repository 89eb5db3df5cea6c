"""Packed inputs of a news encoder: all articles of a store, or raw articles as that store would hold them.

    store     --open_packed-->  PackedNews, memory-mapped
    articles  --Articles----->  PackedNews, with the same tokens

Serving therefore sees what training and evaluation saw.

Shapes: M articles, K segments, T tokens.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from speedyfeed.data.manifest import TextFacts
from speedyfeed.data.store import DOCUMENT_FREQUENCIES, NewsTokens, Store
from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError
from speedyfeed.files import read_json, write_json
from speedyfeed.models.id_maps import IdMaps, lookup_indices
from speedyfeed.models.packed import Article, PackedNews, article_parts
from speedyfeed.preparation.plain_text import plain_text
from speedyfeed.preparation.refine import Refiner
from speedyfeed.preparation.text import SEGMENT_WORDS, TextRules, first_paragraphs_of, segments_of_texts
from speedyfeed.preparation.tokens import (
    Segments,
    Tokenizer,
    gather_segments,
    segments_of_words,
)
from speedyfeed.ragged import Array, offsets_of
from speedyfeed.tokenizers import load_tokenizer

ENCODER = "encoder"
"""Folder of a saved model with its encoder and tokenizer."""
TEXT = "text.json"
"""File of a saved model with the facts by which its articles became tokens."""
CHOSEN_WORDS = pa.schema(
    {"news": pa.int64(), "field": pa.int8(), "form": pa.string(), "count": pa.int64()}
    | {"first": pa.int64(), "rank": pa.int64()}
)


def open_packed(store: Store, *, word_tokens: bool = False, id_maps: IdMaps | None = None) -> PackedNews:
    """All articles of a store, memory-mapped; row n is article n.

    Tokens are those of the store's language model, or with `word_tokens` words of its vocabulary. Categories are
    included where `id_maps` has any.
    """
    tokens = store.word_tokens if word_tokens else store.news
    news = pack_tokens(tokens, store.manifest.settings.fields)
    if id_maps is None or not id_maps.categories:
        return news
    titles = store.load_titles()
    categories_M, subcategories_M = (
        nn.functional.pad(torch.from_numpy(lookup_indices(titles[column], names)), (1, 0))  # article 0 is padding
        for column, names in (("category", id_maps.categories), ("subcategory", id_maps.subcategories))
    )
    return replace(news, categories_M=categories_M, subcategories_M=subcategories_M)


def pack_tokens(news: NewsTokens, fields: Sequence[str]) -> PackedNews:
    """Arrays of a store as tensors, without copying; `fields` are the text fields that were read, in order."""
    fields_K = _as_tensor(news.fields)
    positions = [FIELDS.index(name) for name in fields]
    if positions != list(range(len(positions))):
        fields_K = torch.tensor(positions, dtype=torch.uint8)[fields_K.long()]
    return PackedNews(
        tokens_T=_as_tensor(news.tokens.values),
        frequencies_T=_as_tensor(news.frequencies),
        segment_starts=_as_tensor(news.tokens.offsets),
        news_starts=_as_tensor(news.segments),
        fields_K=fields_K,
        ids_M=torch.arange(len(news.segments) - 1),
    )


class Articles:
    """Packs raw articles by the text rules of a store; an `ArticlePacker`."""

    def __init__(self, text: TextFacts, *, document_frequencies: Path, encoder: str) -> None:
        """Take the text facts and the document frequencies of a store, and the name or path of its encoder."""
        self.text = text
        self.rules = TextRules.of(text, document_frequencies=document_frequencies, encoder=encoder)
        self._document_frequencies = document_frequencies
        self._refiner = Refiner(self.rules.statistics) if self.rules.statistics is not None else None
        self._tokenizer = Tokenizer(load_tokenizer(encoder), self.rules.config.segment_tokens)

    def __call__(self, articles: Sequence[Article]) -> PackedNews:
        """Pack articles: each is a title, or title, abstract and body, later ones optional, or these by name."""
        rows = article_parts(articles)
        self.rules.note_version()
        segments = gather_segments(self._segments(rows), self._tokenizer, len(rows))
        tokens = NewsTokens(
            tokens=segments.tokens,
            frequencies=segments.frequencies.values,
            fields=segments.field,
            segments=offsets_of(np.bincount(segments.news, minlength=len(rows) + 1)),
        )
        news = pack_tokens(tokens, self.rules.config.fields)
        # They belong to no store: an encoder that caches by article number must not confuse them with its own.
        return replace(news.select(torch.arange(1, len(rows) + 1)), ids_M=None)

    def _segments(self, rows: Sequence[Sequence[str]]) -> Iterator[Segments]:
        config = self.rules.config
        texts = {name: [plain_text(name, row[FIELDS.index(name)]) for row in rows] for name in config.fields}
        if "body" in texts:
            texts["body"] = [first_paragraphs_of(text, config.body_paragraphs) for text in texts["body"]]
        if config.refine == "bm25":
            chosen = self._choose_words(texts, len(rows))
            return segments_of_words(chosen, self._tokenizer, segment_words=SEGMENT_WORDS)
        heads = pa.record_batch({"news": pa.array(range(1, len(rows) + 1), pa.int64()), **texts})
        return segments_of_texts(config, self._tokenizer, iter([heads]), self._choose_words(texts, len(rows)))

    def _choose_words(self, texts: Mapping[str, Sequence[str]], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Words that refinement retains of each text; nothing is computed before they are asked for."""
        assert self._refiner is not None, "texts that are not refined have no statistics"
        config = self.rules.config
        words = [
            {"news": news, "field": field, **asdict(word)}
            for news in range(1, num_rows + 1)
            for field, (name, part) in enumerate(zip(config.fields, config.parts, strict=True))
            for word in self._refiner.choose(texts[name][news - 1], field, SEGMENT_WORDS * part)
        ]
        yield pa.RecordBatch.from_pylist(words, CHOSEN_WORDS)

    def save(self, folder: Path) -> None:
        """Write the text facts and the document frequencies; the tokenizer is saved by the encoder."""
        write_json(folder / TEXT, self.text.to_json())
        target = folder / DOCUMENT_FREQUENCIES
        if self.rules.statistics is not None and self._document_frequencies != target:
            shutil.copyfile(self._document_frequencies, target)


def load_packer(folder: Path) -> Articles:
    """Load what `Articles.save` wrote, with the tokenizer of the same folder."""
    try:
        facts = TextFacts.from_json(read_json(folder / TEXT))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / TEXT}: was not written by this version; prepare the log and train the model again"
        ) from error
    return Articles(facts, document_frequencies=folder / DOCUMENT_FREQUENCIES, encoder=str(folder / ENCODER))


def _as_tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only read
        return torch.from_numpy(array)
