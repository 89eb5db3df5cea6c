"""User encoders: clicks to one user embedding per prefix, all prefixes in one pass.

    clicks       c0   c1   c2  (padding)
    row 0        what is known before any click: a learned start vector stands there
    row 1        c0
    row 2        c0 c1
    row 3        c0 c1 c2
    row 4        c0 c1 c2         after the last click the row stays, so the last row is the user of today

Row t predicts click t and is all the model knows of a user with t clicks. Each click is scored or projected once
and shared by every prefix; sums over prefixes cost clicks squared, small beside the news encoder. Shapes: P is
the number of prefixes, L + 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.baselines import UserQuery
from speedyfeed.models.id_maps import UNKNOWN

KEEP = 2.0
"""What a GRU's keep gate begins with: sigmoid(2) of the state stays at each click."""


class UserEncoder(Protocol):
    """Clicks in, one user embedding per prefix out."""

    def __call__(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None, /) -> Tensor:
        """users_BPD; `clicked_BL` is False at padding, which comes after the clicks.

        `user_ids_B` are their ids, for encoders that use them; 0, or None for all, is an unknown user.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class UserConfig:
    """What turns clicks into a user."""

    name: str = "attentive"
    """User encoder: attentive, self-attention (NRMS), additive (NAML), gru, lstur-ini, lstur-con or npa."""
    heads: int = 8
    """Attention heads of `self-attention`; they must divide the width of a news embedding."""
    query_width: int = 200
    """Hidden width of the attention in `self-attention`, `additive` and `npa`."""
    id_width: int = 64
    """Width of what is learned about each user of the train split (lstur-ini, lstur-con, npa)."""
    id_dropout: float = 0.5
    """Share of users that training takes for unknown users, so that it learns to serve users it never met."""

    def __post_init__(self) -> None:
        if not 0 <= self.id_dropout <= 1:
            raise InputError(f"id_dropout {self.id_dropout}: expected a share, 0 to 1")

    @property
    def uses_user_ids(self) -> bool:
        """Whether the user encoder asks who the user is."""
        return self.name in ("lstur-ini", "lstur-con", "npa")


class AttentiveUser(nn.Module):
    """Attentive YouTube-DNN: the clicks' sum, weighted by softmax(q . x), beside what every user starts from.

    Untrained, both learned vectors are zero and a user is the mean of the clicks.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.score = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        items_BPD = nn.functional.pad(clicks_BLD, (0, 0, 1, 0))
        visible_BPP = _visible(clicked_BL)
        # The zeros in front stand in for clicks where there is none, and for nothing else.
        visible_BPP[:, :, 0] = nn.functional.pad(clicked_BL.cumsum(1) == 0, (1, 0), value=True)
        return self.start.to(items_BPD.dtype) + _pool_prefixes(items_BPD, self.score(items_BPD), visible_BPP)


