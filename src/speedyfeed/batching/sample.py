"""Training instances: the latest clicks of a user, each with articles that were shown but not clicked.

    clicks of user 7           8    5    3    6        (oldest first, the latest `max_clicks`)
    pool of each click         -    -  [1 2] [4]
    negatives, one per click   2    1    1    4        (8 and 5 have no pool: the user's first, [1 2])
    has_own_negatives          no   no  yes  yes

Without `autoregressive`, an instance is one click of a user with the clicks before it, as in the conventional
workflow, and that click alone has negatives:

    click 3 of user 7          8    5    3
    negatives                  0    0    1

`without_negatives` is what clicks without a pool of their own are for:

    fallback    they get negatives, as above; articles that were live at that time where no click has a pool
    in-batch    they get none, but are learned from all the same, by the in-batch loss
    history     they get none and are no instances; users with no other clicks are left out. Where no click of the
                log has a pool, they are used as with fallback

Without `first_click`, a click that has no click before it gets no negatives and is not an instance.

A pool smaller than the number of negatives is taken whole; 0 fills the row.

The negatives of a user depend on the seed, the epoch and the user alone, not on the other users of a block. A
block costs a few vectorised passes over its clicks. Shapes: U instances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.choice import choose
from speedyfeed.batching.live_news import LiveNews
from speedyfeed.batching.selection import Selection
from speedyfeed.data.store import PAD_NEWS, Timelines
from speedyfeed.errors import InputError
from speedyfeed.ragged import Ragged, in_blocks, offsets_of
from speedyfeed.random import Stream, permute, random_bits

WithoutNegatives = Literal["fallback", "in-batch", "history"]
"""Use of clicks that have no negatives of their own."""
USERS = 1 << 16  # users, or clicks, counted at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Instances:
    """Clicks of some users with their negatives; every instance has at least one click."""

    users_U: NDArray[np.int64]
    """Rows of the train timelines."""
    candidates: Ragged
    """Rows of each instance, one per click, int32: column 0 is the click, the others are its negatives."""
    has_own_negatives: Ragged
    """Whether the negatives of each click come from its own impression, by instance."""

    def __len__(self) -> int:
        return len(self.users_U)

    def take(self, rows: NDArray[np.integer]) -> "Instances":
        """Selected instances, in the given order."""
        return Instances(
            users_U=self.users_U[rows],
            candidates=self.candidates.take(rows),
            has_own_negatives=self.has_own_negatives.take(rows),
        )

    def extended(self, others: "Instances") -> "Instances":
        """These instances, then the others."""
        offsets = offsets_of(np.concatenate([self.candidates.lengths, others.candidates.lengths]))
        candidates = np.concatenate([self.candidates.values, others.candidates.values])
        has_own_negatives = np.concatenate([self.has_own_negatives.values, others.has_own_negatives.values])
        return Instances(
            users_U=np.concatenate([self.users_U, others.users_U]),
            candidates=Ragged(values=candidates, offsets=offsets),
            has_own_negatives=Ragged(values=has_own_negatives, offsets=offsets),
        )


class Sampler:
    """Draws the training instances of an epoch from click timelines."""

    def __init__(
        self,
        timelines: Timelines,
        *,
        num_news: int,
        max_clicks: int,
        negatives: int,
        seed: int,
        autoregressive: bool = True,
        without_negatives: WithoutNegatives = "fallback",
        first_click: bool = True,
    ) -> None:
        self._timelines = timelines
        self._num_news = num_news
        self._max_clicks = max_clicks
        self._negatives = negatives
        self._seed = seed
        self._autoregressive = autoregressive
        has_negatives = timelines.has_negatives
        has_pools = has_negatives or any((block >= 0).any() for block in in_blocks(timelines.user_pools))
        if without_negatives == "history" and not has_negatives:
            without_negatives = "fallback"
        self._without_negatives = without_negatives
        self._first_click = first_click
        self._selected = Selection(self._learning_users() if autoregressive else self._learned_clicks())
        if not len(self._selected):
            raise InputError("the train split has no click to learn from; prepare a log that has some")
        # Collected here, once: threads that sample side by side would each do it.
        is_live = without_negatives == "fallback" and not has_pools
        self._live_news = LiveNews(timelines, negatives=negatives, seed=seed) if is_live else None

    @property
    def num_instances(self) -> int:
        """Number of instances of an epoch: users with clicks to learn from, or such clicks."""
        return len(self._selected)

    def order(self, epoch: int, positions: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Keys of the instances at these positions of an epoch's random order; by default of all.

        A key is the row of a user, or the position of a click in the store.
        """
        if positions is None:
            positions = np.arange(self.num_instances)
        return self._selected.find(permute(self._seed, Stream.ORDER, epoch, positions, self.num_instances))

    def _learning_users(self) -> Iterator[NDArray[np.bool]]:
        """Whether each user has clicks to learn from, in blocks."""
        timelines = self._timelines
        for first in range(0, len(timelines.clicks), USERS):
            offsets = timelines.clicks.offsets[first : first + USERS + 1]
            lengths = np.minimum(np.diff(offsets), self._max_clicks)
            learned = lengths if self._first_click else np.maximum(lengths - 1, 0)
            if self._without_negatives == "history":
                up_to = offsets_of((timelines.click_pools[offsets[0] : offsets[-1]] >= 0).astype(np.int64))
                ends = offsets[1:] - offsets[0]
                learned = up_to[ends] - up_to[ends - learned]
            yield learned > 0

    def _learned_clicks(self) -> Iterator[NDArray[np.bool]]:
        """Whether each click is among the latest of its user and has something to learn from, in blocks."""
        timelines = self._timelines
        offsets = timelines.clicks.offsets
        for first in range(0, len(timelines.click_pools), USERS):
            positions = np.arange(first, min(first + USERS, len(timelines.click_pools)))
            users = np.searchsorted(offsets, positions, side="right") - 1
            is_learned = positions >= offsets[users + 1] - self._max_clicks
            if self._without_negatives == "history":
                is_learned &= timelines.click_pools[positions] >= 0
            if not self._first_click:
                is_learned &= positions > offsets[users]
            yield is_learned

    def sample(self, keys: NDArray[np.int64], epoch: int) -> Instances:
        """Instances of some keys of `order`, in that order."""
        clicks = self._timelines.clicks
        if self._autoregressive:
            users, ends = keys, clicks.offsets[keys + 1]
            most = self._max_clicks
        else:
            users, ends = np.searchsorted(clicks.offsets, keys, side="right") - 1, keys + 1
            most = self._max_clicks + 1  # the target follows the history
        lengths = np.minimum(ends - clicks.offsets[users], most)
        offsets = offsets_of(lengths)
        # Position of each click in the store: its position here, moved to where the clicks of its instance begin.
        positions = np.arange(offsets[-1]) + np.repeat(ends - lengths - offsets[:-1], lengths)
        clicked = clicks.values[positions]
        learned = self._learned(offsets)
        if self._without_negatives != "fallback":
            learned = learned[self._timelines.click_pools[positions[learned]] >= 0]
        user_of_click = np.repeat(users, lengths)
        negatives = np.full((len(clicked), self._negatives), PAD_NEWS, np.int32)
        has_own_negatives = np.zeros(len(clicked), np.bool)
        negatives[learned], has_own_negatives[learned] = self._draw_negatives(
            clicked[learned], positions[learned], user_of_click[learned], epoch
        )
        return Instances(
            users_U=users,
            candidates=Ragged(values=np.column_stack([clicked, negatives]), offsets=offsets),
            has_own_negatives=Ragged(values=has_own_negatives, offsets=offsets),
        )

    def _learned(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clicks to learn from, as positions among all clicks of instances that begin at these offsets."""
        if not self._autoregressive:
            return offsets[1:] - 1
        every = np.arange(offsets[-1])
        return every if self._first_click else np.delete(every, offsets[:-1])

    def _draw_negatives(
        self, clicked: NDArray[np.int32], positions: NDArray[np.int64], users: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.int32], NDArray[np.bool]]:
        """(clicks, negatives) news, and for each click whether they come from its own impression."""
        if self._live_news is not None:
            return self._live_news.draw(positions, users, epoch), np.zeros(len(positions), np.bool)
        pools = self._timelines.pools
        rows = self._timelines.click_pools[positions]
        has_own_negatives = rows >= 0
        rows = np.where(has_own_negatives, rows, self._timelines.user_pools[users])
        listed = rows >= 0
        starts = pools.offsets[rows[listed]]
        sizes = pools.offsets[rows[listed] + 1] - starts

        bits = random_bits(
            self._seed,
            Stream.NEGATIVES,
            epoch,
            positions[:, None] * self._negatives + np.arange(self._negatives),
        )
        negatives = np.empty(bits.shape, np.int32)
        chosen = choose(bits[listed], sizes)
        negatives[listed] = np.where(chosen >= 0, pools.values[starts[:, None] + chosen], PAD_NEWS)
        # A clicked article may be in the user's pool as well: it must not be a negative of itself.
        strays = ~listed | (~has_own_negatives & (negatives == clicked[:, None]).any(axis=1))
        if strays.any():
            # The period contains the click: choose among one less, and skip it.
            chosen = choose(bits[strays], np.full(np.count_nonzero(strays), len(self._period) - 1))
            rank = np.searchsorted(self._period, clicked[strays])[:, None]
            negatives[strays] = np.where(chosen >= 0, self._period[chosen + (chosen >= rank)], PAD_NEWS)
        return negatives, has_own_negatives

    @cached_property
    def _period(self) -> NDArray[np.int32]:
        """Articles to draw from where a user has no pool; collected when the first such click comes."""
        period = period_news(self._timelines, self._num_news)
        if len(period) < 2:
            raise InputError(
                "the train split has one article only, expected at least two: a click and an article that was not "
                "clicked; prepare a larger log"
            )
        return period


def period_news(timelines: Timelines, num_news: int) -> NDArray[np.int32]:
    """Articles that were clicked or shown, sorted; reads all timelines and pools."""
    occurs = np.zeros(num_news + 1, np.bool)
    for values in (timelines.clicks.values, timelines.pools.values):
        for block in in_blocks(values):
            occurs[block] = True
    return np.flatnonzero(occurs).astype(np.int32)
