"""Prepared data on disk, opened but not loaded.

    manifest.json                 settings, checksums of the inputs, counts, size and checksum of every file
    news.parquet                  news_id, category, subcategory, title, abstract, first_shown; train's first
    bodies.parquet                full text of every article, to be shown (only where the log has any)
    document_frequencies.parquet  word, num_news: in how many train articles a word occurs (only when refined)
    news/                         tokens (ragged by segment), frequencies, fields, segments.offsets (by article)
    word_tokens/                  the same with words as tokens, and their tokenizer (only in a store to train on)
    train/                        users.parquet, clicks (ragged by user), click_pools, user_pools, pools,
                                  click_times (only in a log without impressions)
    valid/, dev/, test/           impressions.parquet, candidates (ragged by impression), labels, users, histories

Article 0 is padding and has no segment. Opening reads the manifest; arrays are memory-mapped when first used, once
their files were compared with their checksums.

Shapes: V all articles, C clicks.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from speedyfeed.checksums import damaged, sha256
from speedyfeed.data.bodies import BODIES
from speedyfeed.data.manifest import REMEDY, Manifest, TextFacts, read_manifest
from speedyfeed.errors import InputError
from speedyfeed.ragged import Ragged, in_blocks, open_array, open_ragged

PAD_NEWS = 0
DOCUMENT_FREQUENCIES = "document_frequencies.parquet"
WORD_TOKENS = "word_tokens"
VERIFIED_BYTES = 16 << 20
"""Sum of the smallest files that are compared with their checksums whenever a store is opened: some 20 ms."""
CLICK_TIMES = "click_times"
EARLY = 0.8
"""Share of the clicks by whose numbers later clicks are predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsTokens:
    """Segments of all articles: those of article n are rows `segments[n]:segments[n + 1]` of `tokens`."""

    tokens: Ragged
    """Token ids by segment, special tokens included."""
    frequencies: NDArray[np.uint8]
    """For each token, how often its word occurs in the field; 0 for special tokens."""
    fields: NDArray[np.uint8]
    """For each segment, the index of its field in the `fields` setting."""
    segments: NDArray[np.int64]
    """Offsets of each article's segments, article 0 included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timelines:
    """Clicks of every user of the train split in time order, with the negatives of each click.

    A pool holds the negatives of one impression: the articles it showed that were not clicked.
    """

    clicks: Ragged
    """Articles by user, oldest first."""
    click_pools: NDArray[np.int64]
    """For each click, the row of `pools` of its impression; -1 where it has no negatives."""
    user_pools: NDArray[np.int64]
    """For each user, the row of `pools` of the first impression; -1 where it has no negatives."""
    pools: Ragged
    """Articles shown but not clicked, by impression; empty where everything shown was clicked."""
    click_times: NDArray[np.int64] | None = None
    """For each click, its time in microseconds since 1970; None where the log has impressions, or no times."""

    @property
    def has_negatives(self) -> bool:
        """Whether any click has negatives of its own impression."""
        return any((block >= 0).any() for block in in_blocks(self.click_pools))

    @property
    def share_without_negatives(self) -> float:
        """Fraction of the clicks that have no negatives of their own, as those of histories; 1 without clicks."""
        num_with = sum(int(np.count_nonzero(block >= 0)) for block in in_blocks(self.click_pools))
        return 1 - num_with / max(1, len(self.click_pools))

    def count_clicks(self, num_news: int) -> NDArray[np.int64]:
        """Number of clicks of each article, article 0 included."""
        num_clicks_V = np.zeros(num_news + 1, np.int64)
        for block in in_blocks(self.clicks.values):
            num_clicks_V += np.bincount(block, minlength=num_news + 1)
        return num_clicks_V

    @property
    def has_lasting_popularity(self) -> bool:
        """Whether articles with many of the first four fifths of the clicks are clicked more often later, too.

        So it is in a shop, whose items stay, but not where mostly new articles are clicked. True in a log without
        times.
        """
        if self.click_times is None:
            return True
        times_C, news_C = np.asarray(self.click_times), np.asarray(self.clicks.values)
        is_late_C = times_C > np.quantile(times_C, EARLY, method="lower")
        if not is_late_C.any():
            return True
        counts_V = np.bincount(news_C[~is_late_C], minlength=int(news_C.max()) + 1)
        ordered = np.sort(counts_V[np.unique(news_C)])
        late = counts_V[news_C[is_late_C]]
        # Mean share of the articles with fewer clicks, half of those with as many included: an AUC.
        below = np.searchsorted(ordered, late, "left") + np.searchsorted(ordered, late, "right")
        return bool(below.mean() / (2 * len(ordered)) > 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Impressions:
    """Impressions of a valid, dev or test split, in the order of the log."""

    candidates: Ragged
    """Articles by impression, in the order shown; 0 where an id has no text."""
    labels: NDArray[np.int8]
    """For each candidate: 1 clicked, 0 shown but not clicked, -1 unknown."""
    users: NDArray[np.int64]
    """For each impression, the row of `histories` of its user."""
    histories: Ragged
    """Articles clicked before the split, oldest first; impressions of one user share a row."""


class Store:
    """A prepared log on disk. Arrays are memory-mapped when first used; all processes share one copy.

    A file is compared with its checksum before it is first used, so that a damaged one is named instead of giving
    another result.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._intact: set[str] = set()

    @property
    def num_news(self) -> int:
        """Number of articles with text; they are numbered from 1."""
        return self.manifest.counts.news.kept

    @property
    def num_train_news(self) -> int:
        """Number of articles that train impressions refer to; they have the first numbers."""
        return self.manifest.counts.news.in_train

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits of the log: some of train, valid, dev and test."""
        return self.manifest.splits

    @cached_property
    def news(self) -> NewsTokens:
        """All articles as tokens of a language model."""
        return open_news(self._verified("news"))

    @cached_property
    def word_tokens(self) -> NewsTokens:
        """All articles as words of the store's own vocabulary, whose tokenizer is in the same folder."""
        return open_news(self._verified(WORD_TOKENS))

    @property
    def word_tokenizer(self) -> Path:
        """Folder of the tokenizer of the store's word vocabulary."""
        if f"{WORD_TOKENS}/tokenizer.json" not in self.manifest.files:
            raise InputError(f"{self.path}: has no word vocabulary; prepare the log again")
        return self._verified(WORD_TOKENS)

    @property
    def document_frequencies(self) -> Path:
        """File with the number of train articles that each word occurs in; a store without refinement has none."""
        return self._verified(DOCUMENT_FREQUENCIES)

    @property
    def text_facts(self) -> TextFacts:
        """Facts by which later articles become the tokens this store would hold."""
        tokenizer = self.manifest.files.get(f"{WORD_TOKENS}/tokenizer.json")
        return TextFacts(
            settings=self.manifest.settings,
            statistics=self.manifest.statistics,
            vocabulary_checksum=None if tokenizer is None else tokenizer.sha256,
        )

    @cached_property
    def train(self) -> Timelines:
        """Timelines of the train split."""
        folder = self._split("train")
        has_times = f"train/{CLICK_TIMES}.npy" in self.manifest.files
        return Timelines(
            clicks=open_ragged(folder, "clicks"),
            click_pools=open_array(folder, "click_pools"),
            user_pools=open_array(folder, "user_pools"),
            pools=open_ragged(folder, "pools"),
            click_times=open_array(folder, CLICK_TIMES) if has_times else None,
        )

    def impressions(self, split: str) -> Impressions:
        """Impressions of a valid, dev or test split."""
        folder = self._split(split)
        return Impressions(
            candidates=open_ragged(folder, "candidates"),
            labels=open_array(folder, "labels"),
            users=open_array(folder, "users"),
            histories=open_ragged(folder, "histories"),
        )

    def load_titles(self) -> pa.Table:
        """(news_id, category, subcategory, title) of articles 1, 2, ..."""
        file = self._verified("news.parquet")
        return pq.read_table(file, columns=["news_id", "category", "subcategory", "title"])

    def load_abstracts(self) -> list[str] | None:
        """Abstracts of articles 1, 2, ...; None in a store that was prepared without them."""
        file = self._verified("news.parquet")
        if "abstract" not in pq.read_schema(file).names:
            return None
        abstracts: list[str] = pq.read_table(file, columns=["abstract"])["abstract"].to_pylist()
        return abstracts

    def load_first_shown(self) -> list[float | None] | None:
        """When the log first showed articles 1, 2, ..., in seconds since 1970; None where it has no times."""
        file = self._verified("news.parquet")
        if "first_shown" not in pq.read_schema(file).names:
            return None
        times: list[float | None] = pq.read_table(file, columns=["first_shown"])["first_shown"].to_pylist()
        return times

    @property
    def bodies(self) -> Path | None:
        """File of the full texts, for `open_bodies`; None where the log has none."""
        return self._verified(BODIES) if BODIES in self.manifest.files else None

    def load_users(self) -> pa.Table:
        """(user_id) of each row of the train timelines."""
        return pq.read_table(self._split("train") / "users.parquet")

    def load_impressions(self, split: str) -> pa.Table:
        """(impression_id, user_id, time) of each impression of a valid, dev or test split."""
        return pq.read_table(self._split(split) / "impressions.parquet")

    def verify(self, max_bytes: int | None = None) -> None:
        """Compare every file with its checksum; with `max_bytes`, the smallest files up to that sum alone."""
        num_bytes = 0
        for name, facts in sorted(self.manifest.files.items(), key=lambda one: one[1].bytes):
            num_bytes += facts.bytes
            if max_bytes is not None and num_bytes > max_bytes:
                return
            self._verify(name)

    def _verified(self, path: str) -> Path:
        """A file or folder of the store, after a comparison of the files that were not compared before."""
        for name in self.manifest.files:
            if name not in self._intact and (name == path or name.startswith(f"{path}/")):
                self._verify(name)
        return self.path / path

    def _verify(self, name: str) -> None:
        if sha256(self.path / name) != self.manifest.files[name].sha256:
            raise damaged(self.path / name, REMEDY)
        self._intact.add(name)

    def _split(self, split: str) -> Path:
        if split not in self.splits:
            raise InputError(f"{self.path}: has no split {split!r}, only {', '.join(self.splits)}")
        return self._verified(split)


def open_store(path: str | Path) -> Store:
    """Open a store of this version; every file must be there and have its size, small ones their checksum."""
    path = Path(path)
    manifest = read_manifest(path)
    for name, facts in manifest.files.items():
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != facts.bytes:
            raise InputError(f"{file}: found {found or 'no'} bytes, expected {facts.bytes}; {REMEDY}")
    store = Store(path, manifest)
    store.verify(VERIFIED_BYTES)
    return store


def open_news(folder: Path) -> NewsTokens:
    """Memory-map the tokens in a folder."""
    return NewsTokens(
        tokens=open_ragged(folder, "tokens"),
        frequencies=open_array(folder, "frequencies"),
        fields=open_array(folder, "fields"),
        segments=open_array(folder, "segments.offsets"),
    )
