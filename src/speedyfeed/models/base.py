"""What every news encoder is and does the same way, whatever it makes of the tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.packed import ArticlePacker, PackedNews, pack_texts
from speedyfeed.progress import Report, silent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """Where training may begin; which of several is best is for the data to say."""

    centre: bool = True
    """Take the mean of all news away: how much a news is like all others then counts for nothing."""
    power: float = 0.0
    """How much more those directions count in which news differ most: their spread to this power."""
    category: float = 0.0
    """Length of what a news' category adds to its embedding, beside a text of length one."""


class NewsModule(nn.Module):
    """Packed news in, one embedding each out: `project(read(news), categories)`."""

    dim: int
    """Width of a news embedding."""
    width: int
    """Width of what `read` gives."""
    segment_length: int
    """Tokens of the longest segment of plain texts."""
    num_tokens: int
    """Tokens it knows."""
    max_tokens: int | None = None
    """Tokens it can read as one sequence, where that is limited."""
    joins: bool = False
    """Whether it reads a news as one sequence, not as segments."""
    reads_words: bool = False
    """Whether its tokens are words of the store's vocabulary, not those of a language model."""
    reads_categories: bool = False
    packer: ArticlePacker | None = None
    """How its news were prepared, where it was trained on some."""
    is_user_dependent: bool = False
    """Whether a news has another embedding for every user: none can be shared, cached or put in an index."""

    def forward(self, news: PackedNews) -> Tensor:
        """news_MD"""
        return self.project(self.encode_text(news), news.categories_M)

    def encode_text(self, news: PackedNews) -> Tensor:
        """news_MH: what it makes of the texts; nearly all the work, and what a cache keeps."""
        raise NotImplementedError

    def project(self, news_MH: Tensor, categories_M: Tensor | None) -> Tensor:
        """news_MD; cheap, and learned from by every news of a batch, cached ones too."""
        raise NotImplementedError

    @property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """What its tokens come from."""
        raise NotImplementedError

    def pretrained(self) -> Iterator[nn.Parameter]:
        """Parameters that do not start from nothing, and learn more slowly."""
        return iter(())

    def load_vectors(self) -> dict[str, int]:
        """What a run begins with beside pretrained weights; returns what to note about it."""
        return {}

    @property
    def init_candidates(self) -> Sequence[InitConfig]:
        """Where it may begin."""
        return (InitConfig(), InitConfig(centre=False))

    def initialize(self, init: InitConfig, news_MH: Tensor) -> None:
        """Begin there, given what `read` makes of some news."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write what, beside the weights, it takes to build it again."""
        self.tokenizer.save_pretrained(folder)

    def encode(
        self,
        texts: Sequence[str | Sequence[str]],
        *,
        categories_M: Tensor | None = None,
        report: Report = silent,
    ) -> NDArray[np.float32]:
        """One row per text; a text is a string, or its title, abstract and body.

        A trained encoder prepares them as it met its news in training: refined, where those were. `categories_M`
        are their categories by number, 0 where unknown.
        """
        if self.packer is None:
            news = pack_texts(texts, self.tokenizer, self.segment_length)
        else:
            news = self.packer(texts)
        return self.encode_all(replace(news, categories_M=categories_M), report=report).numpy()

    def encode_all(self, news: PackedNews, *, tokens_per_batch: int = 8192, report: Report = silent) -> Tensor:
        """Embeddings of many news, (news, dim) in host memory; no gradient, news of like length together."""
        return self._in_batches(self, news, tokens_per_batch, report)

    def encode_texts(self, news: PackedNews, *, report: Report = silent) -> Tensor:
        """What `read` makes of many news, in host memory; likewise."""
        return self._in_batches(self.encode_text, news, 8192, report)

    @torch.no_grad()
    def _in_batches(
        self, encode: Callable[[PackedNews], Tensor], news: PackedNews, tokens_per_batch: int, report: Report
    ) -> Tensor:
        if self.is_user_dependent and news.user_ids_M is None:
            raise InputError(
                "this encoder makes another embedding of a news for every user: it has none of a news alone, to "
                "be shared, cached or put in an index"
            )
        was_training = self.training
        self.train(False)
        out: Tensor | None = None
        done = 0
        for rows in by_length(news.lengths_M, tokens_per_batch):
            encoded = encode(news.select(rows)).float().cpu()
            out = encoded.new_empty(len(news), encoded.size(1)) if out is None else out
            out[rows] = encoded
            done += len(rows)
            report("encoding news", done, len(news))
        self.train(was_training)
        return torch.empty(0, self.dim) if out is None else out

    def trial_step(self) -> Callable[[], None]:
        """A forward and backward pass over made-up news, to be timed; leaves no gradient."""
        generator = torch.Generator().manual_seed(0)
        longest = self.segment_length
        if self.joins and self.max_tokens is not None:
            longest = min(longest, self.max_tokens // 3)
        lengths_K = torch.randint(min(8, longest), longest + 1, (96,), generator=generator)
        none_M = torch.zeros(32, dtype=torch.long)
        news = PackedNews(
            tokens_T=torch.randint(self.num_tokens, (int(lengths_K.sum()),), generator=generator),
            frequencies_T=torch.ones(int(lengths_K.sum()), dtype=torch.uint8),
            segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
            news_starts=torch.arange(0, 97, 3),
            fields_K=torch.arange(3).repeat(32),
            categories_M=none_M,
            subcategories_M=none_M,
            user_ids_M=none_M,
        )

        def step() -> None:
            self(news).sum().backward()
            self.zero_grad(set_to_none=True)

        return step


def by_length(lengths_M: Tensor, tokens_per_batch: int) -> Iterator[Tensor]:
    """Rows of about so many tokens together, shortest news first."""
    lengths, order = lengths_M.sort(stable=True)
    batch = lengths.cumsum(0) // tokens_per_batch
    yield from order.split(torch.unique_consecutive(batch, return_counts=True)[1].tolist())
