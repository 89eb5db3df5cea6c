"""Losses from users and articles to one number; they know no model, no batch and no cache.

`next_click_loss` compares each click with articles that were shown but not clicked (Eq. auto). `in_batch_loss`
compares it with all articles of the batch, which are encoded anyway, so it costs one matrix product. Both compute
in float32 and are means over clicks; for a part of a batch, multiply them by the `Share` of the part.
Shapes: B users, L clicks, T clicks that are learned, S clicks in one list, X any shape, N negatives, C
candidates, M distinct articles, V all articles, P prefixes, K vectors of a user, D embedding width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from speedyfeed.encoding.central import dispatch
from speedyfeed.scoring import Users
from speedyfeed.training.config import TEMPERATURE, LossConfig

BIAS_RATE = 50.0
"""Learning rate of the biases of articles, as a multiple of that of embeddings, which is too small for logits."""
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
        scale = torch.tensor(-math.log(config.temperature or TEMPERATURE))
        self.log_scale = nn.Parameter(scale, requires_grad=config.learn_temperature)
        self.bias_V = nn.Parameter(torch.zeros(num_news + 1)) if config.article_bias else None
        """Bias of each article, in logits."""

    @torch.no_grad()
    def start_biases(self, num_clicks_V: Tensor) -> None:
        """Have the biases begin at a multiple of the log popularity, less its mean over articles with clicks.

        Articles without clicks begin at 0, as popular as the mean: nothing is known of them.
        """
        if self.bias_V is None or not self.config.bias_start:
            return
        is_clicked_V = num_clicks_V > 0
        logarithms_V = log_popularity(num_clicks_V)
        above_V = torch.where(is_clicked_V, logarithms_V - logarithms_V[is_clicked_V].mean(), 0.0)
        self.bias_V.copy_(self.config.bias_start * above_V)

    @torch.no_grad()
    def biases(self) -> Tensor | None:
        """Bias of each article as a part of its inner products, biases_V in host memory; None if not learned."""
        return None if self.bias_V is None else (self.bias_V / self.log_scale.exp()).cpu()

    def forward(
        self,
        users: Users,
        news_MD: Tensor,
        history_BL: Tensor,
        negatives_BLN: Tensor,
        has_own_negatives_BL: Tensor,
        ids_M: Tensor,
        log_popularity_M: Tensor,
        share: Share = WHOLE,
    ) -> Tensor:
        """Loss of `users` before each click; history and negatives are positions in `news_MD`."""
        scale = self.log_scale.exp()
        bias_M = torch.zeros_like(log_popularity_M)
        if self.bias_V is not None:
            bias_M = self.bias_V[ids_M.to(self.bias_V.device)]
        loss = scale.new_zeros(())
        if self.in_batch < 1:
            weights_BL = torch.where(has_own_negatives_BL, 1.0, self.fallback_negatives_weight) * (history_BL > 0)
            clicks_BT = _first_true(weights_BL > 0)
            negatives_BTN = negatives_BLN.take_along_dim(clicks_BT[..., None], 1)
            shown_BTC = torch.cat([history_BL.take_along_dim(clicks_BT, 1)[..., None], negatives_BTN], -1)
            scores_BTC = users.at(clicks_BT).score(dispatch(news_MD, shown_BTC))
            next_click = next_click_loss(
                scale * scores_BTC + bias_M[shown_BTC],
                weights_BL.take_along_dim(clicks_BT, 1),
                negatives_BTN > 0,
            )
            loss = loss + (1 - self.in_batch) * share.weight * next_click
        if self.in_batch > 0:
            bias_M = bias_M - (self.config.popularity_correction or 0.0) * log_popularity_M
            in_batch = in_batch_loss(users, history_BL, news_MD, bias_M, scale=scale)
            loss = loss + self.in_batch * share.clicks * in_batch
        return loss


def next_click_loss(
    logits_XC: Tensor, weights_X: Tensor | None = None, is_negative_XN: Tensor | None = None
) -> Tensor:
    """Mean cross entropy of each click, the first candidate, against its negatives (Eq. auto).

    X is any shape, such as users x clicks. Clicks may have different numbers of negatives: `is_negative_XN` is
    False at padding. Clicks of weight 0 do not count; where all have none, the loss is 0.
    """
    logits_XC = logits_XC.float()
    if is_negative_XN is not None:
        is_candidate_XC = nn.functional.pad(is_negative_XN, (1, 0), value=True)
        logits_XC = logits_XC.masked_fill(~is_candidate_XC, -math.inf)
    loss_X = -logits_XC.log_softmax(-1)[..., 0]
    return _weighted_mean(loss_X, torch.ones_like(loss_X) if weights_X is None else weights_X)


def in_batch_loss(
    users: Users,
    history_BL: Tensor,
    news_MD: Tensor,
    bias_M: Tensor | None = None,
    *,
    scale: float | Tensor = 1.0,
    max_logits: int = MAX_LOGITS,
) -> Tensor:
    """Mean cross entropy of each click against all articles of the batch; 0 where nothing was clicked.

    `users` are those before each click. `history_BL` holds positions in `news_MD`, then 0 for padding. Other
    clicks of the user and padding are not negatives. Scores are multiplied by `scale`, and `bias_M` is added:
    minus the log probability of an article being in the batch corrects the bias against popular articles (Bengio
    and Senecal, 2008).

    Clicks x articles logits may not fit in memory: they are computed for some users at a time, and again in the
    backward pass.
    """
    is_click_BL = history_BL > 0

    def total(vectors_BKD: Tensor, weights_BPK: Tensor | None, news_MD: Tensor, history_BL: Tensor) -> Tensor:
        some = Users(vectors_BKD=vectors_BKD, weights_BPK=weights_BPK, sharpness=users.sharpness)
        logits_BLM = scale * some.score_all(news_MD)
        if bias_M is not None:
            logits_BLM = logits_BLM + bias_M
        own_BM = torch.zeros(len(some), len(news_MD), dtype=torch.bool, device=news_MD.device)
        own_BM.scatter_(1, history_BL, True)
        own_BM[:, 0] = True
        user_S, position_S = (history_BL > 0).nonzero(as_tuple=True)
        target_S = history_BL[user_S, position_S]
        is_masked_SM = own_BM[user_S].scatter_(1, target_S[:, None], False)
        logits_SM = logits_BLM[user_S, position_S].masked_fill(is_masked_SM, -math.inf)
        return nn.functional.cross_entropy(logits_SM, target_S, reduction="sum")

    loss = news_MD[:0].float().sum() + users.vectors_BKD[:0].float().sum()  # zero, but connected to both
    num_clicks_B = is_click_BL.sum(1)
    order_B = num_clicks_B.argsort(descending=True)  # users with as many clicks together: little is padding
    first = 0
    while first < len(order_B) and (num_clicks := int(num_clicks_B[order_B[first]])):
        rows = order_B[first : first + max(1, max_logits // (len(news_MD) * num_clicks))]
        part = users.take(rows).cut(num_clicks)
        loss = loss + checkpoint(
            total,
            part.vectors_BKD,
            part.weights_BPK,
            news_MD,
            history_BL[rows, :num_clicks],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        first += len(rows)
    return loss / max(1, int(is_click_BL.sum()))


def _first_true(is_true_BL: Tensor) -> Tensor:
    """Positions of the true values of each row, then of false ones, as many as the row with most has."""
    num_true = int(is_true_BL.sum(1).amax()) if is_true_BL.numel() else 0
    return is_true_BL.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :num_true]


def log_popularity(num_clicks_V: Tensor) -> Tensor:
    """Logarithm of the fraction of clicks of each article, with one click added to every article."""
    counts_V = num_clicks_V.float() + 1
    return counts_V.log() - counts_V.sum().log()


def _weighted_mean(loss_X: Tensor, weights_X: Tensor) -> Tensor:
    """Weighted mean; 0 where all weights are 0."""
    total = weights_X.sum()
    return (loss_X * weights_X).sum() / total.clamp(min=torch.finfo(total.dtype).tiny)
