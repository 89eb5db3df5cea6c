"""Clicks of a batch as padded arrays. Shapes: B users, L clicks, N negatives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.sample import Instances
from speedyfeed.data.store import PAD_NEWS
from speedyfeed.ragged import Array

Ids = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedClicks:
    """History, targets and negatives of the instances of a batch."""

    history_BL: Ids
    targets_BL: Ids
    negatives_BLN: Ids
    has_own_negatives_BL: NDArray[np.bool]


def pad_clicks(
    instances: Instances, *, autoregressive: bool, first_click: bool, num_positions: int | None = None
) -> PaddedClicks:
    """Pad the clicks of instances to `num_positions`, by default to the longest of them.

    Without `autoregressive`, the last click of each is its target and all others are its history; without
    `first_click`, the first click is no target.
    """
    lengths = instances.candidates.lengths
    is_click_BL = np.arange(num_positions or lengths.max()) < lengths[:, None]
    history_BL = _padded(instances.candidates.values[:, 0], is_click_BL)
    negatives_BLN = _padded(instances.candidates.values[:, 1:], is_click_BL)
    has_own_negatives_BL = _padded(instances.has_own_negatives.values, is_click_BL)
    targets_BL = history_BL
    if autoregressive and not first_click:
        targets_BL = history_BL.copy()
        targets_BL[:, 0] = PAD_NEWS
    if not autoregressive:
        last_B1 = lengths[:, None] - 1
        targets_BL = np.take_along_axis(history_BL, last_B1, 1)
        negatives_BLN = np.take_along_axis(negatives_BLN, last_B1[..., None], 1)
        has_own_negatives_BL = np.take_along_axis(has_own_negatives_BL, last_B1, 1)
        np.put_along_axis(history_BL, last_B1, PAD_NEWS, 1)
        history_BL = history_BL[:, :-1]
    return PaddedClicks(
        history_BL=history_BL,
        targets_BL=targets_BL,
        negatives_BLN=negatives_BLN,
        has_own_negatives_BL=has_own_negatives_BL,
    )


def _padded(values: Array, is_click_BL: NDArray[np.bool]) -> Array:
    """Values in rows of one user each, with 0 where there is no click."""
    padded = np.zeros((*is_click_BL.shape, *values.shape[1:]), values.dtype)
    padded[is_click_BL] = values
    return padded
