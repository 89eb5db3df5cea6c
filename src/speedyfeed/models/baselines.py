"""NRMS, NAML, LSTUR and NPA: four news encoders over words, after their papers.

Each is a short module with two methods: `encode_segments` turns padded words into one row per segment, `combine`
turns the segments and categories of an article into its embedding. All but NAML take an article as one sequence.

Shapes: M articles, K segments, W words per segment, E word width, B users, L clicks, D embedding width, Q query
width, A heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.config import FROM_WORDS, WITH_CATEGORIES, WordConfig
from speedyfeed.models.id_maps import UNKNOWN, IdMaps
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.models.packed import PackedNews

NUM_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Word embeddings of some segments, padded to the longest of them."""

    words_KWE: Tensor
    """Embedding of each word."""
    is_word_KW: Tensor
    """Mask of the words; False at padding."""
    owners_K: Tensor
    """Row of the article that each segment belongs to."""
    fields_K: Tensor
    """Field of each segment: 0 title, 1 abstract, 2 body."""
    user_ids_K: Tensor
    """User that each segment is encoded for; 0 is an unknown user."""


class WordEncoder(Protocol):
    """Encodes words to segments, and segments to articles."""

    joins: bool
    """Whether the segments of an article are joined into one sequence before they are encoded."""
    uses_categories: bool
    """Whether the category of an article contributes to its embedding."""
    is_user_dependent: bool
    """Whether an article has a different embedding for every user."""

    def encode_segments(self, text: Text, /) -> Tensor:
        """Encode the words of each segment to segments_KD."""

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews, /) -> Tensor:
        """Combine segments to news_MD; `owners_K` are rows of `news`."""


class NRMSNews(nn.Module):
    """NRMS: self-attention over words, then additive attention (Wu et al., EMNLP 2019)."""

    joins, uses_categories, is_user_dependent = True, False, False

    def __init__(
        self, *, dim: int, config: WordConfig, id_maps: IdMaps, user_embeddings: nn.Embedding | None
    ) -> None:
        super().__init__()
        if dim % config.heads:
            raise InputError(
                f"{config.heads} heads do not divide news embeddings of width {dim}: change words.heads"
            )
        self.heads = config.heads
        self.project = nn.Linear(config.width, 3 * dim)
        self.drop = nn.Dropout(config.dropout)
        self.pool = WordAttention(dim, config.query_width)

    def encode_segments(self, text: Text) -> Tensor:
        """Encode the words of each segment to segments_KD."""
        query, key, value = self.project(text.words_KWE).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen_KAWD = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=text.is_word_KW[:, None, None]
        )
        segments_KD: Tensor = self.pool(self.drop(seen_KAWD.transpose(1, 2).flatten(2)), text.is_word_KW)
        return segments_KD

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """Combine segments to news_MD."""
        return _alone(segments_KD, owners_K, news)


class NAMLNews(nn.Module):
    """NAML: an encoder for each field and category, pooled by additive attention (Wu et al., IJCAI 2019)."""

    joins, uses_categories, is_user_dependent = False, True, False

    def __init__(
        self, *, dim: int, config: WordConfig, id_maps: IdMaps, user_embeddings: nn.Embedding | None
    ) -> None:
        super().__init__()
        self.views = nn.ModuleList(ConvolutionAttention(dim, config) for _ in range(NUM_FIELDS))
        self.categories = nn.ModuleList(
            nn.Sequential(
                nn.Embedding(1 + len(names), config.category_width),
                nn.Linear(config.category_width, dim),
                nn.ReLU(),
            )
            for names in (id_maps.categories, id_maps.subcategories)
        )
        self.over_views = AdditiveAttention(dim, config.query_width)
        self.over_views.query.reset_parameters()  # nothing here is pretrained: no need to start as the mean

    def encode_segments(self, text: Text) -> Tensor:
        """Encode the words of each segment to segments_KD."""
        parts, order = [], []
        for field, view in enumerate(self.views):
            rows = (text.fields_K == field).nonzero().squeeze(1)
            parts.append(view(text.words_KWE[rows], text.is_word_KW[rows]))
            order.append(rows)
        return torch.cat(parts)[torch.cat(order).argsort()]

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """Combine segments to news_MD."""
        topics = _topics(news, owners_K.device)
        category_MD, subcategory_MD = (embed(ids) for embed, ids in zip(self.categories, topics, strict=True))
        every_M = torch.arange(len(news), device=owners_K.device)
        views = torch.cat([segments_KD, category_MD, subcategory_MD])
        news_MD: Tensor = self.over_views(views, torch.cat([owners_K, every_M, every_M]), len(news))
        return news_MD


