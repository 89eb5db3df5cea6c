"""News as flat arrays: tokens of all segments back to back, and where segments and news begin. No padding.

    news 0: aaa bb   news 1: cc      tokens_T         a a a b b c c
                                     segment_starts   0     3   5   7
                                     news_starts      0         2   3

The same form serves a batch and a whole memory-mapped store: `select` picks news out of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedNews:
    """Some news, in host memory; a news may have no segment at all (padding)."""

    tokens_T: Tensor
    """Token ids; every segment begins and ends with the tokenizer's special tokens."""
    frequencies_T: Tensor
    """How often the token's word occurs in the text, at most 255; 0 for special tokens."""
    segment_starts: Tensor
    """Where each segment begins in `tokens_T`, and the end: segments + 1 entries."""
    news_starts: Tensor
    """Where each news begins among the segments, and the end: news + 1 entries."""
    categories_M: Tensor | None = None
    ids_M: Tensor | None = None
    """What the news are called in their store, for encoders that keep something per news; None keeps nothing."""

    def __len__(self) -> int:
        return self.news_starts.numel() - 1

    @property
    def lengths_K(self) -> Tensor:
        """Tokens of each segment."""
        return self.segment_starts.diff()

    @property
    def segments_M(self) -> Tensor:
        """Segments of each news."""
        return self.news_starts.diff()

    @property
    def lengths_M(self) -> Tensor:
        """Tokens of each news."""
        return self.segment_starts[self.news_starts].diff()

    def select(self, rows: Tensor) -> "PackedNews":
        """The news at `rows`, in that order; costs what they hold, not what is left behind."""
        segments, segments_M = _members(self.news_starts, rows)
        tokens, lengths_K = _members(self.segment_starts, segments)
        return PackedNews(
            tokens_T=self.tokens_T[tokens],
            frequencies_T=self.frequencies_T[tokens],
            segment_starts=_starts(lengths_K),
            news_starts=_starts(segments_M),
            categories_M=None if self.categories_M is None else self.categories_M[rows],
            ids_M=None if self.ids_M is None else self.ids_M[rows],
        )


class ArticlePacker(Protocol):
    """Raw articles to packed news as a model met its news in training; saved with the model."""

    def __call__(self, articles: Sequence[str | Sequence[str]], /) -> PackedNews:
        """An article is its title, or title, abstract and body."""

    def save(self, folder: Path, /) -> None:
        """Write into a folder that exists, beside the tokenizer's."""


def count_up(lengths: Tensor) -> Tensor:
    """Every length counted from zero: [3, 2] -> [0, 1, 2, 0, 1]."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - torch.repeat_interleave(starts, lengths)


def pack_texts(
    texts: Sequence[str | Sequence[str]], tokenizer: "PreTrainedTokenizerFast", segment_length: int
) -> PackedNews:
    """Texts as packed news: a string is one segment; title, abstract and body are three, empty ones absent."""
    segments = [[text] if isinstance(text, str) else [part for part in text if part.strip()] for text in texts]
    flat = [part for parts in segments for part in parts]
    encoded = tokenizer(flat, truncation=True, max_length=segment_length) if flat else {"input_ids": []}
    lengths_K = torch.tensor([len(ids) for ids in encoded["input_ids"]], dtype=torch.long)
    tokens_T = torch.tensor([token for ids in encoded["input_ids"] for token in ids], dtype=torch.int32)
    special = torch.tensor(tokenizer.all_special_ids, dtype=torch.int32)
    return PackedNews(
        tokens_T=tokens_T,
        frequencies_T=(~torch.isin(tokens_T, special)).to(torch.uint8),
        segment_starts=_starts(lengths_K),
        news_starts=_starts(torch.tensor([len(parts) for parts in segments], dtype=torch.long)),
    )


def _members(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of everything the rows hold, row after row, and how much each holds."""
    begin = starts[rows]
    sizes = starts[rows + 1] - begin
    return torch.repeat_interleave(begin, sizes) + count_up(sizes), sizes


def _starts(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
