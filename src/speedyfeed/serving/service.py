"""A feed that can be written to: every write goes to the journal first, and another run can take its place.

write:    encode -> journal (on disk) -> feed -> answer
reload:   load the run beside the one that answers -> what the journal holds -> take its place
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from speedyfeed.serving.feed import Feed, open_feed, remove_other_graphs
from speedyfeed.serving.journal import Entry, Journal, News
from speedyfeed.serving.live_catalogue import GraphConfig
from speedyfeed.serving.micro_batcher import BATCH, Embeddings, MicroBatcher, Text

log = logging.getLogger(__name__)

T = TypeVar("T")


class Busy(Exception):
    """A reload is under way already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reloaded:
    """What a reload did."""

    model: str
    news: int
    seconds: float


class Service:
    """The feed of a run folder and the journal of what was added to it since."""

    def __init__(
        self, run: Path, data: Path, config: GraphConfig | None = None, *, precision: str = "fp32"
    ) -> None:
        """Takes the journal in `data`; `open` must be called before anything else."""
        self._run = run
        self._data = data
        self._config = config
        self._precision = precision
        self._journal = Journal(data)
        self._batcher = MicroBatcher()
        self._feed: Feed | None = None
        self._writing = threading.Lock()
        self._reloading = threading.Lock()

    @property
    def feed(self) -> Feed:
        """The one that answers now. A request takes it once and keeps to it."""
        assert self._feed is not None, "not open yet"
        return self._feed

    @property
    def is_open(self) -> bool:
        """Whether there is a feed to answer."""
        return self._feed is not None

    def open(self) -> Reloaded:
        """Load the run with what the journal holds."""
        return self.reload()

    def reload(self) -> Reloaded:
        """Load the run folder as it is now, and let it answer once it is whole; until then the old one does.

        The old feed is left to the requests that have it; it goes when the last of them does.
        """
        if not self._reloading.acquire(blocking=False):
            raise Busy
        try:
            start = time.monotonic()
            feed = open_feed(self._run, self._data, self._batcher, self._config, precision=self._precision)
            seen = self._replay(feed, 0)
            with self._writing:  # only what was written during the last moments is left
                self._replay(feed, seen)
                self._feed = feed
            remove_other_graphs(self._data, feed.fingerprint)
            return Reloaded(model=feed.fingerprint, news=len(feed.catalogue), seconds=time.monotonic() - start)
        finally:
            self._reloading.release()

    def add(self, news: Sequence[News]) -> None:
        """Encode news and put them in; when it returns they are on disk and can be found."""
        distinct = list({one.news_id: one for one in news}.values())
        for some in self._in_turns(distinct):
            self._add(some)

    def remove(self, news_id: str) -> bool:
        """Take a news out, for good; whether it was there."""
        with self._writing:
            if self.feed.catalogue.row(news_id) is None:
                return False
            self._journal.remove(news_id)
            return self.feed.catalogue.remove(news_id)

    def close(self) -> None:
        """Give the journal back."""
        with self._writing:
            self._journal.close()
        self._batcher.close()

    def _add(self, news: Sequence[News]) -> None:
        while True:
            feed = self.feed
            embeddings = _encode(feed, news)
            with self._writing:
                if feed is self._feed:
                    self._journal.write(news, feed.fingerprint, embeddings)
                    feed.catalogue.add(news, embeddings)
                    return
            # Another model took over while this one encoded.

    def _replay(self, feed: Feed, after: int) -> int:
        """Do to the feed what was done since entry `after`; the last entry seen."""
        while entries := self._journal.read(after):
            for entry in entries:
                if entry.news is None:
                    feed.catalogue.remove(entry.news_id)
            self._encode_again([one for one in entries if one.news and one.model != feed.fingerprint], feed)
            kept = [one for one in entries if one.news and one.model == feed.fingerprint]
            if kept:
                feed.catalogue.add(
                    [one.news for one in kept if one.news],
                    np.stack([one.embedding for one in kept if one.embedding is not None]),
                )
            after = entries[-1].seq
        return after

    def _encode_again(self, entries: Sequence[Entry], feed: Feed) -> None:
        for some in self._in_turns(entries):
            news = [one.news for one in some if one.news]
            embeddings = _encode(feed, news)
            self._journal.note_embeddings([one.seq for one in some], feed.fingerprint, embeddings)
            feed.catalogue.add(news, embeddings)

    def _in_turns(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many at a time as are encoded at once; between two turns it is others' turn."""
        size = BATCH * self._batcher.num_threads
        return (items[start : start + size] for start in range(0, len(items), size))


def _encode(feed: Feed, news: Sequence[News]) -> Embeddings:
    """All together, each batch by another thread."""
    texts: list[Text] = [(one.title, one.abstract, one.body, one.category) for one in news]
    rows = [feed.encode(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
    return np.concatenate([one.result() for one in rows])
