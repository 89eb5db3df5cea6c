"""News encoders over words: embed them, encode each segment, combine the segments of an article.

    tokens --embedding--> words_KWE --encode_segments--> segments_KD --combine--> news_MD

The word encoder is one of the four in `baselines.py`. Segments of similar length are encoded together, so that
there is little padding.

Shapes: M articles, K segments, W words per segment, E word width, H width of an encoded text, D embedding width, Q
query width.
"""

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from speedyfeed.models.base import NewsModule
from speedyfeed.models.baselines import WORD_ENCODERS, NPANews, Text, WordEncoder
from speedyfeed.models.config import WordConfig
from speedyfeed.models.id_maps import UNKNOWN, IdMaps
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.word_vectors import load_glove, load_piece_vectors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 128
CACHED_USERS = 4
WORD_STD = 0.4
"""Standard deviation of untrained word embeddings: that of GloVe vectors."""


class WordNewsEncoder(NewsModule):
    """A news encoder over words: packed articles in, one embedding each out."""

    uses_words = True

    def __init__(
        self,
        name: str,
        *,
        dim: int,
        config: WordConfig,
        tokenizer: "PreTrainedTokenizerFast",
        id_maps: IdMaps,
        user_embeddings: nn.Embedding | None,
    ) -> None:
        """`user_embeddings` are those of the users in `id_maps`, for user-dependent encoders."""
        super().__init__()
        self.config = config
        self._tokenizer = tokenizer
        self.embedding = nn.Embedding(len(tokenizer), config.width)
        nn.init.normal_(self.embedding.weight, std=WORD_STD)
        self.drop = nn.Dropout(config.dropout)
        self.word_encoder: WordEncoder = WORD_ENCODERS[name](
            dim=dim, config=config, id_maps=id_maps, user_embeddings=user_embeddings
        )
        self.shift = nn.Parameter(torch.zeros(dim))
        self.dim = self.width = dim
        self.segment_length = config.segment_length
        self.num_tokens = len(tokenizer)
        self.joins = self.word_encoder.joins
        self.uses_categories = self.word_encoder.uses_categories
        self.is_user_dependent = self.word_encoder.is_user_dependent

    @property
    def vocabulary(self) -> dict[str, int]:
        """Row of each word in the word embedding, special tokens included."""
        return self._tokenizer.get_vocab()

    def encode_text(self, news: PackedNews) -> Tensor:
        """Encode words to news_MD, not yet centred."""
        news = (news.joined() if self.joins else news).padded()
        texts = list(self._grouped(news))
        segments_KD = torch.cat([self.word_encoder.encode_segments(text) for text in texts])
        owners_K = torch.cat([text.owners_K for text in texts])
        return self.word_encoder.combine(segments_KD, owners_K, news)

    def project(self, news_MH: Tensor, categories_M: Tensor | None) -> Tensor:
        """Centre embeddings: add the learned shift."""
        return news_MH + self.shift

    def for_users(self, news: PackedNews) -> Callable[[int], Tensor]:
        """Make a function from a user id to news_MD in host memory, without gradient, for user-dependent encoders.

        What does not depend on the user is computed once: words x (dim + query width) numbers. The embeddings for
        the latest few users are cached, since unknown users all share one id.
        """
        body = self.word_encoder
        assert isinstance(body, NPANews)
        news = news.joined()
        was_training = self.training
        self.train(False)
        with torch.no_grad():
            convolved = [(body.convolution(text.words_KWE, text.is_word_KW), text) for text in self._grouped(news)]
            texts = [
                (words_KWD, body.user_query.keys(words_KWD), text.is_word_KW, text.owners_K)
                for words_KWD, text in convolved
            ]
        self.train(was_training)

        @lru_cache(maxsize=CACHED_USERS)
        @torch.no_grad()
        def news_for(user: int) -> Tensor:
            segments_KD = [
                body.attend(words_KWD, keys_KWQ, is_word_KW, torch.full_like(owners_K, user))
                for words_KWD, keys_KWQ, is_word_KW, owners_K in texts
            ]
            owners_K = torch.cat([owners_K for *_, owners_K in texts])
            return (body.combine(torch.cat(segments_KD), owners_K, news) + self.shift).float().cpu()

        return news_for

    @property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the store's word vocabulary."""
        return self._tokenizer

    @torch.no_grad()
    def initialize(self, news_MH: Tensor) -> None:
        """Set the shift so that the embeddings of these articles have zero mean."""
        self.shift.copy_(-news_MH.mean(0))

    @torch.no_grad()
    def load_vectors(self) -> dict[str, int]:
        """Load the vectors of all words that the file or the encoder of the settings has; returns how many."""
        special = set(self._tokenizer.all_special_ids)
        indices = {word: row for word, row in self._tokenizer.get_vocab().items() if row not in special}
        if self.config.glove is not None:
            vectors, rows = load_glove(self.config.glove, indices, self.config.width)
        elif self.config.vectors is not None:
            every, is_known = load_piece_vectors(
                self.config.vectors, list(indices), self.config.width, std=WORD_STD
            )
            vectors, rows = every[is_known], torch.tensor(list(indices.values()))[is_known]
        else:
            return {}
        self.embedding.weight[rows] = vectors.to(self.embedding.weight)
        num_words = len(indices)
        log.info(
            "%s has %s of %s words (%.1f%%)",
            self.config.glove or self.config.vectors,
            f"{len(rows):,}",
            f"{num_words:,}",
            100 * len(rows) / max(1, num_words),
        )
        return {"words": num_words, "words_with_vectors": len(rows)}

    def _grouped(self, news: PackedNews) -> Iterator[Text]:
        """Yield all segments in groups of similar length, shortest first; one empty group where there are none."""
        device = self.embedding.weight.device
        lengths_K, owners_K = news.lengths_K, torch.repeat_interleave(news.segments_M)
        user_ids_M = torch.full((len(news),), UNKNOWN) if news.user_ids_M is None else news.user_ids_M
        fields_K = torch.zeros(len(owners_K), dtype=torch.uint8) if news.fields_K is None else news.fields_K
        for rows in lengths_K.argsort(stable=True).split(SEGMENTS_AT_ONCE):
            position_W = torch.arange(int(lengths_K[rows].max()) if len(rows) else 1)
            is_word_KW = position_W < lengths_K[rows][:, None]
            positions_KW = torch.where(is_word_KW, news.segment_starts[rows][:, None] + position_W, 0)
            if news.is_padding_T is not None:
                is_word_KW &= ~news.is_padding_T[positions_KW]
            tokens_KW = torch.where(is_word_KW, news.tokens_T[positions_KW].long(), 0)
            yield Text(
                words_KWE=self.drop(self.embedding(tokens_KW.to(device, non_blocking=True))),
                is_word_KW=is_word_KW.to(device, non_blocking=True),
                owners_K=owners_K[rows].to(device),
                fields_K=fields_K[rows].to(device),
                user_ids_K=user_ids_M[owners_K[rows]].to(device),
            )
