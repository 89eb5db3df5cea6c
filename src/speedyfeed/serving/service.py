"""A feed with durable writes: every write goes to the journal first, and another run can be swapped in.

write:    encode -> journal (on disk) -> live catalogue -> answer
reload:   open the new feed beside the old one -> replay the journal -> swap
follow:   journal, written by another process -> live catalogue, rules; the run that it loaded -> reload
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from speedyfeed.serving.feed import Feed
from speedyfeed.serving.feedback import Feedback, write_log
from speedyfeed.serving.journal import Entry, Journal, Load, News
from speedyfeed.serving.live_catalogue import GraphConfig
from speedyfeed.serving.micro_batcher import BATCH, Embeddings, MicroBatcher, Text
from speedyfeed.serving.opening import open_feed, remove_other_graphs
from speedyfeed.serving.rules import Rule, Rules

log = logging.getLogger(__name__)

T = TypeVar("T")


class ReloadInProgress(Exception):
    """Raised by a reload while another one has not finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReloadResult:
    """The run that a reload put into service."""

    model: str
    """Fingerprint of the model."""
    news: int
    """Number of articles that can be recommended."""
    seconds: float
    """Duration of the reload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    """A log of feedback that was written."""

    folder: Path
    """Folder of the log, in the data folder of the service."""
    impressions: int
    """Number of impressions in it."""


@dataclass(kw_only=True, slots=True)
class _Seen:
    """How much of the journal a feed has seen: numbers of the last entry, feedback and load."""

    entry: int = 0
    feedback: int = 0
    load: int = 0


class Service:
    """The feed of a run folder, and the journal of what was added to it and removed from it."""

    def __init__(
        self,
        run: Path,
        data: Path,
        config: GraphConfig | None = None,
        *,
        precision: str = "fp32",
        shared: bool = False,
    ) -> None:
        """Open the journal in the folder `data`; call `open` before anything else.

        With `shared`, other processes of this service have it open too: this one follows what they write, until
        `take_over` is called.
        """
        self._run = run
        self._data = data
        self._config = config
        self._precision = precision
        self._journal = Journal(data, shared=shared)
        self._batcher = MicroBatcher()
        self._feed: Feed | None = None
        self._rules = self._read_rules()
        self._seen = _Seen()
        self._wanted: Load | None = None
        self._failure: Exception | None = None
        self._writing = threading.Lock()
        self._reloading = threading.Lock()

    @property
    def feed(self) -> Feed:
        """Feed in service now; a request takes it once and uses it throughout."""
        assert self._feed is not None, "not open yet"
        return self._feed

    @property
    def is_loading(self) -> bool:
        """Whether a run is being loaded, for the first time or again."""
        return self._reloading.locked()

    @property
    def is_open(self) -> bool:
        """Whether a run is loaded."""
        return self._feed is not None

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the journal; if not, another one does, which it follows."""
        return self._journal.is_writer

    @property
    def is_changing(self) -> bool:
        """Whether what another process has written is being applied, so that searches may have to wait."""
        return self._writing.locked()

    @property
    def load_number(self) -> int:
        """Number of the load that is in service, the same in all processes of a service; 0 before the first."""
        return self._seen.load

    def open(self) -> ReloadResult:
        """Load the run for the first time, and replay the journal.

        One process among several takes the run that the others have in service, though the folder may be a link
        that points to another run by now.
        """
        last = self._journal.last_load()
        return self._load(self._run if last is None else last.run, last)

    def reload(self) -> ReloadResult:
        """Load the run folder as it is now and swap it in once it is complete; the old feed answers until then.

        Requests that hold the old feed finish with it; its memory is freed when the last of them ends.
        """
        return self._load(self._run, None)

    def follow(self) -> None:
        """Show what the process that writes has written since this was last called.

        A run that it has loaded is loaded in a thread, as writes go on meanwhile; if that fails, a later call
        raises the error.
        """
        if self._failure is not None:
            raise self._failure
        if self._feed is not None and self._journal.has_changed():
            with self._writing:
                self._catch_up(self._feed)
            self._wanted = self._journal.last_load()
        if self._wanted is not None and self._wanted.number > self._seen.load and not self.is_loading:
            threading.Thread(target=self._follow_load, args=(self._wanted,), daemon=True).start()

    def take_over(self) -> None:
        """Become the process that writes; the caller makes sure that it is the only one."""
        with self._writing:
            if self._feed is not None:
                self._catch_up(self._feed)
            self._journal.begin_writing()

    def _follow_load(self, load: Load) -> None:
        try:
            self._load(load.run, load)
        except Exception as error:  # of any kind: `follow` raises it
            self._failure = error

    def _load(self, run: Path, load: Load | None) -> ReloadResult:
        """Load a run and swap it in: that of a load which another process made, or as a new load."""
        if not self._reloading.acquire(blocking=False):
            raise ReloadInProgress
        try:
            start = time.monotonic()
            feed = open_feed(run, self._data, self._batcher, self._config, precision=self._precision)
            seen = _Seen()
            self._replay(feed, seen)
            with self._writing:  # short: only what was written since the first replay is left
                self._replay(feed, seen)
                self._rules = self._read_rules()
                if load is None:
                    seen.load = self._journal.write_load(run.resolve(), feed.fingerprint)
                else:
                    seen.load = load.number
                self._feed, self._seen = feed, seen
            if self.is_writer:
                remove_other_graphs(self._data, feed.fingerprint)
            return ReloadResult(model=feed.fingerprint, news=len(feed.catalogue), seconds=time.monotonic() - start)
        finally:
            self._reloading.release()

    def _catch_up(self, feed: Feed) -> None:
        self._replay(feed, self._seen)
        self._rules = self._read_rules()

    def add(self, news: Sequence[News]) -> None:
        """Encode and add articles; once this returns they are on disk and can be recommended."""
        distinct = list({one.news_id: one for one in news}.values())
        for some in self._chunks(distinct):
            self._add(some)

    def remove(self, news_id: str) -> bool:
        """Remove an article for good; False if there is none with this id."""
        with self._writing:
            if self.feed.catalogue.row(news_id) is None:
                return False
            self._journal.remove(news_id)
            return self.feed.catalogue.remove(news_id)

    def give_feedback(self, feedback: Feedback) -> None:
        """Record what a user did with articles; clicks count as popularity at once."""
        with self._writing:
            self._journal.write_feedback(asdict(feedback))
            for news_id in feedback.clicked():
                self.feed.catalogue.count_click(news_id)

    def export_feedback(self) -> ExportResult:
        """Write all feedback as a log for `prepare` into the data folder, unless it is there already."""
        pieces = list(self._read_feedback())
        folder = self._data / f"feedback-{pieces[-1][0] if pieces else 0}"
        if not folder.exists():
            write_log(folder, [one for _, one in pieces], self.feed.all_news())
        return ExportResult(folder=folder, impressions=len(pieces))

    def rules(self) -> Rules:
        """Rules of the editor that are in force now."""
        return Rules(self._rules, now=time.time())

    def set_rule(self, rule: Rule) -> None:
        """Make a rule, or replace the one with its id."""
        with self._writing:
            self._journal.write_rule(rule.rule_id, asdict(rule))
            self._rules = [*(one for one in self._rules if one.rule_id != rule.rule_id), rule]

    def remove_rule(self, rule_id: str) -> bool:
        """End a rule; False if there is none with this id."""
        with self._writing:
            is_known = self._journal.write_rule(rule_id, None)
            self._rules = [one for one in self._rules if one.rule_id != rule_id]
            return is_known

    def stop(self) -> None:
        """Give up writes and reloads that need more encoding (ServiceStopped); nothing acknowledged is lost."""
        self._batcher.close()

    def close(self) -> None:
        """End the encoding threads and close the journal."""
        self.stop()
        with self._writing:
            self._journal.close()

    def _add(self, news: Sequence[News]) -> None:
        while True:
            feed = self.feed
            embeddings = _encode(feed, news)
            with self._writing:
                if feed is self._feed:
                    self._journal.write(news, feed.fingerprint, embeddings)
                    feed.catalogue.add(news, embeddings)
                    return
            # Another feed was swapped in during encoding: encode again, with its model.

    def _read_rules(self) -> list[Rule]:
        return [Rule(**rule) for rule in self._journal.read_rules()]

    def _read_feedback(self, after: int = 0) -> Iterator[tuple[int, Feedback]]:
        while pieces := self._journal.read_feedback(after):
            yield from ((seq, Feedback(**piece)) for seq, piece in pieces)
            after = pieces[-1][0]

    def _replay(self, feed: Feed, seen: "_Seen") -> None:
        """Apply to the feed all of the journal that it has not seen."""
        while entries := self._journal.read(seen.entry):
            for entry in entries:
                if entry.news is None:
                    feed.catalogue.remove(entry.news_id)
            self._encode_again([one for one in entries if one.news and one.model != feed.fingerprint], feed)
            encoded = [one for one in entries if one.news and one.model == feed.fingerprint]
            if encoded:
                feed.catalogue.add(
                    [one.news for one in encoded if one.news],
                    np.stack([one.embedding for one in encoded if one.embedding is not None]),
                )
            seen.entry = entries[-1].seq
        for seq, feedback in self._read_feedback(seen.feedback):
            for news_id in feedback.clicked():
                feed.catalogue.count_click(news_id)
            seen.feedback = seq

    def _encode_again(self, entries: Sequence[Entry], feed: Feed) -> None:
        """Add entries whose embeddings come from another model, encoded by the model of the feed."""
        for some in self._chunks(entries):
            news = [one.news for one in some if one.news]
            embeddings = _encode(feed, news)
            if self.is_writer:
                self._journal.update_embeddings([one.seq for one in some], feed.fingerprint, embeddings)
            feed.catalogue.add(news, embeddings)

    def _chunks(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Split into chunks of one batch per thread, so that other requests are encoded in between."""
        size = BATCH * self._batcher.num_threads
        return (items[start : start + size] for start in range(0, len(items), size))


def log_load(loaded: ReloadResult, prefix: str) -> None:
    """Log what was loaded."""
    log.info("%s%d articles, model %s, loaded in %.1f s", prefix, loaded.news, loaded.model, loaded.seconds)


def _encode(feed: Feed, news: Sequence[News]) -> Embeddings:
    """Embeddings of articles, (news, D); the batches are spread over the encoding threads."""
    texts: list[Text] = [(one.title, one.abstract, one.body, one.category) for one in news]
    rows = [feed.encode(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
    return np.concatenate([one.result() for one in rows])
