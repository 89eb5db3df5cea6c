"""Histories of many readers to user embeddings, given the embeddings of all news."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speedyfeed.models.recommender import Recommender
from speedyfeed.ragged import Ragged

READERS_AT_ONCE = 256


def history_encoder(model: Recommender, news_VD: Tensor) -> Callable[[Ragged], NDArray[np.float32]]:
    """A function from histories (rows of `news_VD`, oldest first, maybe empty) to one embedding each.

    Readers of like length are encoded together, so that little is padded.
    """

    def encode(histories: Ragged) -> NDArray[np.float32]:
        users = np.zeros((len(histories), news_VD.size(1)), np.float32)
        order = np.argsort(histories.lengths, kind="stable")
        for start in range(0, len(order), READERS_AT_ONCE):
            rows = order[start : start + READERS_AT_ONCE]
            some = histories.take(rows)
            clicked_BL = np.arange(some.lengths.max(initial=0)) < some.lengths[:, None]
            ids_BL = np.zeros(clicked_BL.shape, np.int64)
            ids_BL[clicked_BL] = some.values
            users[rows] = model.encode_users(
                news_VD[torch.from_numpy(ids_BL)], torch.from_numpy(clicked_BL)
            ).numpy()
        return users

    return encode
