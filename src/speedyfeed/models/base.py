"""What all news encoders share: bulk encoding, raw texts, initialization.

Shapes: M articles   K segments   H encoder width   D embedding width
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.packed import Article, ArticlePacker, PackedNews, pack_texts
from speedyfeed.progress import Report, silent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TRIAL_NEWS = 12
"""Number of articles of a trial step, some 700 tokens: enough for the ratio of two precisions."""


class NewsModule(nn.Module):
    """A news encoder: packed articles in, one embedding each out, `project(encode_text(news), categories)`."""

    dim: int
    """Width of a news embedding."""
    width: int
    """Width of the hidden states that `encode_text` returns."""
    segment_length: int
    """Maximum number of tokens in a segment of raw text."""
    num_tokens: int
    """Size of the vocabulary."""
    max_tokens: int | None = None
    """Maximum number of tokens in one sequence; None where there is no limit."""
    joins: bool = False
    """Whether the segments of an article are joined into one sequence before they are encoded."""
    uses_words: bool = False
    """Whether its tokens are words of the store's vocabulary, not tokens of a language model."""
    uses_categories: bool = False
    """Whether the category of an article contributes to its embedding."""
    packer: ArticlePacker | None = None
    """Prepares raw articles like those of the training data; None for an encoder that was not trained."""
    is_user_dependent: bool = False
    """Whether an article has a different embedding for every user, so that none can be shared, cached
    or indexed."""

    def forward(self, news: PackedNews) -> Tensor:
        """Encode articles to news_MD."""
        return self.project(self.encode_text(news), news.categories_M)

    def encode_text(self, news: PackedNews) -> Tensor:
        """Encode texts to news_MH: the expensive part, and what the cache stores."""
        raise NotImplementedError

    def project(self, news_MH: Tensor, categories_M: Tensor | None) -> Tensor:
        """Map news_MH and categories to news_MD: the cheap part, which even cached articles train."""
        raise NotImplementedError

    @property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer that made its tokens."""
        raise NotImplementedError

    def pretrained(self) -> Iterator[nn.Parameter]:
        """Pretrained parameters, which have a learning rate of their own."""
        return iter(())

    def load_vectors(self) -> dict[str, int]:
        """Load pretrained word vectors, if any are configured; returns counts to note in `run.json`."""
        return {}

    def initialize(self, news_MH: Tensor) -> None:
        """Set the weights of `project` before training, given what `encode_text` returns for some articles."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write everything but the weights that is needed to build the encoder again."""
        self.tokenizer.save_pretrained(folder)

    def encode(
        self,
        texts: Sequence[Article],
        *,
        categories_M: Tensor | None = None,
        report: Report = silent,
    ) -> NDArray[np.float32]:
        """Encode raw texts, (texts, dim); a text is a string, or title, abstract and body in order or by name.

        A trained encoder prepares them like its training data, refined if that was. `categories_M` are indices of
        their categories, 0 where unknown.
        """
        news = replace(self.pack(texts), categories_M=categories_M)
        return self.encode_all(news, report=report).numpy()

    def pack(self, texts: Sequence[Article]) -> PackedNews:
        """Pack raw texts; a trained encoder prepares them like its training data."""
        if self.packer is None:
            return pack_texts(texts, self.tokenizer, self.segment_length)
        return self.packer(texts)

    def encode_all(self, news: PackedNews, *, tokens_per_batch: int = 8192, report: Report = silent) -> Tensor:
        """Encode many articles, (news, dim) in host memory, without gradient; similar lengths share a batch."""
        return self._in_batches(self, news, tokens_per_batch, report)

    def encode_texts(self, news: PackedNews, *, report: Report = silent) -> Tensor:
        """Run `encode_text` on many articles, (news, hidden) in host memory, without gradient."""
        return self._in_batches(self.encode_text, news, 8192, report)

    @torch.no_grad()
    def _in_batches(
        self, encode: Callable[[PackedNews], Tensor], news: PackedNews, tokens_per_batch: int, report: Report
    ) -> Tensor:
        if self.is_user_dependent and news.user_ids_M is None:
            raise InputError(
                "this encoder computes a different embedding of an article for every user: there is none to "
                "share, cache or index; give user ids"
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
            report("encoding articles", done, len(news))
        self.train(was_training)
        return torch.empty(0, self.dim) if out is None else out

    def trial_step(self) -> Callable[[], None]:
        """Make a function that runs forward and backward on random articles, for timing; it leaves no gradient."""
        generator = torch.Generator().manual_seed(0)
        longest = self.segment_length
        if self.joins and self.max_tokens is not None:
            longest = min(longest, self.max_tokens // 3)
        lengths_K = torch.randint(min(8, longest), longest + 1, (3 * TRIAL_NEWS,), generator=generator)
        none_M = torch.zeros(TRIAL_NEWS, dtype=torch.long)
        news = PackedNews(
            tokens_T=torch.randint(self.num_tokens, (int(lengths_K.sum()),), generator=generator),
            frequencies_T=torch.ones(int(lengths_K.sum()), dtype=torch.uint8),
            segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
            news_starts=torch.arange(0, 3 * TRIAL_NEWS + 1, 3),
            fields_K=torch.arange(3).repeat(TRIAL_NEWS),
            categories_M=none_M,
            subcategories_M=none_M,
            user_ids_M=none_M,
        )

        def step() -> None:
            total = self(news).sum()
            if total.requires_grad:  # not where all of it is frozen
                total.backward()
            self.zero_grad(set_to_none=True)

        return step


class AbsentNewsEncoder(NewsModule):
    """Stands for the news encoder of a recommender that was loaded without it; encodes no text."""

    def __init__(self, dim: int) -> None:
        """`dim` is the width of the embeddings that the news encoder gave."""
        super().__init__()
        self.dim = dim

    def pack(self, texts: Sequence[Article]) -> PackedNews:
        """Refuse raw texts."""
        raise InputError("this recommender was loaded without its news encoder; load it with with_encoder=True")


def by_length(lengths_M: Tensor, tokens_per_batch: int) -> Iterator[Tensor]:
    """Split articles into batches of about `tokens_per_batch` tokens, shortest first; yields rows."""
    lengths, order = lengths_M.sort(stable=True)
    batch = lengths.cumsum(0) // tokens_per_batch
    yield from order.split(torch.unique_consecutive(batch, return_counts=True)[1].tolist())
