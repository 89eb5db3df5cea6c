"""The news encoder with a language model: packed tokens to one embedding per article.

    tokens, frequencies --PLM with bus--> hidden_TH --attention--> segments_KH --attention--> news_MH
    news_MH --projection, category--> news_MD

Nothing is padded. The two attentions are those of the paper's appendix. The frequency of a word is embedded and
added to its tokens; these embeddings start at zero: before training, refined text is encoded like plain text.

Shapes: M articles   K segments   T tokens   H encoder width   D embedding width   C categories
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speedyfeed.errors import InputError
from speedyfeed.models.base import NewsModule
from speedyfeed.models.bus import Layout, build_layout
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.frozen import FrozenBelow, FrozenStates
from speedyfeed.models.id_maps import UNKNOWN
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import first_position, load_encoder, max_length, stay_in_bf16
from speedyfeed.tokenizers import load_tokenizer, parse_encoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NUM_FREQUENCIES = 256
"""Number of frequency embeddings: 0 to 255 occurrences of a word."""
CATEGORY_WIDTH = 32
"""Maximum width of a category embedding, which has dimensions of its own beside those of the text."""
CATEGORY_NORM = 0.25
"""Initial norm of the category embeddings; those of texts have unit norm."""


class NewsEncoder(NewsModule):
    """A news encoder with a language model: packed articles in, one embedding each out."""

    def __init__(
        self,
        config: NewsEncoderConfig,
        encoder: PreTrainedModel | None = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        *,
        num_categories: int = 0,
    ) -> None:
        """Load the encoder that `config` names, unless `encoder` is given, as when a saved model is loaded."""
        super().__init__()
        self.config = config
        self.encoder = encoder or load_encoder(
            config.encoder, hidden_dropout=config.hidden_dropout, attention_dropout=config.attention_dropout
        )
        stay_in_bf16(self.encoder)
        self._tokenizer = tokenizer
        if config.segment_length > max_length(self.encoder):
            raise InputError(
                f"segments of {config.segment_length} tokens are too long for encoder {config.encoder!r}, "
                f"which has {max_length(self.encoder)} positions"
            )
        if config.checkpointing:
            self.encoder.gradient_checkpointing_enable({"use_reentrant": False})
        self.width = width = self.encoder.config.hidden_size
        embedding = self.encoder.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        self.frequency = nn.Embedding(NUM_FREQUENCIES, embedding.embedding_dim)
        nn.init.zeros_(self.frequency.weight)
        self.over_tokens = AdditiveAttention(width)
        self.over_segments = AdditiveAttention(width).requires_grad_(config.segments)  # one needs no weights
        has_categories = config.categories and num_categories > 0
        category_width = min(CATEGORY_WIDTH, config.dim // 4 or CATEGORY_WIDTH) if has_categories else 0
        self.dim = config.dim or width + category_width
        self.projection = _orthogonal(width, self.dim - category_width) if config.dim else nn.Identity()
        self.category = nn.Embedding(1 + num_categories, category_width, UNKNOWN) if has_categories else None
        if self.category is not None:
            nn.init.zeros_(self.category.weight)
        self.segment_length = config.segment_length
        self.num_tokens = self.encoder.config.vocab_size
        self.max_tokens = max_length(self.encoder)
        self.joins = not config.segments
        self.uses_categories = config.categories
        self._frozen = self._freeze(width)

    def encode_text(self, news: PackedNews) -> Tensor:
        """Encode texts to news_MH; zeros for an article without text."""
        news = (news.joined() if self.joins else news).padded()
        segments_KH, owners_K = self._encode_segments(news)
        news_MH: Tensor = self.over_segments(segments_KH, owners_K, len(news))
        return news_MH

    def project(self, news_MH: Tensor, categories_M: Tensor | None) -> Tensor:
        """Project news_MH, append the category embedding: news_MD, of unit norm if `normalize`.

        A category has dimensions of its own, so it does not blur the text.
        """
        news_MD: Tensor = self.projection(news_MH)
        if self.config.normalize:
            news_MD = nn.functional.normalize(news_MD, dim=1)
        if self.category is not None:
            if categories_M is None:
                categories_M = torch.full((len(news_MD),), UNKNOWN)
            category_MC = self.category(categories_M.to(news_MD.device).long()).to(news_MD.dtype)
            news_MD = torch.cat([news_MD, category_MC], 1)
            if self.config.normalize:
                news_MD = nn.functional.normalize(news_MD, dim=1)
        return news_MD

    @property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the language model, loaded when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.config.encoder)
        return self._tokenizer

    def pretrained(self) -> Iterator[nn.Parameter]:
        """Parameters of the language model, and those that change what it reads and how it is pooled.

        At the rate of the head, embeddings of frequencies would shift every token of every article within a few
        updates.
        """
        for part in (self.encoder, self.frequency, self.over_tokens, self.over_segments):
            yield from part.parameters()

    def save(self, folder: Path) -> None:
        """Write the configuration of the language model and its tokenizer."""
        self.encoder.config.save_pretrained(folder)
        super().save(folder)

    @torch.no_grad()
    def initialize(self, news_MH: Tensor) -> None:
        """Initialize the projection with the principal directions of these articles, and the categories.

        A random projection would lose what the encoder knows. All embeddings share a large mean, which is
        subtracted: similarity to the average article says nothing about a user. Category embeddings start
        orthogonal, as far as their width allows.
        """
        if isinstance(self.projection, nn.Linear):
            news_MH = news_MH.to(self.projection.weight)
            mean_H = news_MH.mean(0)
            if self.projection.out_features < mean_H.numel():
                directions_HH = torch.linalg.svd(news_MH - mean_H, full_matrices=True)[2]
                self.projection.weight.copy_(directions_HH[: self.projection.out_features])
            self.projection.bias.copy_(-self.projection.weight @ mean_H)
        if self.category is not None:
            codes_CD = torch.empty_like(self.category.weight[1:], device="cpu")
            nn.init.orthogonal_(codes_CD, generator=torch.Generator().manual_seed(0))
            self.category.weight[1:] = CATEGORY_NORM * nn.functional.normalize(codes_CD, dim=1)

    def train(self, mode: bool = True) -> "NewsEncoder":
        """Set training mode; frozen layers stay in evaluation mode."""
        super().train(mode)
        if self._frozen is not None:
            self._frozen.train(mode)
        return self

    def _encode_segments(self, news: PackedNews) -> tuple[Tensor, Tensor]:
        """Encode segments to segments_KH; also returns the row of the article that each belongs to."""
        device = self.frequency.weight.device
        if not news.tokens_T.numel():
            width = self.encoder.config.hidden_size
            return torch.zeros(0, width, device=device), torch.zeros(0, dtype=torch.long, device=device)
        layout = build_layout(
            news.lengths_K,
            news.segments_M,
            bus=self.config.bus,
            backend=self.config.backend,
            device=device,
            is_padding_T=news.is_padding_T,
        )
        if self._frozen is not None:
            hidden_TH = self._frozen.encode(news, layout, first_position(self.encoder))
        else:
            hidden_TH = self._encode_tokens(news, layout)
        segments_KH = self.over_tokens(hidden_TH, layout.segment_T, len(layout.order_K), layout.is_padding_T)
        return segments_KH, layout.news_K

    def _encode_tokens(self, news: PackedNews, layout: Layout) -> Tensor:
        """Run the language model; hidden_TH in packed order."""
        device = self.frequency.weight.device
        tokens_T = news.tokens_T.to(device, non_blocking=True).long()[layout.order_T]
        frequencies_T = news.frequencies_T.to(device, non_blocking=True).long()[layout.order_T]
        embedded_TH = self.encoder.get_input_embeddings()(tokens_T) + self.frequency(frequencies_T)
        hidden_TH: Tensor = self.encoder(
            inputs_embeds=embedded_TH[None],
            position_ids=layout.position_T[None] + first_position(self.encoder),
            layout=layout,
        ).last_hidden_state[0]
        return hidden_TH

    def _freeze(self, width: int) -> FrozenBelow | None:
        train_layers = self.config.train_layers or int(parse_encoder(self.config.encoder).is_last)
        if not train_layers:
            return None
        self.frequency.requires_grad_(False)  # it lies below the frozen layers
        budget = int(self.config.frozen_gigabytes * 1e9)
        return FrozenBelow(
            self.encoder,
            train_layers=train_layers,
            bus=self.config.bus,
            backend=self.config.backend,
            states=FrozenStates(width=width, budget=budget, file=self.config.frozen_file),
        )


def _orthogonal(width: int, dim: int) -> nn.Linear:
    """An orthogonal projection, which changes inner products as little as possible."""
    linear = nn.Linear(width, dim)
    nn.init.orthogonal_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
