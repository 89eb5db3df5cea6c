"""Linear projection of embeddings to a few axes, the same for articles, clicks and users: two make a map.

The axes are the directions in which topics differ most: the principal components of the mean embeddings of the
categories if there are more than three, and of all articles otherwise. Because the projection is linear, a user
whose embedding is a weighted sum of clicks appears among these clicks.

Shapes: V articles, N rows to project, D embedding width, X axes.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

FRAME = 0.995
"""Fraction of the articles that fit between -1 and 1 along each axis; the others are clipped to the edge."""


class Projection:
    """Maps embeddings to positions whose coordinates are between -1 and 1."""

    def __init__(self, centre_D: NDArray[np.float32], axes_DX: NDArray[np.float32]) -> None:
        self._centre_D = centre_D
        self._axes_DX = axes_DX

    @classmethod
    def fit(cls, embeddings_VD: NDArray[np.float32], categories: Sequence[str] = (), num_axes: int = 2) -> Self:
        """Choose centre, axes and scale for these articles and their categories; without these, for articles."""
        width = embeddings_VD.shape[1]
        if len(embeddings_VD) < 3:
            return cls(np.zeros(width, np.float32), np.eye(width, num_axes, dtype=np.float32))
        centre_D = embeddings_VD.mean(0)
        names, code = np.unique(np.asarray(categories), return_inverse=True)
        points = embeddings_VD
        if len(names) > 3:
            points = np.stack([embeddings_VD[code == kind].mean(0) for kind in range(len(names))])
        offsets = points - points.mean(0)
        _, vectors_DD = np.linalg.eigh(offsets.T @ offsets)
        axes_DX = np.ascontiguousarray(vectors_DD[:, : -1 - num_axes : -1])
        largest = np.abs(axes_DX).argmax(0)
        axes_DX = axes_DX * np.sign(axes_DX[largest, np.arange(axes_DX.shape[1])])  # fixes the sign of each axis
        extent = np.quantile(np.abs((embeddings_VD - centre_D) @ axes_DX), FRAME, axis=0)
        return cls(centre_D, (axes_DX / np.maximum(extent, 1e-12)).astype(np.float32))

    def project(self, embeddings_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Positions (N, X), clipped to -1 and 1."""
        return np.clip((embeddings_ND - self._centre_D) @ self._axes_DX, -1, 1)