class LSTURNews(nn.Module):
    """LSTUR: convolution and attention over words, concatenated with both categories (An et al., ACL 2019)."""

    joins, uses_categories, is_user_dependent = True, True, False

    def __init__(
        self, *, dim: int, config: WordConfig, id_maps: IdMaps, user_embeddings: nn.Embedding | None
    ) -> None:
        super().__init__()
        text = dim - 2 * config.category_width
        if text < 1:
            raise InputError(
                f"categories of width {config.category_width} leave no room for text in news embeddings of width "
                f"{dim}: lower words.category-width or raise news.dim"
            )
        self.text = ConvolutionAttention(text, config)
        self.categories = nn.ModuleList(
            nn.Embedding(1 + len(names), config.category_width)
            for names in (id_maps.categories, id_maps.subcategories)
        )

    def encode_segments(self, text: Text) -> Tensor:
        """Encode the words of each segment to segments_KD, narrower than an article by two categories."""
        segments_KD: Tensor = self.text(text.words_KWE, text.is_word_KW)
        return segments_KD

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """Combine segments to news_MD."""
        topics = _topics(news, owners_K.device)
        topics_MD = [embed(ids) for embed, ids in zip(self.categories, topics, strict=True)]
        return torch.cat([_alone(segments_KD, owners_K, news), *topics_MD], 1)


class NPANews(nn.Module):
    """NPA: convolution over words, pooled by attention with a query of the user (Wu et al., KDD 2019)."""

    joins, uses_categories, is_user_dependent = True, False, True

    def __init__(
        self, *, dim: int, config: WordConfig, id_maps: IdMaps, user_embeddings: nn.Embedding | None
    ) -> None:
        super().__init__()
        assert user_embeddings is not None
        self.convolution = WordConvolution(dim, config)
        self.user_query = UserQuery(user_embeddings, dim, config.query_width)

    def encode_segments(self, text: Text) -> Tensor:
        """Encode the words of each segment to segments_KD."""
        words_KWD = self.convolution(text.words_KWE, text.is_word_KW)
        return self.attend(words_KWD, self.user_query.keys(words_KWD), text.is_word_KW, text.user_ids_K)

    def attend(self, words_KWD: Tensor, keys_KWQ: Tensor, is_word_KW: Tensor, user_ids_K: Tensor) -> Tensor:
        """Pool convolved words and their keys to segments_KD: the part that depends on the user."""
        return weigh(words_KWD, self.user_query.score(keys_KWQ, user_ids_K), is_word_KW)

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """Combine segments to news_MD."""
        return _alone(segments_KD, owners_K, news)


class WordConvolution(nn.Module):
    """A convolution over each word and its neighbours."""

    def __init__(self, dim: int, config: WordConfig) -> None:
        super().__init__()
        self.convolve = nn.Conv1d(config.width, dim, config.window, padding="same")
        self.drop = nn.Dropout(config.dropout)

    def forward(self, words_KWE: Tensor, is_word_KW: Tensor) -> Tensor:
        """Convolve words to words_KWD; padding is set to zero, like what lies beyond the edge."""
        words_KWE = words_KWE * is_word_KW[..., None]
        words_KWD: Tensor = self.drop(self.convolve(words_KWE.mT).mT.relu())
        return words_KWD


class WordAttention(nn.Module):
    """Additive attention: words to one row per segment, weighted by softmax(q . tanh(W x + b))."""

    def __init__(self, dim: int, query_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, query_width)
        self.query = nn.Linear(query_width, 1, bias=False)

    def forward(self, words_KWD: Tensor, is_word_KW: Tensor) -> Tensor:
        """Pool words to segments_KD."""
        return weigh(words_KWD, self.query(self.project(words_KWD).tanh()).squeeze(-1), is_word_KW)


