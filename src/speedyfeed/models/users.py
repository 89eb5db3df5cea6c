"""User encoders: clicks to one user embedding per prefix, all prefixes in one pass.

    clicks       c0   c1   c2  (padding)
    row 0        a learned start vector: the user before any click
    row 1        c0
    row 2        c0 c1
    row 3        c0 c1 c2
    row 4        c0 c1 c2         padding repeats the row, so the last row is always the user after all clicks

Row t predicts click t and represents a user with t clicks. Each click is scored or projected once and shared by
every prefix; sums over prefixes are quadratic in the clicks, but cheap compared with the news encoder.

`encode_prefixes` gives the users as articles are scored by: by their embedding, or, with `sharpness`, by a soft
maximum over the clicks themselves (speedyfeed.scoring).

Shapes: B users   L clicks   P prefixes, L + 1   D embedding width   A heads
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.baselines import UserQuery
from speedyfeed.models.config import UserConfig
from speedyfeed.models.id_maps import UNKNOWN
from speedyfeed.scoring import Users

RECENCY = 32
"""Number of latest clicks that have a learned weight by their place from the end; older ones share the last."""
RECENCY_SCALE = 10.0
"""Attention score per unit of such a weight: learning rates of embeddings are too small for scores."""
UPDATE_GATE_BIAS = 2.0
"""Initial bias of a GRU's update gate: at each click, sigmoid(2) = 88% of the state is retained."""


class UserEncoder(Protocol):
    """A user encoder: clicks in, one user embedding per prefix out."""

    def __call__(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None, /) -> Tensor:
        """Encode every prefix of the clicks to users_BPD; `clicked_BL` is False at padding, after the clicks.

        `user_ids_B` are indices of the users, for encoders that use them; 0, or None for all, is an unknown user.
        """


