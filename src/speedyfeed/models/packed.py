"""Articles as flat arrays: tokens of all segments back to back, and where segments and articles begin. No padding.

    news 0: aaa bb   news 1: cc      tokens_T         a a a b b c c
                                     segment_starts   0     3   5   7
                                     news_starts      0         2   3

The same form serves a batch and a whole memory-mapped store: `select` takes articles out of either.

Shapes: T tokens   K segments   M articles   L tokens of a padded segment
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError, list_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedNews:
    """The tokens of some articles, in host memory; an article without segments is padding."""

    tokens_T: Tensor
    """Token ids; every segment begins and ends with the tokenizer's special tokens."""
    frequencies_T: Tensor
    """Number of occurrences of the token's word in the text, at most 255; 0 for special tokens."""
    segment_starts: Tensor
    """Where each segment begins in `tokens_T`, and the end: segments + 1 entries."""
    news_starts: Tensor
    """Where each article begins among the segments, and the end: articles + 1 entries."""
    fields_K: Tensor | None = None
    """Field of each segment: 0 title, 1 abstract, 2 body; for encoders that treat them differently."""
    categories_M: Tensor | None = None
    """Index of each category in the recommender's `IdMaps`; 0 is unknown."""
    subcategories_M: Tensor | None = None
    """Index of each subcategory in the recommender's `IdMaps`; 0 is unknown."""
    user_ids_M: Tensor | None = None
    """User that each article is encoded for, for user-dependent encoders; 0 is an unknown user."""
    ids_M: Tensor | None = None
    """Ids of the articles in their store, for encoders that cache outputs per article; None caches nothing."""
    is_padding_T: Tensor | None = None
    """Mask of padding tokens, which must not affect any result; None where there are none."""
    pad_to: int | None = None
    """Length to which `padded` fills segments, in tokens; 0 is the longest of them, None is no padding."""

    def __len__(self) -> int:
        return self.news_starts.numel() - 1

    @property
    def lengths_K(self) -> Tensor:
        """Number of tokens of each segment."""
        return self.segment_starts.diff()

    @property
    def segments_M(self) -> Tensor:
        """Number of segments of each article."""
        return self.news_starts.diff()

    @property
    def lengths_M(self) -> Tensor:
        """Number of tokens of each article."""
        return self.segment_starts[self.news_starts].diff()

    def select(self, rows: Tensor) -> "PackedNews":
        """Take the articles at `rows`, in that order; the cost depends on these alone."""
        segments, segments_M = _members(self.news_starts, rows)
        tokens, lengths_K = _members(self.segment_starts, segments)
        return PackedNews(
            tokens_T=self.tokens_T[tokens],
            frequencies_T=self.frequencies_T[tokens],
            segment_starts=_starts(lengths_K),
            news_starts=_starts(segments_M),
            fields_K=_at(self.fields_K, segments),
            categories_M=_at(self.categories_M, rows),
            subcategories_M=_at(self.subcategories_M, rows),
            user_ids_M=_at(self.user_ids_M, rows),
            ids_M=_at(self.ids_M, rows),
            is_padding_T=_at(self.is_padding_T, tokens),
            pad_to=self.pad_to,
        )

    def for_user(self, user: int) -> "PackedNews":
        """Set the user that all articles are encoded for."""
        return replace(self, user_ids_M=torch.full((len(self),), user))

    def joined(self) -> "PackedNews":
        """Join the segments of each article into one; an article without segments stays without."""
        has_text_M = self.segments_M > 0
        return replace(
            self,
            segment_starts=self.segment_starts[
                torch.cat([self.news_starts[:-1][has_text_M], self.news_starts[-1:]])
            ],
            news_starts=_starts(has_text_M.long()),
            fields_K=None if self.fields_K is None else self.fields_K[self.news_starts[:-1][has_text_M]],
        )

    def padded(self) -> "PackedNews":
        """Fill every segment up to `pad_to` tokens, to measure what fixed shapes cost; results do not change.

            pad_to 4:   aaa bb | cc | (none)   ->   aaa. bb.. | cc.. | .... ....

        An article without segments gets as many as the article with the most. Its first tokens are not masked, so
        that attention is never empty.
        """
        if self.pad_to is None or not len(self):
            return self
        fullest = max(1, int(self.segments_M.max()))
        segments_M = torch.where(self.segments_M > 0, self.segments_M, fullest)
        is_empty_K = torch.repeat_interleave(self.segments_M == 0, segments_M)
        lengths_K = torch.zeros(len(is_empty_K), dtype=torch.long)
        lengths_K[~is_empty_K] = self.lengths_K
        length = self.pad_to or int(lengths_K.max())
        if length < int(lengths_K.max()):
            raise InputError(f"a segment of {int(lengths_K.max())} tokens does not fit into {length}")
        position_KL = torch.arange(max(1, length)).expand(len(lengths_K), -1)
        is_token_KL = position_KL < lengths_K[:, None]
        tokens_KL = torch.zeros(position_KL.shape, dtype=self.tokens_T.dtype)
        tokens_KL[is_token_KL] = self.tokens_T
        frequencies_KL = torch.zeros(position_KL.shape, dtype=self.frequencies_T.dtype)
        frequencies_KL[is_token_KL] = self.frequencies_T
        fields_K = None
        if self.fields_K is not None:
            fields_K = count_up(segments_M).to(self.fields_K.dtype)  # of articles without text: 0, 1, 2
            fields_K[~is_empty_K] = self.fields_K
        return replace(
            self,
            tokens_T=tokens_KL.flatten(),
            frequencies_T=frequencies_KL.flatten(),
            segment_starts=_starts(torch.full_like(lengths_K, position_KL.size(1))),
            news_starts=_starts(segments_M),
            fields_K=fields_K,
            ids_M=None,
            is_padding_T=(~is_token_KL & (position_KL > 0)).flatten(),
            pad_to=None,
        )


