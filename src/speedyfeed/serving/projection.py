"""Linear projection of embeddings to a map with two axes, the same for articles, clicks and users.

The axes are the two directions in which topics differ most: the principal components of the mean embeddings of the
categories if there are more than three, and of all articles otherwise. Because the projection is linear, a user
whose embedding is a weighted sum of clicks appears among these clicks.

Shapes: V articles, N rows to project, D embedding width.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

FRAME = 0.995
"""Fraction of the articles that fit between -1 and 1 along each axis; the others are clipped to the edge."""


class Projection:
    """Maps embeddings to positions (x, y) between -1 and 1."""

    def __init__(self, centre_D: NDArray[np.float32], axes_D2: NDArray[np.float32]) -> None:
        self._centre_D = centre_D
        self._axes_D2 = axes_D2

    @classmethod
    def fit(cls, embeddings_VD: NDArray[np.float32], categories: Sequence[str]) -> Self:
        """Choose centre, axes and scale for these articles and their categories."""
        width = embeddings_VD.shape[1]
        if len(embeddings_VD) < 3:
            return cls(np.zeros(width, np.float32), np.eye(width, 2, dtype=np.float32))
        centre_D = embeddings_VD.mean(0)
        names, code = np.unique(np.asarray(categories), return_inverse=True)
        points = embeddings_VD
        if len(names) > 3:
            points = np.stack([embeddings_VD[code == kind].mean(0) for kind in range(len(names))])
        offsets = points - points.mean(0)
        _, vectors_DD = np.linalg.eigh(offsets.T @ offsets)
        axes_D2 = np.ascontiguousarray(vectors_DD[:, :-3:-1])
        axes_D2 = axes_D2 * np.sign(axes_D2[np.abs(axes_D2).argmax(0), [0, 1]])  # fixes the sign of each axis
        extent = np.quantile(np.abs((embeddings_VD - centre_D) @ axes_D2), FRAME, axis=0)
        return cls(centre_D, (axes_D2 / np.maximum(extent, 1e-12)).astype(np.float32))

    def project(self, embeddings_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map positions (N, 2), clipped to -1 and 1."""
        return np.clip((embeddings_ND - self._centre_D) @ self._axes_D2, -1, 1)