class AdditiveUser(nn.Module):
    """The clicks' sum, weighted by softmax(q . tanh(W x + b)), as in NAML (Wu et al., 2019)."""

    def __init__(self, *, dim: int, query_width: int = 200) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.score = _additive_score(dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        items_BPD = _with_start(self.start, clicks_BLD)
        return _pool_prefixes(items_BPD, self.score(items_BPD), _visible(clicked_BL))


class SelfAttentionUser(nn.Module):
    """Every click attends to itself and earlier ones, then additive attention: NRMS (Wu et al., 2019), causal.

    NRMS lets clicks see later ones; then no prefix could share its work with another.
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
        with torch.no_grad():  # a user begins among the news they clicked, not somewhere else
            nn.init.eye_(self.project.weight[2 * dim :])
            nn.init.zeros_(self.project.bias[2 * dim :])
        self.score = _additive_score(dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        visible_BPP = _visible(clicked_BL)
        items_BPD = self.attend(clicks_BLD, visible_BPP)
        return _pool_prefixes(items_BPD, self.score(items_BPD), visible_BPP)

    def attend(self, clicks_BLD: Tensor, visible_BPP: Tensor) -> Tensor:
        """items_BPD: what the start and each click become when they have seen what came before."""
        items_BPD = _with_start(self.start, clicks_BLD)
        query, key, value = self.project(items_BPD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen_BAPD = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible_BPP[:, None])
        return seen_BAPD.transpose(1, 2).flatten(2)


class GRUUser(nn.Module):
    """The state of a GRU after each click: the short-term user of LSTUR (An et al., 2019)."""

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.gru = _build_gru(dim)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        return _run_gru(self.gru, _with_start(self.start, clicks_BLD), clicked_BL)


class LSTURUser(nn.Module):
    """A GRU over the clicks and what is known of the user: LSTUR (An et al., 2019).

    The user's long-term part is the GRU's first state (`ini`), or stands beside its last one (`con`).
    """

    def __init__(self, *, dim: int, user_embeddings: nn.Embedding, is_con: bool) -> None:
        super().__init__()
        self.is_con = is_con
        self.start = nn.Parameter(torch.zeros(dim))
        self.gru = _build_gru(dim)
        self.user_embeddings = user_embeddings
        self.long = nn.Linear(user_embeddings.embedding_dim, dim)
        self.join = nn.Linear(2 * dim, dim) if is_con else None
        if self.join is not None:
            with torch.no_grad():
                nn.init.eye_(self.join.weight[:, :dim])

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        long_BD = self.long(self.user_embeddings(_or_unknown(user_ids_B, clicks_BLD)))
        items_BPD = _with_start(self.start, clicks_BLD)
        if self.join is None:
            return _run_gru(self.gru, items_BPD, clicked_BL, long_BD)
        short_BPD = _run_gru(self.gru, items_BPD, clicked_BL)
        users_BPD: Tensor = self.join(torch.cat([short_BPD, long_BD[:, None].expand_as(short_BPD)], -1))
        return users_BPD


class NPAUser(nn.Module):
    """The clicks' sum, weighted by what the user asks of them: NPA (Wu et al., 2019)."""

    def __init__(self, *, dim: int, user_embeddings: nn.Embedding, query_width: int = 200) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.ask = UserQuery(user_embeddings, dim, query_width)

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """users_BPD"""
        items_BPD = _with_start(self.start, clicks_BLD)
        scores_BP = self.ask(items_BPD, _or_unknown(user_ids_B, clicks_BLD))
        return _pool_prefixes(items_BPD, scores_BP[..., None], _visible(clicked_BL))


USER_ENCODERS: dict[str, Callable[[int, UserConfig, nn.Embedding], nn.Module]] = {
    "attentive": lambda dim, config, user_embeddings: AttentiveUser(dim=dim),
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
"""User encoders by name: (width of news embeddings, settings, embeddings of users) -> module."""


def build_user_encoder(config: UserConfig, *, dim: int, user_embeddings: nn.Embedding | None = None) -> nn.Module:
    """The user encoder that `config` names, for news embeddings of that width; without `users` it knows none."""
    if config.name not in USER_ENCODERS:
        raise InputError(f"no user encoder {config.name!r}: choose {', '.join(USER_ENCODERS)}")
    return USER_ENCODERS[config.name](dim, config, user_embeddings or nn.Embedding(1, config.id_width))


def weigh_clicks(encoder: nn.Module, clicks_LD: Tensor) -> Tensor | None:
    """weights_L: each click's share of the user after all of them; None where an encoder has no such shares."""
    if isinstance(encoder, AttentiveUser):
        weights_L: Tensor = encoder.score(clicks_LD).float().flatten().softmax(0)
        return weights_L
    if isinstance(encoder, SelfAttentionUser):
        items_1PD = encoder.attend(clicks_LD[None], _visible(clicks_LD.new_ones(1, len(clicks_LD)).bool()))
    elif isinstance(encoder, AdditiveUser):
        items_1PD = _with_start(encoder.start, clicks_LD[None])
    else:
        return None
    weights_P: Tensor = encoder.score(items_1PD).float().flatten().softmax(0)
    return weights_P[1:]


def _with_start(start_D: Tensor, clicks_BLD: Tensor) -> Tensor:
    """The learned start vector, then the clicks: item p is what prefix p has more than prefix p - 1."""
    start_B1D = start_D.to(clicks_BLD.dtype).expand(clicks_BLD.size(0), 1, -1)
    return torch.cat([start_B1D, clicks_BLD], 1)


def _or_unknown(user_ids_B: Tensor | None, clicks_BLD: Tensor) -> Tensor:
    if user_ids_B is None:
        return torch.full((clicks_BLD.size(0),), UNKNOWN, device=clicks_BLD.device)
    return user_ids_B.to(clicks_BLD.device)


@torch.no_grad()
def _build_gru(dim: int) -> nn.GRU:
    """A GRU that begins as a moving average of tanh(click) over some clicks, so that users begin near them."""
    gru = nn.GRU(dim, dim, batch_first=True)
    _, keep, new = (slice(gate * dim, (gate + 1) * dim) for gate in range(3))
    weights = dict(gru.named_parameters())
    nn.init.eye_(weights["weight_ih_l0"][new])
    nn.init.zeros_(weights["weight_hh_l0"][new])
    nn.init.constant_(weights["bias_ih_l0"][keep], KEEP)
    return gru


def _run_gru(gru: nn.GRU, items_BPD: Tensor, clicked_BL: Tensor, first_BD: Tensor | None = None) -> Tensor:
    """The state after each item; padding would move it on, so every row takes that at its latest click."""
    states_BPD, _ = gru(items_BPD, None if first_BD is None else first_BD[None].contiguous())
    latest_BP = nn.functional.pad(clicked_BL.cumsum(1), (1, 0))
    users_BPD: Tensor = states_BPD.take_along_dim(latest_BP[..., None], 1)
    return users_BPD


def _visible(clicked_BL: Tensor) -> Tensor:
    """Which items each prefix has. The start vector is in all of them: no row is without anything to attend to."""
    is_item_BP = nn.functional.pad(clicked_BL, (1, 0), value=True)
    P = is_item_BP.size(1)
    return torch.ones(P, P, dtype=torch.bool, device=clicked_BL.device).tril() & is_item_BP[:, None, :]


def _pool_prefixes(items_BPD: Tensor, scores_BP1: Tensor, visible_BPP: Tensor) -> Tensor:
    """Items of each prefix, weighted by the softmax of their scores among them.

    Running sums of exp(score) would do with less work in theory; they are no faster at 100 clicks, and wrong
    where an early score is far below a later one.
    """
    scores_BPP = scores_BP1.float().mT.masked_fill(~visible_BPP, -math.inf)
    return scores_BPP.softmax(-1).to(items_BPD.dtype) @ items_BPD


def _additive_score(dim: int, query_width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, query_width), nn.Tanh(), nn.Linear(query_width, 1, bias=False))
