"""Additive attention over ragged rows, without padding and in any order."""

import math

from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Pool the items of each owner, weighted by softmax(q . tanh(W x + b)) within the owner.

        items    x0 x1 x2 x3 x4
        owners    0  0  1  0  1     ->  one row for owner 0 (x0 x1 x3), one for owner 1 (x2 x4)

    An owner without items gets zeros. Before training it computes the mean.
    """

    def __init__(self, width: int, query_width: int = 200) -> None:
        super().__init__()
        self.project = nn.Linear(width, query_width)
        self.query = nn.Linear(query_width, 1, bias=False)
        nn.init.zeros_(self.query.weight)

    def draw_query(self) -> None:
        """Draw the query at random, as PyTorch initializes a linear layer."""
        self.query.reset_parameters()

    def forward(self, items: Tensor, owners: Tensor, num_owners: int, is_padding: Tensor | None = None) -> Tensor:
        """(items, width), the owner of each item, the number of owners -> (owners, width).

        Padding has weight zero; every owner with items must have one that is not padding.
        """
        scores = self.query(self.project(items).tanh()).squeeze(-1).float()
        if is_padding is not None:
            scores = scores.masked_fill(is_padding, -math.inf)
        weights = ragged_softmax(scores, owners, num_owners)
        weighted = items.float() * weights[:, None]
        return weighted.new_zeros(num_owners, items.size(1)).index_add(0, owners, weighted)


def ragged_softmax(scores: Tensor, owners: Tensor, num_owners: int) -> Tensor:
    """Softmax over the scores of each owner."""
    highest = scores.new_full((num_owners,), -math.inf).scatter_reduce(0, owners, scores.detach(), "amax")
    powers = (scores - highest[owners]).exp()
    return powers / powers.new_zeros(num_owners).index_add(0, owners, powers)[owners]
