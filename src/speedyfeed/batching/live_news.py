"""Negatives for logs without impressions: articles that were live at the time of a click, but not the user's own.

    clicks in time order    8 5 | 3 5 | 6 3        blocks of `LIVE_CLICKS` clicks, here 2
    live in each block    [8 5 3] [8 5 3] [3 5 6]   clicked in it or in the block before, by their first click

Of these, a click draws among the articles first clicked by then, so none is from the future; where these are fewer
than the draws, among all that are live. Articles that the user clicks, at any time, are left out. Where the log
has no times, all train articles are live. Costs one sort of all clicks, then a few passes per block of draws;
holds 8 bytes for each click, and 12 for each article of each block.
Shapes: C clicks of the log   V articles.
"""

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.choice import choose
from speedyfeed.data.store import PAD_NEWS, Timelines
from speedyfeed.errors import InputError
from speedyfeed.ragged import Ragged
from speedyfeed.random import Stream, random_bits

LIVE_CLICKS = 5_000
"""Neighbouring clicks in time order that form a block."""
SPARE = 4
"""Additional draws per click, beside twice the negatives, to make up for articles of the user."""


class LiveNews:
    """Articles that were live at each click of a log without impressions."""

    def __init__(self, timelines: Timelines, *, negatives: int, seed: int) -> None:
        self._clicks = timelines.clicks
        self._negatives = negatives
        self._seed = seed
        news_C = np.asarray(timelines.clicks.values)
        times = timelines.click_times
        time_C = np.zeros(len(news_C), np.int64) if times is None else np.unique(times, return_inverse=True)[1]
        block_C = np.zeros(len(news_C), np.int64)
        if times is not None:
            block_C[np.argsort(time_C, kind="stable")] = np.arange(len(news_C)) // LIVE_CLICKS
        self._num_times = len(news_C) + 1
        self._size = int(news_C.max(initial=0)) + 1
        if len(np.unique(news_C)) < 2:
            raise InputError(
                "the train split has one article only, expected at least two: a click and an article that was not "
                "clicked; prepare a larger log"
            )
        self._live, self._births = self._collect(news_C, time_C, block_C)
        dtype: type[np.integer] = np.int32 if self._num_times <= np.iinfo(np.int32).max else np.int64
        self._time_C: NDArray[np.integer] = time_C.astype(dtype)
        self._block_C: NDArray[np.integer] = block_C.astype(dtype)

    def draw(self, positions: NDArray[np.int64], users: NDArray[np.int64], epoch: int) -> NDArray[np.int32]:
        """(clicks, negatives) articles for the clicks at these positions; 0 where too few are live."""
        num_draws = 2 * self._negatives + SPARE
        counters = positions[:, None] * 2 * num_draws + np.arange(2 * num_draws)
        bits, order = np.split(random_bits(self._seed, Stream.NEGATIVES, epoch, counters), 2, axis=1)
        block = self._block_C[positions].astype(np.int64)
        starts, ends = self._live.offsets[block], self._live.offsets[block + 1]
        now = block * self._num_times + self._time_C[positions]
        sizes = np.searchsorted(self._births, now, side="right") - starts
        sizes = np.where(sizes < num_draws, ends - starts, sizes)
        chosen = choose(bits, sizes)
        news = self._live.values[starts[:, None] + np.maximum(chosen, 0)]
        is_out = (chosen < 0) | self._is_own(users, news)
        # Sets of `choose` are random, their order is not.
        first = np.argsort(np.where(is_out, ~np.uint64(0), order), axis=1)[:, : self._negatives]
        return np.take_along_axis(np.where(is_out, PAD_NEWS, news), first, axis=1)

    def _collect(
        self, news_C: NDArray[np.int32], time_C: NDArray[np.int64], block_C: NDArray[np.int64]
    ) -> tuple[Ragged, NDArray[np.int64]]:
        """Articles live in each block in the order of their first click, and a key of block and time for each."""
        birth_V = np.full(self._size, self._num_times - 1, np.int64)
        np.minimum.at(birth_V, news_C, time_C)
        last = int(block_C.max())
        near = [(block_C, news_C), (np.minimum(block_C + 1, last), news_C)]
        if last:  # the first block has none before it, and takes those of the second
            second = news_C[block_C == 1]
            near.append((np.zeros(len(second), np.int64), second))
        keys = np.unique(np.concatenate([block * self._size + news for block, news in near]))
        block, news = keys // self._size, keys % self._size
        order = np.lexsort((news, birth_V[news], block))
        offsets = np.searchsorted(block, np.arange(last + 2))
        births = block[order] * self._num_times + birth_V[news[order]]
        return Ragged(values=news[order].astype(np.int32), offsets=offsets), births

    def _is_own(self, users: NDArray[np.int64], news: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each article is among all clicks of its user."""
        distinct, row = np.unique(users, return_inverse=True)
        clicks = self._clicks.take(distinct)
        own = np.repeat(np.arange(len(distinct)), clicks.lengths) * self._size + clicks.values
        return np.asarray(np.isin(row[:, None] * self._size + news, own))
