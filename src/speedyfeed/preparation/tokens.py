"""Articles as segments of tokens: of a language model, or of the store's own word vocabulary.

    article 5, title "cat: 2, saw: 1"   ->  [CLS] cat saw [SEP]   frequencies 0 2 1 0

A segment starts and ends with the tokenizer's special tokens, which count towards its limit and have frequency 0.
Every article has at least one segment, even if empty. Distinct words are tokenized once, so the cost is a few
array operations per word.

Where the words of a segment have more tokens than it holds, the most informative ones that fit are retained:

    room for 4 tokens    4f9a8c1e2d: 6 tokens, storm: 1, cup: 1  ->  storm cup
                         今天, 国家统计局: 2 and 5                 ->  今天 国家     unspaced scripts may be cut
                         4f9a8c1e2d                              ->  4f9a         rather than nothing
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed.errors import InputError
from speedyfeed.ragged import ArrayWriter, Ragged, RaggedWriter, offsets_of

MAX_FREQUENCY = 255  # frequencies are stored as one byte
OPENING, CLOSING = 0, 1  # rows of the special tokens in a token table
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d"
    "\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters, which are written without spaces: a run of them is a
clause, and its beginning still says something."""


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
        self._is_unspaced = [False, False]
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
            self._is_unspaced.append(not word.isascii() and UNSPACED.search(word) is not None)
        if new:
            self._table = None
        row_of_distinct = np.array([self._rows[word] for word in distinct], dtype=np.int64)
        rows: NDArray[np.int64] = row_of_distinct[encoded.indices.to_numpy()]
        return rows

    def is_unspaced(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these rows has characters of a script that is written without spaces."""
        return np.array(self._is_unspaced, np.bool_)[rows]

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
    room, the most informative ones that fit are retained.
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

    An article without a segment gets an empty one; returns how many articles have no token between special ones.
    """
    num_segments = np.zeros(num_news + 1 - first_news, np.int64)
    num_inner = np.zeros(num_news + 1 - first_news, np.int64)
    done = max(first_news - 1, 0)  # articles up to `done` are written
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
            np.add.at(num_inner, whole.news - first_news, whole.tokens.lengths - 2)
            tokens.append(whole.tokens.values, whole.tokens.lengths)
            frequencies.append(whole.frequencies.values)
            fields.append(whole.field)
            done = last
    with ArrayWriter(folder, "segments.offsets", np.int64) as offsets:
        offsets.append(offsets_of(num_segments))
    return int(np.count_nonzero((num_segments > 0) & (num_inner == 0)))


def gather_segments(parts: Iterator[Segments], tokenizer: Tokenizer, num_news: int) -> Segments:
    """Gather in memory what `write_segments` would write."""
    whole = reduce(merge_segments, parts, _bare_segments(np.arange(0), tokenizer))
    missing = np.setdiff1d(np.arange(1, num_news + 1), whole.news)
    return merge_segments(whole, _bare_segments(missing, tokenizer))


def segments_of_table(words: pa.Table, table: TokenTable, room: int, segment_words: int) -> Segments:
    """Segments of refined words of whole articles."""
    news, field = words["news"].to_numpy(), words["field"].to_numpy()
    row = table.lookup(words["form"].combine_chunks())
    starts = np.flatnonzero(np.diff(news, prepend=-1) | np.diff(field, prepend=-1))  # of each text
    position = np.arange(len(news)) - np.repeat(starts, np.diff(starts, append=len(news)))
    is_head = position % segment_words == 0
    segment = np.cumsum(is_head) - 1
    num_tokens = table.tokens.lengths[row]
    retained = _retain(segment, words["rank"].to_numpy(), num_tokens, table.is_unspaced(row), room)
    is_in = retained > 0
    count = np.minimum(words["count"].to_numpy(), MAX_FREQUENCY)[is_in]
    return _assemble(
        news[is_head], field[is_head], segment[is_in], row[is_in], count, retained[is_in], table.tokens
    )


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


def _retain(
    segment: NDArray[np.int64],
    rank: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
    is_unspaced: NDArray[np.bool_],
    room: int,
) -> NDArray[np.int64]:
    """Number of first tokens retained of each word: all or none, or what fits of an unspaced one.

    Words are taken from the most informative on. Of a segment whose every word is too long, the first one is cut.

    segment [0, 0, 0], rank [2, 0, 1], num_tokens [1, 4, 2], room 3 -> [1, 0, 2]
    """
    order = np.lexsort((rank, segment))
    starts = np.flatnonzero(np.diff(segment[order], prepend=-1))
    num_words = np.diff(starts, append=len(order))
    left = np.full(len(starts), room)
    retained = np.zeros(len(order), np.int64)
    for position in range(int(num_words.max(initial=0))):  # all segments at once, word by word
        which = np.flatnonzero(num_words > position)
        word = order[starts[which] + position]
        taken = np.minimum(num_tokens[word], left[which])
        taken[(taken < num_tokens[word]) & ~is_unspaced[word]] = 0
        retained[word] = taken
        left[which] -= taken
    too_long = np.flatnonzero((left[segment] == room) & (num_tokens > 0))
    firsts = too_long[np.diff(segment[too_long], prepend=-1) > 0]
    retained[firsts] = np.minimum(num_tokens[firsts], room)
    return retained


def _assemble(
    news: NDArray[np.int64],
    field: NDArray[np.uint8],
    segment: NDArray[np.int64],
    row: NDArray[np.int64],
    count: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
    table: Ragged,
) -> Segments:
    """Put the special tokens around the words of each segment.

    `row` is the row of each word in `table`, and `num_tokens` how many of its tokens are used, from the first.
    """
    every = np.arange(len(news))
    # A stable sort by segment of (openings, words, closings) puts each between its own.
    whose = np.concatenate([every, segment, every])
    order = np.argsort(whose, kind="stable")
    rows = np.concatenate([np.full(len(news), OPENING), row, np.full(len(news), CLOSING)])[order]
    counts = np.concatenate([np.zeros(len(news), np.int64), count, np.zeros(len(news), np.int64)])[order]
    ones = np.ones(len(news), np.int64)
    tokens = table.take(rows).heads(np.concatenate([ones, num_tokens, ones])[order])
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
