"""Articles as segments of tokens: of a language model, or of the store's own word vocabulary.

    article 5, title "cat: 2, saw: 1"   ->  [CLS] cat saw [SEP]   frequencies 0 2 1 0

A segment starts and ends with the tokenizer's special tokens, which count towards its limit and have frequency 0.
Every article has at least one segment, even if empty. Distinct words are tokenized once, so the cost is a few
array operations per word.

The word vocabulary is an ordinary fast tokenizer, used like that of a language model: it lowers texts, splits them
at everything that is neither a letter nor a number, and maps words of fewer than MIN_NEWS train articles to [UNK].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed.errors import InputError
from speedyfeed.preparation.refine import SEPARATORS
from speedyfeed.ragged import ArrayWriter, Ragged, RaggedWriter, offsets_of

if TYPE_CHECKING:
    import ibis.expr.types as ir
    from transformers import PreTrainedTokenizerFast

    from speedyfeed.preparation.engine import Engine

MAX_FREQUENCY = 255  # frequencies are stored as one byte
OPENING, CLOSING = 0, 1  # rows of the special tokens in a token table
MIN_NEWS = 2  # a word of a single article says nothing about others
MAX_WORDS = 100_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Consecutive segments, ordered by article."""

    news: NDArray[np.int64]
    """Article of each segment."""
    field: NDArray[np.uint8]
    """Field of each segment, as an index into the `fields` setting."""
    tokens: Ragged
    """Token ids by segment."""
    frequencies: Ragged
    """For each token, how often its word occurs in the field; 0 for special tokens."""


class Tokenizer:
    """A transformers tokenizer reduced to its opening token, its closing token and the tokens of a text."""

    def __init__(self, tokenizer: Any, segment_tokens: int) -> None:
        ends = tokenizer("")["input_ids"]
        if len(ends) != 2:
            raise InputError(
                f"tokenizer of {tokenizer.name_or_path}: found {len(ends)} special tokens around a text, expected "
                "one before and one after; use an encoder-style model such as minilm"
            )
        if segment_tokens <= len(ends):
            raise InputError(f"--segment-tokens {segment_tokens}: expected at least {len(ends) + 1}")
        self._tokenizer = tokenizer
        self.opening, self.closing = ends
        self.room = segment_tokens - len(ends)
        """Maximum tokens of a segment between its special tokens."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens."""
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return ids


