"""Losses: embeddings in, one number out. They know no model, no batch and no cache.

`next_click_loss` tells each click from news shown but not clicked (Eq. auto). `in_batch_loss` tells it from
all news of the batch, which are encoded anyway, so it costs one matrix product. Both compute in float32 whatever
the precision around them, and are means over clicks: of a part of a batch, weigh each by the part's `Share`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from speedyfeed.encoding.central import dispatch
from speedyfeed.errors import InputError

MAX_LOGITS = 2**22
"""Logits of the in-batch loss held at a time; three arrays of that size, 50 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """What is learned from a click."""

    fallback_negatives_weight: float = 0.05
    """Weight of a click that has no impression of its own and has fallback negatives from its user's first one,
    beside 1 for the others; 0 leaves it to the history. Where no click has an impression, all weigh 1."""
    in_batch: float = 0.0
    """Share of the in-batch loss: 0 is the next-click loss alone, 1 the in-batch loss alone."""
    popularity_correction: float = 1.0
    """How far the in-batch loss makes up for popular news being in more batches: 0 not at all, 1 fully."""
    temperature: float = 0.05
    """What inner products are divided by."""
    learn_temperature: bool = False
    """Learn it, from there on."""

    def __post_init__(self) -> None:
        for name in ("fallback_negatives_weight", "popularity_correction"):
            value = getattr(self, name)
            if not value >= 0:
                raise InputError(f"{name} {value}: expected 0 or more")
        if not 0 <= self.in_batch <= 1:
            raise InputError(f"in_batch {self.in_batch}: expected a share, 0 to 1")
        if not self.temperature > 0:
            raise InputError(f"temperature {self.temperature}: expected more than 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What part of a batch some of its users are: losses of all parts, times their shares, add up to its own."""

    weight: float = 1.0
    """Of what its clicks weigh."""
    clicks: float = 1.0
    """Of its clicks."""


WHOLE = Share()


class ClickLoss(nn.Module):
    """Both losses together, as `LossConfig` says. Learns the temperature, and nothing else."""

    def __init__(self, config: LossConfig, fallback_negatives_weight: float) -> None:
        """`fallback_negatives_weight` is that of the config, unless no click has an impression."""
        super().__init__()
        self.config = config
        self.fallback_negatives_weight = fallback_negatives_weight
        self.uses_fallback_negatives = fallback_negatives_weight > 0 or config.in_batch > 0
        """Or only from clicks that have negatives of their own."""
        scale = torch.tensor(-math.log(config.temperature))
        self.log_scale = nn.Parameter(scale, requires_grad=config.learn_temperature)

    def forward(
        self,
        users_BLD: Tensor,
        news_MD: Tensor,
        history_BL: Tensor,
        negatives_BLN: Tensor,
        has_own_negatives_BL: Tensor,
        log_popularity_M: Tensor,
        share: Share = WHOLE,
    ) -> Tensor:
        """`users_BLD` are the users before each click; history and negatives are positions in `news_MD`."""
        config = self.config
        users_BLD = users_BLD.float() * self.log_scale.exp()
        loss = users_BLD.new_zeros(())
        if config.in_batch < 1:
            weights_BL = torch.where(has_own_negatives_BL, 1.0, self.fallback_negatives_weight)
            clicks_BLD, negatives_BLND = dispatch(news_MD, history_BL), dispatch(news_MD, negatives_BLN)
            next_click = next_click_loss(users_BLD, clicks_BLD, negatives_BLND, history_BL > 0, weights_BL)
            loss = loss + (1 - config.in_batch) * share.weight * next_click
        if config.in_batch > 0:
            bias_M = -config.popularity_correction * log_popularity_M
            loss = loss + config.in_batch * share.clicks * in_batch_loss(users_BLD, history_BL, news_MD, bias_M)
        return loss


def next_click_loss(
    users_BLD: Tensor,
    clicks_BLD: Tensor,
    negatives_BLND: Tensor,
    clicked_BL: Tensor,
    weights_BL: Tensor | None = None,
) -> Tensor:
    """Mean cross entropy of each click against its negatives (Eq. auto); 0 where nothing was clicked.

    `users_BLD[:, t]` is the user before click t: rows 0 to L - 1 of what a user encoder gives.
    """
    with torch.autocast(users_BLD.device.type, enabled=False):
        users_BLD, clicks_BLD, negatives_BLND = users_BLD.float(), clicks_BLD.float(), negatives_BLND.float()
        click_BL1 = torch.einsum("bld,bld->bl", users_BLD, clicks_BLD)[..., None]
        negatives_BLN = torch.einsum("bld,blnd->bln", users_BLD, negatives_BLND)
        loss_BL = -torch.cat([click_BL1, negatives_BLN], -1).log_softmax(-1)[..., 0]
        weights_BL = clicked_BL.float() if weights_BL is None else weights_BL * clicked_BL
        return _weighted_mean(loss_BL, weights_BL)


def in_batch_loss(
    users_BLD: Tensor,
    history_BL: Tensor,
    news_MD: Tensor,
    bias_M: Tensor | None = None,
    *,
    max_logits: int = MAX_LOGITS,
) -> Tensor:
    """Mean cross entropy of each click against all news of the batch; 0 where nothing was clicked.

    `history_BL` are positions in `news_MD`, 0 for padding. A user's other clicks, earlier and later, are no
    negatives, nor is the padding. `bias_M` is added to the logits: minus the logarithm of a news' chance to be in
    the batch makes up for it (Bengio and Senecal, 2008), else popular news are learned as disliked.

    Clicks x news logits may not fit in memory: they are made some clicks at a time, and again in the backward
    pass.
    """
    own_BM = torch.zeros(len(history_BL), len(news_MD), dtype=torch.bool, device=news_MD.device)
    own_BM.scatter_(1, history_BL, True)
    own_BM[:, 0] = True
    user_S, place_S = history_BL.nonzero(as_tuple=True)
    target_S = history_BL[user_S, place_S]
    users_SD = users_BLD[user_S, place_S]

    def total(users_SD: Tensor, news_MD: Tensor, user_S: Tensor, target_S: Tensor) -> Tensor:
        with torch.autocast(users_SD.device.type, enabled=False):
            logits_SM = users_SD.float() @ news_MD.float().mT
            if bias_M is not None:
                logits_SM = logits_SM + bias_M
            is_masked_SM = own_BM[user_S].scatter_(1, target_S[:, None], False)
            logits_SM = logits_SM.masked_fill_(is_masked_SM, -math.inf)
            return nn.functional.cross_entropy(logits_SM, target_S, reduction="sum")

    loss = users_SD[:0].float().sum()  # zero, and a backward pass leads from it to the users
    size = max(1, max_logits // len(news_MD))
    for first in range(0, len(target_S), size):
        part = slice(first, first + size)
        loss = loss + checkpoint(
            total,
            users_SD[part],
            news_MD,
            user_S[part],
            target_S[part],
            use_reentrant=False,
            preserve_rng_state=False,
        )
    return loss / max(1, len(target_S))


def log_popularity(num_clicks_V: Tensor) -> Tensor:
    """Logarithm of each news' share of all clicks, every news counted once more than it was clicked."""
    counts_V = num_clicks_V.float() + 1
    return counts_V.log() - counts_V.sum().log()


def _weighted_mean(loss_BL: Tensor, weights_BL: Tensor) -> Tensor:
    """0 where all weights are."""
    total = weights_BL.sum()
    return (loss_BL * weights_BL).sum() / total.clamp(min=torch.finfo(total.dtype).tiny)
