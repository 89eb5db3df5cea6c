"""The interests of a user: clicks grouped by likeness, so that articles are retrieved for each group.

Spherical k-means with a deterministic start: the latest click first, then the click least like those chosen.
Shapes: L clicks, I interests, D embedding width.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 5
"""Number of times that clicks are assigned to the nearest centre."""


def group_clicks(clicks_LD: NDArray[np.float32], max_interests: int) -> list[NDArray[np.int64]]:
    """Positions of the clicks of each interest, in the order of the history; all together where one is allowed."""
    num = min(max_interests, len(clicks_LD))
    if num < 2:
        return [np.arange(len(clicks_LD))] if len(clicks_LD) else []
    units_LD = clicks_LD / np.maximum(np.linalg.norm(clicks_LD, axis=1, keepdims=True), 1e-12)
    centres = [len(units_LD) - 1]
    nearest_L = units_LD @ units_LD[-1]
    while len(centres) < num and nearest_L.min() < 1 - 1e-6:
        centres.append(int(nearest_L.argmin()))
        nearest_L = np.maximum(nearest_L, units_LD @ units_LD[centres[-1]])
    centres_ID = units_LD[centres]
    labels_L = np.zeros(len(units_LD), np.int64)
    for _ in range(ROUNDS):
        labels_L = (units_LD @ centres_ID.T).argmax(1)
        is_own_IL = labels_L == np.arange(len(centres))[:, None]
        sums_ID = is_own_IL.astype(units_LD.dtype) @ units_LD
        norms_I1 = np.linalg.norm(sums_ID, axis=1, keepdims=True)
        centres_ID = np.where(norms_I1 > 1e-6, sums_ID / np.maximum(norms_I1, 1e-12), centres_ID)
    groups = [np.flatnonzero(labels_L == label) for label in range(len(centres))]
    return [group for group in groups if len(group)]
