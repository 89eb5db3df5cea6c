"""A news encoder and a user encoder together: the module that training updates.

packed news --news--> news_MD          clicks_BLD --user--> users          users.score(news)

Shapes: M articles   B users   L clicks   P prefixes, L + 1   D embedding width
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from speedyfeed.models.base import NewsModule
from speedyfeed.models.config import RecommenderConfig
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.models.users import AttentiveUser, build_user_encoder, encode_prefixes, weigh_clicks
from speedyfeed.models.words import WordNewsEncoder
from speedyfeed.scoring import Users

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class RecommenderModule(nn.Module):
    """A news encoder and a user encoder: packed articles and clicks in, embeddings out."""

    def __init__(
        self,
        config: RecommenderConfig,
        *,
        id_maps: IdMaps | None = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        encoder: "PreTrainedModel | None" = None,
        news: NewsModule | None = None,
    ) -> None:
        """Load the pretrained encoder that `config` names, unless `encoder` or the whole `news` encoder is given.

        `id_maps` are the categories and users to learn embeddings of; encoders over words need the
        `tokenizer` of their store.
        """
        super().__init__()
        self.config = config
        self.id_maps = id_maps or IdMaps()
        self.user_embeddings = (
            nn.Embedding(1 + len(self.id_maps.users), config.user.id_width) if config.uses_user_ids else None
        )
        """Embedding of each user id; row 0 is the unknown user, and all start at zero."""
        if self.user_embeddings is not None:
            nn.init.zeros_(self.user_embeddings.weight)
        self.news: NewsModule
        if news is not None:
            self.news = news
        elif config.uses_words:
            assert tokenizer is not None, "an encoder over words needs the tokenizer of its store"
            self.news = WordNewsEncoder(
                config.news.encoder,
                dim=config.news.dim,
                config=config.words,
                tokenizer=tokenizer,
                id_maps=self.id_maps,
                user_embeddings=self.user_embeddings,
            )
        else:
            from speedyfeed.models.news import NewsEncoder  # imports transformers, which takes seconds

            self.news = NewsEncoder(config.news, encoder, tokenizer, num_categories=len(self.id_maps.categories))
        self.user = build_user_encoder(config.user, dim=self.news.dim, user_embeddings=self.user_embeddings)

    def draw_queries(self) -> None:
        """Draw at random the attention queries that otherwise begin at zero, which gives means."""
        for module in self.modules():
            if isinstance(module, AdditiveAttention | AttentiveUser):
                module.draw_query()

    def encode_prefixes(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Users:
        """Encode users after each prefix of their clicks; `clicked_BL` is False at padding."""
        return encode_prefixes(self.user, clicks_BLD, clicked_BL, user_ids_B, sharpness=self.config.user.sharpness)

    @torch.no_grad()
    def encode_users(
        self, clicks_BLD: Tensor, clicked_BL: Tensor | None = None, user_ids_B: Tensor | None = None
    ) -> Users:
        """Encode users after all their clicks, in host memory; `clicked_BL` is False at padding."""
        was_training = self.training
        if was_training:
            self.train(False)
        if clicked_BL is None:
            clicked_BL = torch.ones(clicks_BLD.shape[:2], dtype=torch.bool)
        device = next(self.parameters()).device
        users = self.encode_prefixes(clicks_BLD.to(device), clicked_BL.to(device), user_ids_B)
        if was_training:
            self.train(True)
        return users.prefixes(slice(-1, None)).to_host()

    @torch.no_grad()
    def weigh_clicks(self, clicks: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Attention weight of each click in the user embedding; None for user encoders that have none.

        With encoders that sum the clicks themselves (attentive, additive), a score is the sum over clicks of the
        weight times the inner product with the candidate, plus that of the learned start; with `sharpness`, it is
        a soft maximum over them. Clicks before the latest `max_clicks` have weight 0.
        """
        latest = clicks[self.config.latest_clicks]
        weights_L = weigh_clicks(self.user, torch.from_numpy(latest).to(next(self.parameters()).device))
        return None if weights_L is None else np.pad(weights_L.cpu().numpy(), (len(clicks) - len(latest), 0))
