"""A map of all news: embeddings to two coordinates, the same for news, clicks and users.

The axes are the two directions in which topics differ most: the principal components of the categories' means
where there are categories enough, of all news otherwise. It is linear, so a user, who is a sum of clicks, lies
among them.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

FRAME = 0.995
"""Share of the news that the square from -1 to 1 holds along each axis."""


class Projection:
    """Embeddings in, places (x, y) out."""

    def __init__(self, centre_D: NDArray[np.float32], axes_D2: NDArray[np.float32]) -> None:
        self._centre_D = centre_D
        self._axes_D2 = axes_D2

    @classmethod
    def fit(cls, embeddings_VD: NDArray[np.float32], categories: Sequence[str]) -> Self:
        """A map on which these news spread well."""
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
        axes_D2 = axes_D2 * np.sign(axes_D2[np.abs(axes_D2).argmax(0), [0, 1]])  # the same way round every time
        spread = np.quantile(np.abs((embeddings_VD - centre_D) @ axes_D2), FRAME, axis=0)
        return cls(centre_D, (axes_D2 / np.maximum(spread, 1e-12)).astype(np.float32))

    def place(self, embeddings_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """(news, 2), held inside the frame."""
        return np.clip((embeddings_ND - self._centre_D) @ self._axes_D2, -1, 1)
