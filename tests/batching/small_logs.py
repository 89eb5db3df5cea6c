"""Small logs for the tests of batching, written as lists."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from speedyfeed.data.store import Timelines
from speedyfeed.ragged import Ragged, offsets_of

NUM_NEWS = 12
NO_POOL = -1

few = settings(max_examples=50, deadline=None)
"""Each example makes many batches; how long that takes says nothing on a shared machine."""


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], dtype=np.int32)
    return Ragged(values=values, offsets=offsets_of(np.array([len(row) for row in rows], dtype=np.int64)))


def timelines(
    users: list[list[tuple[int, int]]], pools: list[list[int]], user_pools: list[int] | None = None
) -> Timelines:
    """Users as lists of (clicked news, row of its pool); no user has a first pool unless said."""
    return Timelines(
        clicks=ragged([[news for news, _ in clicks] for clicks in users]),
        click_pools=np.array([pool for clicks in users for _, pool in clicks], dtype=np.int32),
        user_pools=np.array(user_pools or [NO_POOL] * len(users), dtype=np.int64),
        pools=ragged(pools),
    )


@st.composite
def logs(random_bits: st.DrawFn) -> Timelines:
    """Some users and their clicks, with and without pools; at least two different news."""
    news = st.integers(1, NUM_NEWS)
    pools = random_bits(st.lists(st.lists(news, min_size=1, max_size=5, unique=True), max_size=4))
    pool = st.integers(NO_POOL, len(pools) - 1)
    clicks = st.lists(st.tuples(news, pool), max_size=7)
    users = [[(1, NO_POOL), (2, NO_POOL)], *random_bits(st.lists(clicks, max_size=12))]
    user_pools = random_bits(st.lists(pool, min_size=len(users), max_size=len(users)))
    return timelines(users, pools, user_pools)


lengths = st.lists(st.integers(0, 9), min_size=NUM_NEWS, max_size=NUM_NEWS).map(lambda rest: np.array([0, *rest]))
"""Tokens of every article; some have no text at all."""
