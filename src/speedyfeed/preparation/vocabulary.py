"""A tokenizer whose tokens are words: the vocabulary of the train news, for encoders that start from words.

It is an ordinary fast tokenizer, so whatever takes a language model's takes this one: texts are lowered and split
at whatever is neither a letter nor a number, a segment begins with [CLS] and ends with [SEP], and a word that few
news have is [UNK], which is learned from the rarest words of the train news.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ibis
import ibis.expr.types as ir
from ibis import _

from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.refine import SEPARATORS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MIN_NEWS = 2  # a word of one news alone tells nothing about others
MAX_WORDS = 100_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def common_words(engine: Engine, news: ir.Table, fields: Sequence[str]) -> list[str]:
    """Words in lower case that several of these news have, those of most news first; ties by the alphabet."""
    texts = ibis.union(*(news.select("news", text=news[field].lower()) for field in fields))
    words = texts.mutate(word=_.text.re_split(SEPARATORS)).select("news", "word").unnest("word")
    counts = words.filter(_.word != "").group_by("word").agg(num_news=_.news.nunique())
    common = counts.filter(_.num_news >= MIN_NEWS).order_by(_.num_news.desc(), "word").limit(MAX_WORDS)
    found: list[str] = engine.load(common)["word"].to_pylist()
    return found


def build_word_tokenizer(words: Sequence[str]) -> "PreTrainedTokenizerFast":
    """The tokenizer of these words."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate((*SPECIAL, *words))}
    backend = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    backend.normalizer = Lowercase()
    backend.pre_tokenizer = Split(Regex(SEPARATORS), "removed")
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
