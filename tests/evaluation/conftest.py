"""Random impressions and embeddings of their articles."""

import numpy as np
import pytest

from speedyfeed.data.store import Impressions
from speedyfeed.ragged import Ragged, offsets_of

NUM_NEWS = 60


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values=values, offsets=offsets_of(np.array([len(row) for row in rows], np.int64)))


@pytest.fixture
def news_VD() -> np.ndarray:
    embeddings = np.random.default_rng(7).standard_normal((NUM_NEWS + 1, 8)).astype(np.float32)
    embeddings[0] = 0
    return embeddings


@pytest.fixture
def impressions() -> Impressions:
    """Forty impressions of fifteen users, in no order; some news lack text, some impressions labels."""
    rng = np.random.default_rng(8)
    candidates = [rng.integers(0, NUM_NEWS + 1, rng.integers(1, 9)).tolist() for _ in range(40)]
    labels = [rng.integers(0, 2, len(row)).tolist() for row in candidates]
    for row in (3, 11):
        labels[row] = [-1] * len(labels[row])
    users = rng.integers(0, 15, 40)
    users = np.array([np.flatnonzero(users == user)[0] for user in users])  # each user's first row
    histories: list[list[int]] = [[] for _ in users]
    for number, user in enumerate(np.unique(users)):  # with 0, 1, 2, ... clicks
        histories[user] = rng.integers(1, NUM_NEWS + 1, number).tolist()
    return Impressions(
        candidates=ragged(candidates),
        labels=np.array([label for row in labels for label in row], np.int8),
        users=users,
        histories=ragged(histories),
    )
