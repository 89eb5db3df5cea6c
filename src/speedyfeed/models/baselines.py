"""NRMS, NAML, LSTUR and NPA: four ways to read words and to make a news of what was read, after their papers.

Each is a short module with two methods: `read` turns padded words into one row per segment, `combine` turns the
segments of a news, and its categories, into its embedding. All but NAML read a news as one sequence.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.id_maps import UNKNOWN, IdMaps
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.models.packed import PackedNews

NUM_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WordConfig:
    """What encoders that start from words are made of."""

    width: int = 300
    """Width of a word embedding."""
    glove: Path | None = None
    """Text file of pretrained word vectors, of that width; without one, words start at random."""
    heads: int = 16
    """Attention heads over the words of a news (nrms); they must divide the width of a news embedding."""
    window: int = 3
    """Words a convolution sees at once (naml, lstur, npa)."""
    query_width: int = 200
    """Hidden width of the attention over words."""
    category_width: int = 32
    """Width of a category's embedding (naml, lstur)."""
    segment_length: int = 32
    """Longest segment of plain texts, in words."""
    dropout: float = 0.2
    """Share of word embeddings, and of what is read from them, that training leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Some segments, padded to the longest of them."""

    words_KWE: Tensor
    is_word_KW: Tensor
    """False at padding."""
    owners_K: Tensor
    """The news each belongs to."""
    fields_K: Tensor
    user_ids_K: Tensor


class WordEncoder(Protocol):
    """Words to segments, segments to news."""

    joins: bool
    """Whether it wants a news as one segment."""
    reads_categories: bool
    is_user_dependent: bool

    def encode_segments(self, text: Text, /) -> Tensor:
        """segments_KD"""

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews, /) -> Tensor:
        """news_MD; `owners_K` are rows of `news`."""


class NRMSNews(nn.Module):
    """Every word attends to all, then additive attention (Wu et al., EMNLP 2019)."""

    joins, reads_categories, is_user_dependent = True, False, False

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
        """segments_KD"""
        query, key, value = self.project(text.words_KWE).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen_KAWD = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=text.is_word_KW[:, None, None]
        )
        segments_KD: Tensor = self.pool(self.drop(seen_KAWD.transpose(1, 2).flatten(2)), text.is_word_KW)
        return segments_KD

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """news_MD"""
        return _alone(segments_KD, owners_K, news)


class NAMLNews(nn.Module):
    """Title, abstract, body and both categories, each read its own way, weighed by attention (Wu et al., 2019)."""

    joins, reads_categories, is_user_dependent = False, True, False

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
        self.over_views.query.reset_parameters()  # nothing here is pretrained: there is no mean worth keeping

    def encode_segments(self, text: Text) -> Tensor:
        """segments_KD"""
        parts, places = [], []
        for field, view in enumerate(self.views):
            rows = (text.fields_K == field).nonzero().squeeze(1)
            parts.append(view(text.words_KWE[rows], text.is_word_KW[rows]))
            places.append(rows)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """news_MD"""
        topics = _topics(news, owners_K.device)
        category_MD, subcategory_MD = (embed(ids) for embed, ids in zip(self.categories, topics, strict=True))
        every_M = torch.arange(len(news), device=owners_K.device)
        views = torch.cat([segments_KD, category_MD, subcategory_MD])
        news_MD: Tensor = self.over_views(views, torch.cat([owners_K, every_M, every_M]), len(news))
        return news_MD


class LSTURNews(nn.Module):
    """Convolution and attention over words, beside category and subcategory (An et al., ACL 2019)."""

    joins, reads_categories, is_user_dependent = True, True, False

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
        """segments_KD, narrower than a news"""
        segments_KD: Tensor = self.text(text.words_KWE, text.is_word_KW)
        return segments_KD

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """news_MD"""
        topics = _topics(news, owners_K.device)
        topics_MD = [embed(ids) for embed, ids in zip(self.categories, topics, strict=True)]
        return torch.cat([_alone(segments_KD, owners_K, news), *topics_MD], 1)


class NPANews(nn.Module):
    """Convolution over words, weighed by what the user asks of them (Wu et al., KDD 2019)."""

    joins, reads_categories, is_user_dependent = True, False, True

    def __init__(
        self, *, dim: int, config: WordConfig, id_maps: IdMaps, user_embeddings: nn.Embedding | None
    ) -> None:
        super().__init__()
        assert user_embeddings is not None
        self.words = WordConvolution(dim, config)
        self.ask = UserQuery(user_embeddings, dim, config.query_width)

    def encode_segments(self, text: Text) -> Tensor:
        """segments_KD"""
        words_KWD = self.words(text.words_KWE, text.is_word_KW)
        return self.attend(words_KWD, self.ask.answer(words_KWD), text.is_word_KW, text.user_ids_K)

    def attend(self, words_KWD: Tensor, answers_KWQ: Tensor, is_word_KW: Tensor, user_ids_K: Tensor) -> Tensor:
        """segments_KD from words that were convolved and answered for: the part that depends on the users."""
        return weigh(words_KWD, self.ask.score(answers_KWQ, user_ids_K), is_word_KW)

    def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
        """news_MD"""
        return _alone(segments_KD, owners_K, news)


