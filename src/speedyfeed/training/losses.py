"""Losses from embeddings to one number; they know no model, no batch and no cache.

`next_click_loss` compares each click with articles that were shown but not clicked (Eq. auto). `in_batch_loss`
compares it with all articles of the batch, which are encoded anyway, so it costs one matrix product. Both compute
in float32 and are means over clicks; for a part of a batch, multiply them by the `Share` of the part.
Shapes: B users, L clicks, N negatives, M distinct articles, S clicks of all users, V all articles, D embedding
width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from speedyfeed.encoding.central import dispatch
from speedyfeed.training.config import LossConfig

BIAS_SCALE = 50.0
"""Logits per unit of an article's bias: learning rates of embeddings are far too small for logits."""
MAX_LOGITS = 2**22
"""Maximum number of logits of the in-batch loss in memory; three such arrays take 50 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Fraction of a batch that a part of its users is: losses of the parts times their shares add up."""

    weight: float = 1.0
    """Fraction of the summed weight of the clicks."""
    clicks: float = 1.0
    """Fraction of the number of clicks."""


WHOLE = Share()


class ClickLoss(nn.Module):
    """Weighted sum of both losses as `LossConfig` sets it; its parameters are the temperature and the biases."""

    def __init__(self, config: LossConfig, fallback_negatives_weight: float, *, num_news: int) -> None:
        """`fallback_negatives_weight` is that of the config, or 1 in a log without impressions."""
        super().__init__()
        self.config = config
        self.fallback_negatives_weight = fallback_negatives_weight
        self.in_batch = config.in_batch or 0.0
        self.uses_fallback_negatives = fallback_negatives_weight > 0 or self.in_batch > 0
        """Whether clicks without negatives of their own are learned from."""
        scale = torch.tensor(-math.log(config.temperature))
        self.log_scale = nn.Parameter(scale, requires_grad=config.learn_temperature)
        self.bias_V = nn.Parameter(torch.zeros(num_news + 1)) if config.article_bias else None

    @torch.no_grad()
    def biases(self) -> Tensor | None:
        """Bias of each article as a part of its inner products, biases_V in host memory; None if not learned."""
        return None if self.bias_V is None else (BIAS_SCALE * self.bias_V / self.log_scale.exp()).cpu()

    def forward(
        self,
        users_BLD: Tensor,
        news_MD: Tensor,
        history_BL: Tensor,
        negatives_BLN: Tensor,
        has_own_negatives_BL: Tensor,
        ids_M: Tensor,
        log_popularity_M: Tensor,
        share: Share = WHOLE,
    ) -> Tensor:
        """Loss of users before each click, `users_BLD`; history and negatives are positions in `news_MD`."""
        config = self.config
        users_BLD = users_BLD.float() * self.log_scale.exp()
        if self.bias_V is not None:  # one more dimension, in which every user is 1
            bias_M = BIAS_SCALE * self.bias_V[ids_M.to(self.bias_V.device)]
            news_MD = torch.cat([news_MD, bias_M[:, None].to(news_MD)], 1)
            users_BLD = nn.functional.pad(users_BLD, (0, 1), value=1.0)
        loss = users_BLD.new_zeros(())
        if self.in_batch < 1:
            weights_BL = torch.where(has_own_negatives_BL, 1.0, self.fallback_negatives_weight) * (history_BL > 0)
            learned_BL = weights_BL > 0
            negatives_SN = negatives_BLN[learned_BL]
            next_click = next_click_loss(
                users_BLD[learned_BL],
                dispatch(news_MD, history_BL[learned_BL]),
                dispatch(news_MD, negatives_SN),
                learned_BL[learned_BL],
                weights_BL[learned_BL],
                negatives_SN > 0,
            )
            loss = loss + (1 - self.in_batch) * share.weight * next_click
        if self.in_batch > 0:
            correction_M = -config.popularity_correction * log_popularity_M
            in_batch = in_batch_loss(users_BLD, history_BL, news_MD, correction_M)
            loss = loss + self.in_batch * share.clicks * in_batch
        return loss


def next_click_loss(
    users_XD: Tensor,
    clicks_XD: Tensor,
    negatives_XND: Tensor,
    clicked_X: Tensor,
    weights_X: Tensor | None = None,
    is_negative_XN: Tensor | None = None,
) -> Tensor:
    """Mean cross entropy of each click against its negatives (Eq. auto); 0 where nothing was clicked.

    X is any shape, such as users x clicks; `users_XD` are the users just before each click. Clicks may have
    different numbers of negatives: `is_negative_XN` is False at padding.
    """
    with torch.autocast(users_XD.device.type, enabled=False):
        users_XD, clicks_XD, negatives_XND = users_XD.float(), clicks_XD.float(), negatives_XND.float()
        click_X1 = torch.einsum("...d,...d->...", users_XD, clicks_XD)[..., None]
        negatives_XN = torch.einsum("...d,...nd->...n", users_XD, negatives_XND)
        if is_negative_XN is not None:
            negatives_XN = negatives_XN.masked_fill(~is_negative_XN, -math.inf)
        loss_X = -torch.cat([click_X1, negatives_XN], -1).log_softmax(-1)[..., 0]
        weights_X = clicked_X.float() if weights_X is None else weights_X * clicked_X
        return _weighted_mean(loss_X, weights_X)


def in_batch_loss(
    users_BLD: Tensor,
    history_BL: Tensor,
    news_MD: Tensor,
    bias_M: Tensor | None = None,
    *,
    max_logits: int = MAX_LOGITS,
) -> Tensor:
    """Mean cross entropy of each click against all articles of the batch; 0 where nothing was clicked.

    `history_BL` holds positions in `news_MD`, 0 for padding. Other clicks of the user and padding are not
    negatives. `bias_M` is added to the logits: minus the log probability of an article being in the batch corrects
    the bias against popular articles (Bengio and Senecal, 2008).

    Clicks x articles logits may not fit in memory: they are computed for some clicks at a time, and again in the
    backward pass.
    """
    own_BM = torch.zeros(len(history_BL), len(news_MD), dtype=torch.bool, device=news_MD.device)
    own_BM.scatter_(1, history_BL, True)
    own_BM[:, 0] = True
    user_S, position_S = history_BL.nonzero(as_tuple=True)
    target_S = history_BL[user_S, position_S]
    users_SD = users_BLD[user_S, position_S]

    def total(users_SD: Tensor, news_MD: Tensor, user_S: Tensor, target_S: Tensor) -> Tensor:
        with torch.autocast(users_SD.device.type, enabled=False):
            logits_SM = users_SD.float() @ news_MD.float().mT
            if bias_M is not None:
                logits_SM = logits_SM + bias_M
            is_masked_SM = own_BM[user_S].scatter_(1, target_S[:, None], False)
            logits_SM = logits_SM.masked_fill_(is_masked_SM, -math.inf)
            return nn.functional.cross_entropy(logits_SM, target_S, reduction="sum")

    loss = users_SD[:0].float().sum()  # zero, but connected to the users for the backward pass
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
    """Logarithm of the fraction of clicks of each article, with one click added to every article."""
    counts_V = num_clicks_V.float() + 1
    return counts_V.log() - counts_V.sum().log()


def _weighted_mean(loss_X: Tensor, weights_X: Tensor) -> Tensor:
    """Weighted mean; 0 where all weights are 0."""
    total = weights_X.sum()
    return (loss_X * weights_X).sum() / total.clamp(min=torch.finfo(total.dtype).tiny)
