"""Histories to users that articles are scored by: in batches, or one by one for user-dependent models.

Of every history, the latest clicks count, as many as the model was trained on (`max_clicks`).
Shapes: B users   L clicks   V all articles   D embedding width
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speedyfeed.models.packed import PackedNews
from speedyfeed.models.recommender import RecommenderModule
from speedyfeed.models.words import WordNewsEncoder
from speedyfeed.ragged import Ragged
from speedyfeed.scoring import Users, concatenate

USERS_PER_BATCH = 256
"""Number of users encoded at once."""

Rows = NDArray[np.float32]


def history_encoder(
    model: RecommenderModule, news_VD: Tensor, indices: NDArray[np.int64] | None = None
) -> Callable[[Ragged, NDArray[np.int64]], Users]:
    """Make a function from histories (rows of `news_VD`, oldest first, may be empty) and users to `Users`.

    `indices` are the model's indices of the users; without them all users are unknown. Histories of similar length
    are encoded together, so that there is little padding.
    """

    def encode(histories: Ragged, users: NDArray[np.int64]) -> Users:
        histories = histories.tails(model.config.max_clicks)
        order = np.argsort(histories.lengths, kind="stable")
        parts = []
        for start in range(0, max(1, len(order)), USERS_PER_BATCH):
            rows = order[start : start + USERS_PER_BATCH]
            some = histories.take(rows)
            clicked_BL = np.arange(some.lengths.max(initial=0)) < some.lengths[:, None]
            ids_BL = np.zeros(clicked_BL.shape, np.int64)
            ids_BL[clicked_BL] = some.values
            parts.append(
                model.encode_users(
                    news_VD[torch.from_numpy(ids_BL)],
                    torch.from_numpy(clicked_BL),
                    None if indices is None else torch.from_numpy(indices[users[rows]]),
                )
            )
        return concatenate(parts).take(torch.from_numpy(np.argsort(order)))

    return encode


def user_dependent_encoder(
    model: RecommenderModule, news: PackedNews, indices: NDArray[np.int64]
) -> Callable[[int, NDArray[np.integer]], tuple[Rows, Rows]]:
    """Make a function from a user and their history (rows of `news`) to embeddings of all articles and user."""
    assert isinstance(model.news, WordNewsEncoder)
    news_for = model.news.for_users(news)

    def encode(user: int, history: NDArray[np.integer]) -> tuple[Rows, Rows]:
        index = int(indices[user])
        news_VD = news_for(index)
        latest = np.asarray(history[model.config.latest_clicks], np.int64)
        clicks_1LD = news_VD[torch.from_numpy(latest)][None]
        users = model.encode_users(clicks_1LD, user_ids_B=torch.tensor([index]))
        return news_VD.numpy(), users.means_BPD[0, 0].numpy()

    return encode