Article = str | Sequence[str] | Mapping[str, str]
"""Raw article: its title; its title, abstract and body, later ones optional; or these three by name."""


class ArticlePacker(Protocol):
    """Prepares raw articles like the training data of a model; saved with the model."""

    def __call__(self, articles: Sequence[Article], /) -> PackedNews:
        """Pack articles, each given as its title, or as title, abstract and body."""

    def save(self, folder: Path, /) -> None:
        """Write what is needed to prepare articles into an existing folder."""


def count_up(lengths: Tensor) -> Tensor:
    """Count each length up from zero: [3, 2] -> [0, 1, 2, 0, 1]."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - torch.repeat_interleave(starts, lengths)


def article_parts(articles: Sequence[Article]) -> list[tuple[str, ...]]:
    """Title, abstract and body of each article, empty where not given; anything else is refused."""
    if isinstance(articles, str | Mapping):
        raise InputError("articles: found a single one, expected a list; give [article]")
    return [_parts(number, article) for number, article in enumerate(articles)]


def _parts(number: int, article: Article) -> tuple[str, ...]:
    if isinstance(article, Mapping):
        if wrong := sorted(map(str, set(article) - set(FIELDS))):
            raise InputError(
                f"article {number}: found {', '.join(wrong)}, expected only {list_words(FIELDS, 'and')}"
            )
        parts = tuple(article.get(name, "") for name in FIELDS)
    else:
        parts = (article,) if isinstance(article, str) else tuple(article)
    if len(parts) > len(FIELDS):
        raise InputError(f"article {number}: found {len(parts)} parts, expected {list_words(FIELDS, 'and')}")
    for part in parts:
        if not isinstance(part, str):
            raise InputError(f"article {number}: found {part!r}, expected text")
    return parts + ("",) * (len(FIELDS) - len(parts))


def pack_texts(texts: Sequence[Article], tokenizer: "PreTrainedTokenizerFast", segment_length: int) -> PackedNews:
    """Tokenize texts: a string is one segment; title, abstract and body are three, without empty ones."""
    segments = [
        [(0, text)] if isinstance(text, str) else [(n, part) for n, part in enumerate(parts) if part.strip()]
        for text, parts in zip(texts, article_parts(texts), strict=True)
    ]
    flat = [part for parts in segments for _, part in parts]
    encoded = tokenizer(flat, truncation=True, max_length=segment_length) if flat else {"input_ids": []}
    lengths_K = torch.tensor([len(ids) for ids in encoded["input_ids"]], dtype=torch.long)
    tokens_T = torch.tensor([token for ids in encoded["input_ids"] for token in ids], dtype=torch.int32)
    special = torch.tensor(tokenizer.all_special_ids, dtype=torch.int32)
    return PackedNews(
        tokens_T=tokens_T,
        frequencies_T=(~torch.isin(tokens_T, special)).to(torch.uint8),
        segment_starts=_starts(lengths_K),
        news_starts=_starts(torch.tensor([len(parts) for parts in segments], dtype=torch.long)),
        fields_K=torch.tensor([field for parts in segments for field, _ in parts], dtype=torch.uint8),
    )


def _at(column: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if column is None else column[rows]


def _members(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the members of each row, row after row, and the number of members."""
    begin = starts[rows]
    sizes = starts[rows + 1] - begin
    return torch.repeat_interleave(begin, sizes) + count_up(sizes), sizes


def _starts(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