class TokenTable:
    """Tokens of every distinct word seen so far, one row per word; the first two rows are the special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rows: dict[str, int] = {}
        self._tokens: list[list[int]] = [[tokenizer.opening], [tokenizer.closing]]
        self._table: Ragged | None = None

    def lookup(self, words: pa.StringArray) -> NDArray[np.int64]:
        """The row of each word; new words are tokenized in one call."""
        encoded = words.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        new = [word for word in distinct if word not in self._rows]
        # The space makes byte-pair tokenizers see a word, not the start of a text.
        for word, tokens in zip(new, self._tokenizer.encode([f" {word}" for word in new]), strict=True):
            self._rows[word] = len(self._tokens)
            self._tokens.append(tokens)
        if new:
            self._table = None
        row_of_distinct = np.array([self._rows[word] for word in distinct], dtype=np.int64)
        rows: NDArray[np.int64] = row_of_distinct[encoded.indices.to_numpy()]
        return rows

    @property
    def tokens(self) -> Ragged:
        """Token ids by row."""
        if self._table is None:
            lengths = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)
            values = np.fromiter(
                (t for tokens in self._tokens for t in tokens), np.int32, count=int(lengths.sum())
            )
            self._table = Ragged(values=values, offsets=offsets_of(lengths))
        return self._table


def segments_of_words(
    batches: Iterator[pa.RecordBatch], tokenizer: Tokenizer, *, segment_words: int
) -> Iterator[Segments]:
    """Segments of refined words (news, field, form, count, first, rank), ordered by news, field and first.

    The words of a field fill segments of `segment_words`; where the tokens of a segment exceed the tokenizer's
    room, its least informative words are dropped.
    """
    table = TokenTable(tokenizer)
    for words in _whole_news(batches):
        yield segments_of_table(words, table, tokenizer.room, segment_words)


def segments_of_heads(
    batches: Iterator[pa.RecordBatch], tokenizer: Tokenizer, *, fields: Sequence[str], parts: Sequence[int]
) -> Iterator[Segments]:
    """Segments of the head of each field of (news, ...) rows, at most `parts[field]` each; no refinement."""
    for batch in batches:
        heads = [
            encode_heads(tokenizer, batch[name].to_pylist(), tokenizer.room * part)
            for name, part in zip(fields, parts, strict=True)
        ]
        yield segments_of_plain(batch["news"].to_pylist(), heads, tokenizer)


def write_segments(
    folder: Path, batches: Iterator[Segments], tokenizer: Tokenizer, num_news: int, first_news: int = 0
) -> int:
    """Write the segments of articles first_news..num_news, given in that order; article 0 is padding and has none.

    An article without a segment gets an empty one; returns how many did.
    """
    num_segments = np.zeros(num_news + 1 - first_news, np.int64)
    num_empty, done = 0, max(first_news - 1, 0)  # articles up to `done` are written
    with (
        RaggedWriter(folder, "tokens", np.int32) as tokens,
        ArrayWriter(folder, "frequencies", np.uint8) as frequencies,
        ArrayWriter(folder, "fields", np.uint8) as fields,
    ):
        for part in chain(batches, [_bare_segments(np.arange(num_news, num_news), tokenizer)]):
            last = int(part.news[-1]) if len(part.news) else num_news
            missing = np.setdiff1d(np.arange(done + 1, last + 1), part.news)
            whole = merge_segments(part, _bare_segments(missing, tokenizer))
            np.add.at(num_segments, whole.news - first_news, 1)
            tokens.append(whole.tokens.values, whole.tokens.lengths)
            frequencies.append(whole.frequencies.values)
            fields.append(whole.field)
            num_empty += len(missing)
            done = last
    with ArrayWriter(folder, "segments.offsets", np.int64) as offsets:
        offsets.append(offsets_of(num_segments))
    return num_empty


def gather_segments(parts: Iterator[Segments], tokenizer: Tokenizer, num_news: int) -> Segments:
    """Gather in memory what `write_segments` would write."""
    whole = reduce(merge_segments, parts, _bare_segments(np.arange(0), tokenizer))
    missing = np.setdiff1d(np.arange(1, num_news + 1), whole.news)
    return merge_segments(whole, _bare_segments(missing, tokenizer))


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


def segments_of_table(words: pa.Table, table: TokenTable, room: int, segment_words: int) -> Segments:
    """Segments of refined words of whole articles."""
    news, field = words["news"].to_numpy(), words["field"].to_numpy()
    row = table.lookup(words["form"].combine_chunks())
    starts = np.flatnonzero(np.diff(news, prepend=-1) | np.diff(field, prepend=-1))  # of each text
    position = np.arange(len(news)) - np.repeat(starts, np.diff(starts, append=len(news)))
    is_head = position % segment_words == 0
    segment = np.cumsum(is_head) - 1
    num_tokens = table.tokens.lengths[row]
    fits = _fits(segment, words["rank"].to_numpy(), num_tokens, room)
    count = np.minimum(words["count"].to_numpy(), MAX_FREQUENCY)[fits]
    return _assemble(news[is_head], field[is_head], segment[fits], row[fits], count, table.tokens)


def segments_of_plain(news: list[int], heads: list[list[list[int]]], tokenizer: Tokenizer) -> Segments:
    """Segments of plain texts, given the tokens of each by field and article; every word has frequency 1."""
    room = tokenizer.room
    pieces = [
        (number, field, tokens[start : start + room])
        for row, number in enumerate(news)
        for field, texts in enumerate(heads)
        for tokens in [texts[row]]
        for start in range(0, len(tokens), room)
    ]
    inner = [[tokenizer.opening, *tokens, tokenizer.closing] for _, _, tokens in pieces]
    offsets = offsets_of(np.array([len(tokens) for tokens in inner], dtype=np.int64))
    values = np.fromiter((token for tokens in inner for token in tokens), np.int32, count=int(offsets[-1]))
    frequencies = np.ones(len(values), np.uint8)
    frequencies[offsets[:-1]] = frequencies[offsets[1:] - 1] = 0
    return Segments(
        news=np.array([number for number, _, _ in pieces], dtype=np.int64),
        field=np.array([field for _, field, _ in pieces], dtype=np.uint8),
        tokens=Ragged(values=values, offsets=offsets),
        frequencies=Ragged(values=frequencies, offsets=offsets),
    )


def _whole_news(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut rows into tables so that no article is spread over two of them."""
    rest: pa.Table | None = None
    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = pa.concat_tables([rest, table]) if rest is not None else table
        news = table["news"].to_numpy()
        whole = int(np.searchsorted(news, news[-1])) if len(news) else 0
        if whole:
            yield table[:whole]
        rest = table[whole:]
    if rest is not None and len(rest):
        yield rest


