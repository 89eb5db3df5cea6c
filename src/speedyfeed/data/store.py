"""Prepared data on disk, opened not loaded.

    manifest.json             version, settings, fingerprint of the inputs, counts, size and checksum of every file
    news.parquet              news_id, category, subcategory, title; row i is news i + 1
    words.parquet             word, num_news: document frequencies (only when refined)
    news/                     tokens (ragged by segment), frequencies, fields, segments.offsets (by news)
    words/                    the same with words for tokens, and their tokenizer (in a store to learn from)
    train/                    users.parquet, clicks (ragged by user), click_pools, user_pools, pools
    dev/, test/               impressions.parquet, candidates (ragged by impression), labels, users, histories

News 0 is padding and has no segment. Opening reads the manifest and the headers of the arrays one asks for.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from speedyfeed.errors import InputError
from speedyfeed.ragged import Ragged, in_blocks, open_array, open_ragged

STORE_VERSION = 2
PAD_NEWS = 0
MANIFEST = "manifest.json"
WORDS = "words"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsTokens:
    """Segments of all news. Segments of news n are `segments[n]:segments[n + 1]`; each is a row of `tokens`."""

    tokens: Ragged
    """Token ids by segment, special tokens included."""
    frequencies: NDArray[np.uint8]
    """Beside each token, how often its word occurs in the field; 0 for special tokens."""
    fields: NDArray[np.uint8]
    """Beside each segment, the place of its field in the `fields` setting."""
    segments: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timelines:
    """What each user of the train split clicked, in time order, and what was skipped beside it."""

    clicks: Ragged
    """News by user, oldest first."""
    click_pools: NDArray[np.int64]
    """Beside each click, the row of `pools` with the news skipped in its impression; -1 where none is known."""
    user_pools: NDArray[np.int64]
    """Beside each user, the row of `pools` of the first impression; -1 where it skipped nothing."""
    pools: Ragged
    """Skipped news by impression; empty where everything shown was clicked."""

    @property
    def has_negatives(self) -> bool:
        """Whether any click has skipped news beside it."""
        return any((block >= 0).any() for block in in_blocks(self.click_pools))

    def count_clicks(self, num_news: int) -> NDArray[np.int64]:
        """How often each news was clicked, news 0 included."""
        num_clicks_V = np.zeros(num_news + 1, np.int64)
        for block in in_blocks(self.clicks.values):
            num_clicks_V += np.bincount(block, minlength=num_news + 1)
        return num_clicks_V


@dataclass(frozen=True, kw_only=True, slots=True)
class Impressions:
    """What was shown in a dev or test split, in the order of the log."""

    candidates: Ragged
    """News by impression, in the order shown; 0 where an id has no text."""
    labels: NDArray[np.int8]
    """Beside each candidate: 1 clicked, 0 skipped, -1 unknown."""
    users: NDArray[np.int64]
    """Beside each impression, the row of `histories` with what its user clicked before."""
    histories: Ragged


class Store:
    """A prepared log. Arrays are mapped when first asked for; all processes share one copy."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def num_news(self) -> int:
        """News with text; they are numbered from 1."""
        return int(self.manifest["counts"]["kept"]["news"])

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of train, dev, test that the log had."""
        return tuple(self.manifest["splits"])

    @cached_property
    def news(self) -> NewsTokens:
        """All news as tokens of a language model."""
        return open_news(self.path / "news")

    @cached_property
    def words(self) -> NewsTokens:
        """All news as words of the store's own vocabulary; its tokenizer lies beside them."""
        return open_news(self.path / WORDS)

    @property
    def vocabulary(self) -> str:
        """Checksum of the words' tokenizer."""
        facts = self.manifest["files"].get(f"{WORDS}/tokenizer.json")
        if facts is None:
            raise InputError(f"{self.path}: has no news as words; prepare the log again")
        return str(facts["sha256"])

    @cached_property
    def train(self) -> Timelines:
        """Timelines to learn from."""
        folder = self._split("train")
        return Timelines(
            clicks=open_ragged(folder, "clicks"),
            click_pools=open_array(folder, "click_pools"),
            user_pools=open_array(folder, "user_pools"),
            pools=open_ragged(folder, "pools"),
        )

    def impressions(self, split: str) -> Impressions:
        """Impressions to rank."""
        folder = self._split(split)
        return Impressions(
            candidates=open_ragged(folder, "candidates"),
            labels=open_array(folder, "labels"),
            users=open_array(folder, "users"),
            histories=open_ragged(folder, "histories"),
        )

    def load_titles(self) -> pa.Table:
        """(news_id, category, subcategory, title) of news 1, 2, ..."""
        return pq.read_table(self.path / "news.parquet")

    def load_users(self) -> pa.Table:
        """(user_id) of each row of the train timelines."""
        return pq.read_table(self._split("train") / "users.parquet")

    def load_impressions(self, split: str) -> pa.Table:
        """(impression_id, user_id, time) of each impression of a dev or test split."""
        return pq.read_table(self._split(split) / "impressions.parquet")

    def verify(self) -> None:
        """Compare every file with its checksum; reads all of them."""
        for name, facts in self.manifest["files"].items():
            if sha256(self.path / name) != facts["sha256"]:
                raise InputError(f"{self.path / name}: contents changed since it was prepared; prepare it again")

    def _split(self, split: str) -> Path:
        if split not in self.splits:
            raise InputError(f"{self.path}: has no split {split!r}, only {', '.join(self.splits)}")
        return self.path / split


def open_store(path: Path) -> Store:
    """A store made by this version, all its files present and of the right size."""
    manifest = read_manifest(path)
    for name, facts in manifest["files"].items():
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != facts["bytes"]:
            raise InputError(f"{file}: found {found or 'no'} bytes, expected {facts['bytes']}; prepare it again")
    return Store(path, manifest)


def open_news(folder: Path) -> NewsTokens:
    """The tokens below a folder, mapped."""
    return NewsTokens(
        tokens=open_ragged(folder, "tokens"),
        frequencies=open_array(folder, "frequencies"),
        fields=open_array(folder, "fields"),
        segments=open_array(folder, "segments.offsets"),
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a store of this version."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text("utf-8"))
        version = manifest["store_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a store; make one with: speedyfeed prepare LOGS {path}") from error
    if version != STORE_VERSION:
        raise InputError(
            f"{path}: found a store of version {version}, expected {STORE_VERSION}; prepare the log again"
        )
    return manifest


def file_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file below a folder, by relative name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in files
    }


def sha256(path: Path) -> str:
    """Checksum of a file's contents."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
