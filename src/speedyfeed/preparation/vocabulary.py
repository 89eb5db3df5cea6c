"""The word vocabulary of a store: the tokens of news encoders that learn from words instead of a language model.

It is an ordinary fast tokenizer, used like that of a language model: it lowers texts, splits them at `SEPARATORS`
as refinement does, and maps words of fewer than MIN_NEWS train articles to [UNK].
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from speedyfeed.data.store import DOCUMENT_FREQUENCIES, WORD_TOKENS, Store
from speedyfeed.preparation.refine import SEPARATORS

if TYPE_CHECKING:
    import ibis.expr.types as ir
    from transformers import PreTrainedTokenizerFast

    from speedyfeed.preparation.engine import Engine

MIN_NEWS = 2  # a word of a single article says nothing about others
MAX_WORDS = 100_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def write_vocabulary(engine: "Engine", train_news: "ir.Table", fields: Sequence[str], folder: Path) -> int:
    """Write the word tokenizer of a new store, made from its train articles; returns the number of its words."""
    words = common_words(engine, train_news, fields)
    build_word_tokenizer(words).save_pretrained(folder / WORD_TOKENS)
    return len(words)


def copy_vocabulary(like: Store, folder: Path) -> int | None:
    """Copy the word tokenizer and the document frequencies of a store; returns the number of words."""
    (folder / WORD_TOKENS).mkdir()
    for file in sorted(like.word_tokenizer.glob("*.json")):
        shutil.copyfile(file, folder / WORD_TOKENS / file.name)
    if like.document_frequencies.exists():
        shutil.copyfile(like.document_frequencies, folder / DOCUMENT_FREQUENCIES)
    return like.manifest.counts.vocabulary_size


def common_words(engine: "Engine", news: "ir.Table", fields: Sequence[str]) -> list[str]:
    """Lower-case words that occur in at least MIN_NEWS articles, most frequent first; ties are alphabetical."""
    import ibis
    from ibis import _

    texts = ibis.union(*(news.select("news", text=news[field].lower()) for field in fields))
    words = texts.mutate(word=_.text.re_split(SEPARATORS)).select("news", "word").unnest("word")
    counts = words.filter(_.word != "").group_by("word").agg(num_news=_.news.nunique())
    common = counts.filter(_.num_news >= MIN_NEWS).order_by(_.num_news.desc(), "word").limit(MAX_WORDS)
    found: list[str] = engine.load(common)["word"].to_pylist()
    return found


def build_word_tokenizer(words: Sequence[str]) -> "PreTrainedTokenizerFast":
    """Build the tokenizer whose tokens are these words."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate((*SPECIAL, *words))}
    backend = Backend(models.WordLevel(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(SEPARATORS), "removed")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