def _fits(
    segment: NDArray[np.int64], rank: NDArray[np.int64], num_tokens: NDArray[np.int64], room: int
) -> NDArray[np.bool_]:
    """Which words are retained: the most informative of each segment whose tokens fit into the room.

    segment [0, 0, 0], rank [2, 0, 1], num_tokens [1, 1, 2], room 3 -> [False, True, True]
    """
    order = np.lexsort((rank, segment))
    total = np.cumsum(num_tokens[order])
    starts = np.flatnonzero(np.diff(segment[order], prepend=-1))
    before = np.repeat(total[starts] - num_tokens[order][starts], np.diff(starts, append=len(order)))
    fits = np.empty(len(order), np.bool_)
    fits[order] = total - before <= room
    return fits


def _assemble(
    news: NDArray[np.int64],
    field: NDArray[np.uint8],
    segment: NDArray[np.int64],
    row: NDArray[np.int64],
    count: NDArray[np.int64],
    table: Ragged,
) -> Segments:
    """Put the special tokens around the words of each segment; `row` is the row of each word in `table`."""
    every = np.arange(len(news))
    # A stable sort by segment of (openings, words, closings) puts each between its own.
    whose = np.concatenate([every, segment, every])
    order = np.argsort(whose, kind="stable")
    rows = np.concatenate([np.full(len(news), OPENING), row, np.full(len(news), CLOSING)])[order]
    counts = np.concatenate([np.zeros(len(news), np.int64), count, np.zeros(len(news), np.int64)])[order]
    tokens = table.take(rows)
    offsets = offsets_of(np.bincount(whose[order], weights=tokens.lengths, minlength=len(news)).astype(np.int64))
    return Segments(
        news=news,
        field=field.astype(np.uint8),
        tokens=Ragged(values=tokens.values, offsets=offsets),
        frequencies=Ragged(values=np.repeat(counts, tokens.lengths).astype(np.uint8), offsets=offsets),
    )


def encode_heads(tokenizer: Tokenizer, texts: list[str], limit: int) -> list[list[int]]:
    """The first `limit` tokens of each text; a long text is tokenized only as far as needed."""
    reach = 16 * limit  # characters; tokens are rarely that long
    heads = tokenizer.encode([text[:reach] for text in texts])
    # The last token of a cut text may be half a word, so such a text must yield more than `limit`.
    short = [i for i, text in enumerate(texts) if len(text) > reach and len(heads[i]) <= limit]
    for i, tokens in zip(short, tokenizer.encode([texts[i] for i in short]), strict=True):
        heads[i] = tokens
    return [tokens[:limit] for tokens in heads]


def _bare_segments(news: NDArray[np.int64], tokenizer: Tokenizer) -> Segments:
    """One segment per article, with nothing between its special tokens."""
    offsets = 2 * np.arange(len(news) + 1)
    values = np.tile(np.array([tokenizer.opening, tokenizer.closing], np.int32), len(news))
    return Segments(
        news=news,
        field=np.zeros(len(news), np.uint8),
        tokens=Ragged(values=values, offsets=offsets),
        frequencies=Ragged(values=np.zeros(2 * len(news), np.uint8), offsets=offsets),
    )


def merge_segments(a: Segments, b: Segments) -> Segments:
    """Segments of both, ordered by article and field."""
    if not len(b.news):
        return a
    order = np.lexsort((np.concatenate([a.field, b.field]), np.concatenate([a.news, b.news])))
    return Segments(
        news=np.concatenate([a.news, b.news])[order],
        field=np.concatenate([a.field, b.field])[order],
        tokens=_concatenate(a.tokens, b.tokens).take(order),
        frequencies=_concatenate(a.frequencies, b.frequencies).take(order),
    )


def _concatenate(a: Ragged, b: Ragged) -> Ragged:
    return Ragged(
        values=np.concatenate([a.values, b.values]),
        offsets=np.concatenate([a.offsets, b.offsets[1:] + a.offsets[-1]]),
    )
