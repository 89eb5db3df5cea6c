"""Scores of articles for users: an inner product, or a soft maximum over the clicks of a user.

    score(user, article) = log(sum over vectors of weight * exp(sharpness * vector . article)) / sharpness

A user with one vector is scored by the inner product. With several, the weights of which sum to 1, one vector that
is close to the article is enough for a high score: a user of sports and food is close to both, and the mean of
both to neither. As the sharpness goes to 0, the score becomes the inner product with the weighted mean.

Shapes: B users, P prefixes of their histories, T of these prefixes, K vectors, C candidates, M articles, D
embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

OVERSAMPLE = 5
"""Articles retrieved by the mean of a user's vectors, for each one of the best by score."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Users:
    """Users after each prefix of their clicks, as vectors that articles are scored by."""

    vectors_BKD: Tensor
    """Vectors of each user: one per prefix, or, with weights, those that all prefixes share."""
    weights_BPK: Tensor | None = None
    """Weight of each vector in each prefix, in rows that sum to 1; None if prefix p has vector p alone."""
    sharpness: float = 0.0
    """How much the closest vectors count; with several vectors, above 0."""

    @classmethod
    def single(cls, vectors_BD: NDArray[np.float32]) -> "Users":
        """Users of one prefix and one vector each."""
        return cls(vectors_BKD=torch.from_numpy(vectors_BD)[:, None])

    def __len__(self) -> int:
        return len(self.vectors_BKD)

    @property
    def means_BPD(self) -> Tensor:
        """One vector for each prefix: the weighted mean of its vectors."""
        return self.vectors_BKD if self.weights_BPK is None else self.weights_BPK @ self.vectors_BKD

    def take(self, rows: slice | Tensor) -> "Users":
        """Some of the users."""
        if self.weights_BPK is None:
            return replace(self, vectors_BKD=self.vectors_BKD[rows])
        return replace(self, vectors_BKD=self.vectors_BKD[rows], weights_BPK=self.weights_BPK[rows])

    def prefixes(self, part: slice) -> "Users":
        """Some of the prefixes, the same ones of each user."""
        if self.weights_BPK is None:
            return replace(self, vectors_BKD=self.vectors_BKD[:, part])
        return replace(self, weights_BPK=self.weights_BPK[:, part])

    def at(self, prefixes_BT: Tensor) -> "Users":
        """T prefixes of each user, chosen one by one."""
        if self.weights_BPK is None:
            return replace(self, vectors_BKD=self.vectors_BKD.take_along_dim(prefixes_BT[..., None], 1))
        return replace(self, weights_BPK=self.weights_BPK.take_along_dim(prefixes_BT[..., None], 1))

    def cut(self, num: int) -> "Users":
        """The first `num` prefixes, of users whose other vectors have no weight in them."""
        if self.weights_BPK is None:
            return replace(self, vectors_BKD=self.vectors_BKD[:, :num])
        return replace(self, vectors_BKD=self.vectors_BKD[:, :num], weights_BPK=self.weights_BPK[:, :num, :num])

    def without_unused(self) -> "Users":
        """Users without the vectors that have no weight in any prefix of any of them."""
        if self.weights_BPK is None:
            return self
        is_used_K = (self.weights_BPK > 0).flatten(0, 1).any(0)
        return replace(
            self, vectors_BKD=self.vectors_BKD[:, is_used_K], weights_BPK=self.weights_BPK[..., is_used_K]
        )

    def with_constant(self) -> "Users":
        """Users in one more dimension, in which all are 1: it adds a number of the article to every score."""
        return replace(self, vectors_BKD=nn.functional.pad(self.vectors_BKD, (0, 1), value=1.0))

    def to_host(self) -> "Users":
        """Users in host memory, in float32."""
        weights_BPK = None if self.weights_BPK is None else self.weights_BPK.float().cpu()
        return replace(self, vectors_BKD=self.vectors_BKD.float().cpu(), weights_BPK=weights_BPK)

    def score(self, news_BPCD: Tensor) -> Tensor:
        """Scores of the candidates of each prefix, scores_BPC in float32."""
        with torch.autocast(news_BPCD.device.type, enabled=False):
            vectors_BKD, news_BPCD = self.vectors_BKD.float(), news_BPCD.float()
            if self.weights_BPK is None:
                return torch.einsum("bpd,bpcd->bpc", vectors_BKD, news_BPCD)
            products_BPCK = torch.einsum("bkd,bpcd->bpck", vectors_BKD, news_BPCD)
            highest_BPC1 = products_BPCK.detach().amax(-1, keepdim=True)
            raised_BPCK = (self.sharpness * (products_BPCK - highest_BPC1)).exp()
            summed_BPC = (raised_BPCK @ self.weights_BPK.float()[..., None]).squeeze(-1)
            return _log(summed_BPC) / self.sharpness + highest_BPC1.squeeze(-1)

    def score_all(self, news_MD: Tensor) -> Tensor:
        """Scores of the same articles for every prefix, scores_BPM in float32."""
        with torch.autocast(news_MD.device.type, enabled=False):
            products_BKM = self.vectors_BKD.float() @ news_MD.float().mT
            if self.weights_BPK is None:
                return products_BKM
            highest_B1M = products_BKM.detach().amax(1, keepdim=True)
            raised_BKM = (self.sharpness * (products_BKM - highest_B1M)).exp()
            return _log(self.weights_BPK.float() @ raised_BKM) / self.sharpness + highest_B1M


def concatenate(parts: Sequence[Users]) -> Users:
    """Users of several groups, one after another; groups with fewer vectors are padded with weight 0."""
    num_vectors = max(part.vectors_BKD.size(1) for part in parts)

    def padded(array: Tensor, dim: int) -> Tensor:
        missing = num_vectors - array.size(dim)
        return nn.functional.pad(array, (0, 0) * (array.ndim - 1 - dim) + (0, missing))

    weights = [part.weights_BPK for part in parts]
    if any(weight is None for weight in weights):
        return replace(parts[0], vectors_BKD=torch.cat([part.vectors_BKD for part in parts]))
    return replace(
        parts[0],
        vectors_BKD=torch.cat([padded(part.vectors_BKD, 1) for part in parts]),
        weights_BPK=torch.cat([padded(weight, 2) for weight in weights if weight is not None]),
    )


def _log(summed: Tensor) -> Tensor:
    """Logarithm of sums of products with weights, which may have underflowed to 0."""
    return summed.clamp(min=torch.finfo(summed.dtype).tiny).log()