class WordConvolution(nn.Module):
    """Each word with its neighbours."""

    def __init__(self, dim: int, config: WordConfig) -> None:
        super().__init__()
        self.convolve = nn.Conv1d(config.width, dim, config.window, padding="same")
        self.drop = nn.Dropout(config.dropout)

    def forward(self, words_KWE: Tensor, is_word_KW: Tensor) -> Tensor:
        """words_KWD; what stands at padding is as good as the edge: zero."""
        words_KWE = words_KWE * is_word_KW[..., None]
        words_KWD: Tensor = self.drop(self.convolve(words_KWE.mT).mT.relu())
        return words_KWD


class WordAttention(nn.Module):
    """Words to one row per segment, weighted by softmax(q . tanh(W x + b))."""

    def __init__(self, dim: int, query_width: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, query_width)
        self.query = nn.Linear(query_width, 1, bias=False)

    def forward(self, words_KWD: Tensor, is_word_KW: Tensor) -> Tensor:
        """segments_KD"""
        return weigh(words_KWD, self.query(self.project(words_KWD).tanh()).squeeze(-1), is_word_KW)


class ConvolutionAttention(nn.Module):
    """Convolution, then attention."""

    def __init__(self, dim: int, config: WordConfig) -> None:
        super().__init__()
        self.words = WordConvolution(dim, config)
        self.pool = WordAttention(dim, config.query_width)

    def forward(self, words_KWE: Tensor, is_word_KW: Tensor) -> Tensor:
        """segments_KD"""
        segments_KD: Tensor = self.pool(self.words(words_KWE, is_word_KW), is_word_KW)
        return segments_KD


class UserQuery(nn.Module):
    """Scores of items by what a user asks of them: relu(U e) . tanh(W x + b), e the user's embedding (NPA)."""

    def __init__(self, user_embeddings: nn.Embedding, dim: int, query_width: int) -> None:
        super().__init__()
        self.user_embeddings = user_embeddings
        self.query = nn.Linear(user_embeddings.embedding_dim, query_width)
        self.project = nn.Linear(dim, query_width)

    def forward(self, items_BLD: Tensor, user_ids_B: Tensor) -> Tensor:
        """scores_BL"""
        return self.score(self.answer(items_BLD), user_ids_B)

    def answer(self, items_BLD: Tensor) -> Tensor:
        """answers_BLQ: all that does not depend on the user, and nearly all of the work."""
        answers_BLQ: Tensor = self.project(items_BLD).tanh()
        return answers_BLQ

    def score(self, answers_BLQ: Tensor, user_ids_B: Tensor) -> Tensor:
        """scores_BL"""
        query_BQ = self.query(self.user_embeddings(user_ids_B)).relu()
        return torch.einsum("bq,blq->bl", query_BQ, answers_BLQ)


def weigh(items_BLD: Tensor, scores_BL: Tensor, is_item_BL: Tensor) -> Tensor:
    """The sum of each row's items, weighted by the softmax of their scores; every row has at least one."""
    weights_BL = scores_BL.float().masked_fill(~is_item_BL, -math.inf).softmax(-1)
    return torch.einsum("bl,bld->bd", weights_BL.to(items_BLD.dtype), items_BLD)


def _alone(segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
    """Each news is its one segment; zero where it has none."""
    return segments_KD.new_zeros(len(news), segments_KD.size(1)).index_copy(0, owners_K, segments_KD)


def _topics(news: PackedNews, device: torch.device) -> tuple[Tensor, Tensor]:
    """Category and subcategory of each news; unknown where nobody says."""
    unknown_M = torch.full((len(news),), UNKNOWN)
    given = (news.categories_M, news.subcategories_M)
    category_M, subcategory_M = (unknown_M if ids is None else ids for ids in given)
    return category_M.to(device), subcategory_M.to(device)


WORD_ENCODERS: dict[str, type[NRMSNews] | type[NAMLNews] | type[LSTURNews] | type[NPANews]] = {
    "nrms": NRMSNews,
    "naml": NAMLNews,
    "lstur": LSTURNews,
    "npa": NPANews,
}
"""By name: what `--encoder` takes beside a language model."""