class ConvolutionAttention(nn.Module):
    """A convolution over words, then additive attention."""

    def __init__(self, dim: int, config: WordConfig) -> None:
        super().__init__()
        self.convolution = WordConvolution(dim, config)
        self.pool = WordAttention(dim, config.query_width)

    def forward(self, words_KWE: Tensor, is_word_KW: Tensor) -> Tensor:
        """Encode words to segments_KD."""
        segments_KD: Tensor = self.pool(self.convolution(words_KWE, is_word_KW), is_word_KW)
        return segments_KD


class UserQuery(nn.Module):
    """Attention scores by a query of the user: relu(U e) . tanh(W x + b), e the user's embedding (NPA)."""

    def __init__(self, user_embeddings: nn.Embedding, dim: int, query_width: int) -> None:
        super().__init__()
        self.user_embeddings = user_embeddings
        self.query = nn.Linear(user_embeddings.embedding_dim, query_width)
        self.project = nn.Linear(dim, query_width)

    def forward(self, items_BLD: Tensor, user_ids_B: Tensor) -> Tensor:
        """Score items for their user, scores_BL."""
        return self.score(self.keys(items_BLD), user_ids_B)

    def keys(self, items_BLD: Tensor) -> Tensor:
        """Compute keys_BLQ, which do not depend on the user: nearly all of the work."""
        keys_BLQ: Tensor = self.project(items_BLD).tanh()
        return keys_BLQ

    def score(self, keys_BLQ: Tensor, user_ids_B: Tensor) -> Tensor:
        """Score keys with the query of each user, scores_BL."""
        query_BQ = self.query(self.user_embeddings(user_ids_B)).relu()
        return torch.einsum("bq,blq->bl", query_BQ, keys_BLQ)


def weigh(items_BLD: Tensor, scores_BL: Tensor, is_item_BL: Tensor) -> Tensor:
    """Sum the items of each row, weighted by the softmax of their scores; every row has at least one item."""
    weights_BL = scores_BL.float().masked_fill(~is_item_BL, -math.inf).softmax(-1)
    return torch.einsum("bl,bld->bd", weights_BL.to(items_BLD.dtype), items_BLD)


def _alone(segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
    """Take the only segment of each article; zeros for articles without text."""
    return segments_KD.new_zeros(len(news), segments_KD.size(1)).index_copy(0, owners_K, segments_KD)


def _topics(news: PackedNews, device: torch.device) -> tuple[Tensor, Tensor]:
    """Category and subcategory of each article; unknown where they are not given."""
    unknown_M = torch.full((len(news),), UNKNOWN)
    given = (news.categories_M, news.subcategories_M)
    category_M, subcategory_M = (unknown_M if ids is None else ids for ids in given)
    return category_M.to(device), subcategory_M.to(device)


WORD_ENCODERS: dict[str, Callable[..., WordEncoder]] = {
    "nrms": NRMSNews,
    "naml": NAMLNews,
    "lstur": LSTURNews,
    "npa": NPANews,
}
"""Word encoders by name; `--encoder` takes these or a language model."""


def register_word_encoder(name: str, kind: Any) -> None:
    """Make a word encoder of your own known by a name, which `encoder` in the settings of a run then takes.

    `kind` is a class of the protocol `WordEncoder`, built as `kind(dim=, config=, id_maps=, user_embeddings=)`.
    Register it in every process that trains or loads such a model.
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InputError(f"word encoder {name!r}: found {kind!r}, expected a class of torch.nn.Module")
    traits: Any = kind
    if traits.is_user_dependent:
        raise InputError(f"word encoder {name!r}: is_user_dependent is True, expected False: only npa may be")
    WORD_ENCODERS[name] = traits
    FROM_WORDS.add(name)
    (WITH_CATEGORIES.add if traits.uses_categories else WITH_CATEGORIES.discard)(name)