class AttentiveUser(nn.Module):
    """Attentive YouTube-DNN: the clicks, weighted by softmax(q . x + r), where r depends on how recent a click is.

    A user without clicks is a learned start. All that is learned starts at zero: before training, a user is the
    mean of the clicks. Added to all users, the start would learn what the articles of train are about, which has
    gone when the next ones come.
    """

    def __init__(self, *, dim: int, recency: bool = True) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.score = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(self.score.weight)
        self.recency = nn.Parameter(torch.zeros(RECENCY)) if recency else None

    def draw_query(self) -> None:
        """Draw the query at random, as PyTorch initializes a linear layer."""
        self.score.reset_parameters()

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        items_BPD, weights_BPP = self.weigh(clicks_BLD, clicked_BL)
        return weights_BPP @ items_BPD

    def weigh(self, clicks_BLD: Tensor, clicked_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The start and the clicks, items_BPD, and their weights in each prefix, weights_BPP."""
        items_BPD = _with_start(self.start, clicks_BLD)
        visible_BPP = _visible(clicked_BL)
        # The start in front is attended to only where there is no click yet.
        visible_BPP[:, :, 0] = nn.functional.pad(clicked_BL.cumsum(1) == 0, (1, 0), value=True)
        latest_BP1 = nn.functional.pad(clicked_BL.cumsum(1), (1, 0))[..., None]
        places_P = torch.arange(items_BPD.size(1), device=items_BPD.device)
        recency_BPP = self.score_recency(latest_BP1 - places_P)
        return items_BPD, _weigh_prefixes(items_BPD, self.score(items_BPD), visible_BPP, recency_BPP)

    def score_recency(self, clicks_since: Tensor) -> Tensor | None:
        """Attention scores of clicks by the number of clicks since, `clicks_since`; None if none are learned."""
        if self.recency is None:
            return None
        return RECENCY_SCALE * self.recency.float()[clicks_since.clamp(0, RECENCY - 1)]


class AdditiveUser(nn.Module):
    """NAML: the clicks, weighted by softmax(q . tanh(W x + b)) (Wu et al., 2019)."""

    def __init__(self, *, dim: int, query_width: int = 200) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.score = _additive_score(dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        items_BPD = _with_start(self.start, clicks_BLD)
        return _pool_prefixes(items_BPD, self.score(items_BPD), _visible(clicked_BL))


class SelfAttentionUser(nn.Module):
    """NRMS with causal attention: clicks attend to themselves and earlier ones, then additive attention.

    Clicks of the original (Wu et al., 2019) see later ones too, so prefixes could not share any work.
    """

    def __init__(self, *, dim: int, heads: int = 8, query_width: int = 200) -> None:
        super().__init__()
        if dim % heads:
            raise InputError(
                f"{heads} attention heads do not divide embeddings of width {dim}: choose another number"
            )
        self.heads = heads
        self.start = nn.Parameter(torch.zeros(dim))
        self.project = nn.Linear(dim, 3 * dim)
        with torch.no_grad():  # values start as the identity, so that users start near their clicks
            nn.init.eye_(self.project.weight[2 * dim :])
            nn.init.zeros_(self.project.bias[2 * dim :])
        self.score = _additive_score(dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        visible_BPP = _visible(clicked_BL)
        items_BPD = self.attend(clicks_BLD, visible_BPP)
        return _pool_prefixes(items_BPD, self.score(items_BPD), visible_BPP)

    def attend(self, clicks_BLD: Tensor, visible_BPP: Tensor) -> Tensor:
        """Causal self-attention over the start and the clicks, items_BPD."""
        items_BPD = _with_start(self.start, clicks_BLD)
        query, key, value = self.project(items_BPD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen_BAPD = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible_BPP[:, None])
        return seen_BAPD.transpose(1, 2).flatten(2)


class GRUUser(nn.Module):
    """A GRU over the clicks: the short-term user of LSTUR (An et al., 2019)."""

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.gru = _build_gru(dim)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        return _run_gru(self.gru, _with_start(self.start, clicks_BLD), clicked_BL)


class LSTURUser(nn.Module):
    """LSTUR: a GRU over the clicks and an embedding of the user's id (An et al., 2019).

    The id embedding is the first state of the GRU (`ini`), or is concatenated with its last one (`con`).
    """

    def __init__(self, *, dim: int, user_embeddings: nn.Embedding, is_con: bool) -> None:
        super().__init__()
        self.is_con = is_con
        self.start = nn.Parameter(torch.zeros(dim))
        self.gru = _build_gru(dim)
        self.user_embeddings = user_embeddings
        self.long_term = nn.Linear(user_embeddings.embedding_dim, dim)
        self.join = nn.Linear(2 * dim, dim) if is_con else None
        if self.join is not None:
            with torch.no_grad():
                nn.init.eye_(self.join.weight[:, :dim])

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        long_BD = self.long_term(self.user_embeddings(_or_unknown(user_ids_B, clicks_BLD)))
        items_BPD = _with_start(self.start, clicks_BLD)
        if self.join is None:
            return _run_gru(self.gru, items_BPD, clicked_BL, long_BD)
        short_BPD = _run_gru(self.gru, items_BPD, clicked_BL)
        users_BPD: Tensor = self.join(torch.cat([short_BPD, long_BD[:, None].expand_as(short_BPD)], -1))
        return users_BPD


class NPAUser(nn.Module):
    """NPA: the clicks, weighted by attention with a query of the user (Wu et al., 2019)."""

    def __init__(self, *, dim: int, user_embeddings: nn.Embedding, query_width: int = 200) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.user_query = UserQuery(user_embeddings, dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix of the clicks to users_BPD."""
        items_BPD = _with_start(self.start, clicks_BLD)
        scores_BP = self.user_query(items_BPD, _or_unknown(user_ids_B, clicks_BLD))
        return _pool_prefixes(items_BPD, scores_BP[..., None], _visible(clicked_BL))


USER_ENCODERS: dict[str, Callable[[int, UserConfig, nn.Embedding], nn.Module]] = {
    "attentive": lambda dim, config, user_embeddings: AttentiveUser(dim=dim, recency=config.recency),
    "self-attention": lambda dim, config, user_embeddings: SelfAttentionUser(
        dim=dim, heads=config.heads, query_width=config.query_width
    ),
    "gru": lambda dim, config, user_embeddings: GRUUser(dim=dim),
    "additive": lambda dim, config, user_embeddings: AdditiveUser(dim=dim, query_width=config.query_width),
    "lstur-ini": lambda dim, config, user_embeddings: LSTURUser(
        dim=dim, user_embeddings=user_embeddings, is_con=False
    ),
    "lstur-con": lambda dim, config, user_embeddings: LSTURUser(
        dim=dim, user_embeddings=user_embeddings, is_con=True
    ),
    "npa": lambda dim, config, user_embeddings: NPAUser(
        dim=dim, user_embeddings=user_embeddings, query_width=config.query_width
    ),
}
"""User encoders by name: (width of news embeddings, settings, embeddings of user ids) -> module."""


def build_user_encoder(config: UserConfig, *, dim: int, user_embeddings: nn.Embedding | None = None) -> nn.Module:
    """Build the user encoder that `config` names, for news embeddings of width `dim`.

    Without `user_embeddings` every user is unknown.
    """
    if config.name not in USER_ENCODERS:
        raise InputError(f"no user encoder {config.name!r}: choose {', '.join(USER_ENCODERS)}")
    return USER_ENCODERS[config.name](dim, config, user_embeddings or nn.Embedding(1, config.id_width))


def encode_prefixes(
    encoder: nn.Module,
    clicks_BLD: Tensor,
    clicked_BL: Tensor,
    user_ids_B: Tensor | None = None,
    *,
    sharpness: float = 0.0,
) -> Users:
    """Encode every prefix of the clicks to the users that articles are scored by.

    With `sharpness`, users of `AttentiveUser` are their clicks; users of other encoders are one embedding each.
    """
    if sharpness and isinstance(encoder, AttentiveUser):
        items_BPD, weights_BPP = encoder.weigh(clicks_BLD, clicked_BL)
        return Users(vectors_BKD=items_BPD, weights_BPK=weights_BPP, sharpness=sharpness)
    return Users(vectors_BKD=encoder(clicks_BLD, clicked_BL, user_ids_B))


def weigh_clicks(encoder: nn.Module, clicks_LD: Tensor) -> Tensor | None:
    """Attention weight of each click in the user after all clicks, weights_L; None for encoders without any."""
    if isinstance(encoder, AttentiveUser):
        scores_L: Tensor = encoder.score(clicks_LD).float().flatten()
        recency_L = encoder.score_recency(torch.arange(len(clicks_LD), device=clicks_LD.device).flip(0))
        return (scores_L if recency_L is None else scores_L + recency_L).softmax(0)
    if isinstance(encoder, SelfAttentionUser):
        items_1PD = encoder.attend(clicks_LD[None], _visible(clicks_LD.new_ones(1, len(clicks_LD)).bool()))
    elif isinstance(encoder, AdditiveUser):
        items_1PD = _with_start(encoder.start, clicks_LD[None])
    else:
        return None
    weights_P: Tensor = encoder.score(items_1PD).float().flatten().softmax(0)
    return weights_P[1:]


def _with_start(start_D: Tensor, clicks_BLD: Tensor) -> Tensor:
    """Prepend the learned start vector to the clicks: item p is the last item of prefix p."""
    start_B1D = start_D.to(clicks_BLD.dtype).expand(clicks_BLD.size(0), 1, -1)
    return torch.cat([start_B1D, clicks_BLD], 1)


def _or_unknown(user_ids_B: Tensor | None, clicks_BLD: Tensor) -> Tensor:
    if user_ids_B is None:
        return torch.full((clicks_BLD.size(0),), UNKNOWN, device=clicks_BLD.device)
    return user_ids_B.to(clicks_BLD.device)


@torch.no_grad()
def _build_gru(dim: int) -> nn.GRU:
    """A GRU initialized as a moving average of tanh(click), so that users start near their clicks."""
    gru = nn.GRU(dim, dim, batch_first=True)
    _, update, new = (slice(gate * dim, (gate + 1) * dim) for gate in range(3))
    weights = dict(gru.named_parameters())
    nn.init.eye_(weights["weight_ih_l0"][new])
    nn.init.zeros_(weights["weight_hh_l0"][new])
    nn.init.constant_(weights["bias_ih_l0"][update], UPDATE_GATE_BIAS)
    return gru


def _run_gru(gru: nn.GRU, items_BPD: Tensor, clicked_BL: Tensor, first_BD: Tensor | None = None) -> Tensor:
    """State of the GRU after each item; at padding, the state after the latest click."""
    states_BPD, _ = gru(items_BPD, None if first_BD is None else first_BD[None].contiguous())
    latest_BP = nn.functional.pad(clicked_BL.cumsum(1), (1, 0))
    users_BPD: Tensor = states_BPD.take_along_dim(latest_BP[..., None], 1)
    return users_BPD


def _visible(clicked_BL: Tensor) -> Tensor:
    """Mask of the items of each prefix; the start vector is in all, so that no row is empty."""
    is_item_BP = nn.functional.pad(clicked_BL, (1, 0), value=True)
    P = is_item_BP.size(1)
    return torch.ones(P, P, dtype=torch.bool, device=clicked_BL.device).tril() & is_item_BP[:, None, :]


def _pool_prefixes(items_BPD: Tensor, scores_BP1: Tensor, visible_BPP: Tensor) -> Tensor:
    """Sum the items of each prefix, weighted by the softmax of their scores."""
    return _weigh_prefixes(items_BPD, scores_BP1, visible_BPP) @ items_BPD


def _weigh_prefixes(
    items_BPD: Tensor, scores_BP1: Tensor, visible_BPP: Tensor, by_prefix_BPP: Tensor | None = None
) -> Tensor:
    """Softmax of the scores of the items of each prefix, to which row p of `by_prefix_BPP` is added for prefix p.

    Running sums of exp(score) are less work in theory, but no faster at 100 clicks, and they underflow where an
    early score is far below a later one.
    """
    scores_BPP = scores_BP1.float().mT
    if by_prefix_BPP is not None:
        scores_BPP = scores_BPP + by_prefix_BPP
    return scores_BPP.masked_fill(~visible_BPP, -math.inf).softmax(-1).to(items_BPD.dtype)


def _additive_score(dim: int, query_width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, query_width), nn.Tanh(), nn.Linear(query_width, 1, bias=False))
