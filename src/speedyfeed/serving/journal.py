"""A durable log of the articles added to a feed and removed from it, of feedback, and of an editor's rules.

    seq   news_id   news (JSON, none once removed)   model     embedding
    1     N7        -                                -         -            removed
    3     new-1     {"title": ...}                   a3f0...   256 floats   added or replaced: the latest counts

Feedback and rules are rows of JSON in tables of their own.

SQLite with a write-ahead log, synced to disk at every commit: what `write` and `remove` returned from survives
kill -9 and a power cut. One process at a time can open a journal. Every embedding is stored with the fingerprint
of its model, so that a restart encodes nothing again and another model knows what it has to encode.
"""

import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speedyfeed.errors import InputError

_SCHEMA = (
    """
    create table if not exists entries (
        seq integer primary key autoincrement,
        news_id text not null unique,
        news text,
        model text,
        embedding blob
    )
    """,
    "create table if not exists feedback (seq integer primary key autoincrement, feedback text not null)",
    "create table if not exists rules (rule_id text primary key, rule text not null)",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """One article as users see it."""

    news_id: str
    title: str
    abstract: str = ""
    body: str = ""
    category: str = ""
    published: float | None = None
    """Publication time in seconds since 1970; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The latest change to one article."""

    seq: int
    """Number of the entry; later entries have larger numbers."""
    news_id: str
    news: News | None
    """The article as added or replaced; None if it was removed."""
    model: str | None = None
    """Fingerprint of the model that computed the embedding."""
    embedding: NDArray[np.float32] | None = None
    """Embedding of the article, (width,); None if it was removed."""


class Journal:
    """Entries in the order they were written; any thread of one process may use it."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in `folder`, or create it; an error if another process has it open."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = sqlite3.connect(folder / "journal.sqlite", check_same_thread=False, timeout=0)
        try:
            self._file.execute("pragma locking_mode = exclusive")
            self._file.execute("pragma journal_mode = wal")
            self._file.execute("pragma synchronous = full")
            with self._file:
                self._file.execute("begin immediate")  # takes the lock, which is released when a process dies
                for table in _SCHEMA:
                    self._file.execute(table)
        except sqlite3.DatabaseError as error:
            self._file.close()
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise InputError(
                    f"{folder}: another process serves from it; stop that process, or give another --data"
                ) from error
            raise InputError(
                f"{folder / 'journal.sqlite'}: not a journal of speedyfeed ({error}); give another --data"
            ) from error

    def write(self, news: Sequence[News], model: str, embeddings: NDArray[np.float32]) -> int:
        """Record added or replaced articles, on disk once this returns; the number of the last entry."""
        rows = [
            (one.news_id, json.dumps(asdict(one)), model, _to_bytes(embedding))
            for one, embedding in zip(news, embeddings, strict=True)
        ]
        with self._lock, self._file:
            self._file.executemany(
                "insert or replace into entries (news_id, news, model, embedding) values (?, ?, ?, ?)", rows
            )
            return self._last_seq()

    def remove(self, news_id: str) -> int:
        """Record a removal, also of an article of the trained run, on disk once this returns; its number."""
        with self._lock, self._file:
            self._file.execute("insert or replace into entries (news_id) values (?)", (news_id,))
            return self._last_seq()

    def read(self, after: int = 0, *, limit: int = 1024) -> list[Entry]:
        """The first `limit` entries with numbers above `after`, in order; empty at the end."""
        with self._lock:
            rows = self._file.execute(
                "select seq, news_id, news, model, embedding from entries where seq > ? order by seq limit ?",
                (after, limit),
            ).fetchall()
        return [
            Entry(
                seq=seq,
                news_id=news_id,
                news=None if news is None else News(**json.loads(news)),
                model=model,
                embedding=None if embedding is None else np.frombuffer(embedding, "<f4"),
            )
            for seq, news_id, news, model, embedding in rows
        ]

    def update_embeddings(self, seqs: Sequence[int], model: str, embeddings: NDArray[np.float32]) -> None:
        """Replace the embeddings of these entries by those of another model; numbers and articles stay."""
        rows = [(model, _to_bytes(embedding), seq) for seq, embedding in zip(seqs, embeddings, strict=True)]
        with self._lock, self._file:
            self._file.executemany("update entries set model = ?, embedding = ? where seq = ?", rows)

    def write_feedback(self, feedback: dict[str, Any]) -> int:
        """Record feedback, on disk once this returns; its number."""
        with self._lock, self._file:
            added = self._file.execute("insert into feedback (feedback) values (?)", (json.dumps(feedback),))
            return int(added.lastrowid or 0)

    def read_feedback(self, after: int = 0, *, limit: int = 1024) -> list[tuple[int, dict[str, Any]]]:
        """The first `limit` pieces of feedback numbered above `after`, with their numbers; empty at the end."""
        with self._lock:
            rows = self._file.execute(
                "select seq, feedback from feedback where seq > ? order by seq limit ?", (after, limit)
            ).fetchall()
        return [(seq, json.loads(feedback)) for seq, feedback in rows]

    def write_rule(self, rule_id: str, rule: dict[str, Any] | None) -> bool:
        """Record a rule, or remove it if None, on disk once this returns; False if there was none to remove."""
        with self._lock, self._file:
            if rule is None:
                return self._file.execute("delete from rules where rule_id = ?", (rule_id,)).rowcount > 0
            self._file.execute("insert or replace into rules values (?, ?)", (rule_id, json.dumps(rule)))
            return True

    def read_rules(self) -> list[dict[str, Any]]:
        """All rules, in the order they were made."""
        with self._lock:
            rows = self._file.execute("select rule from rules order by rowid").fetchall()
        return [json.loads(rule) for (rule,) in rows]

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        with self._lock:
            self._file.close()

    def _last_seq(self) -> int:
        (last,) = self._file.execute("select max(seq) from entries").fetchone()
        return int(last)


def _to_bytes(embedding: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(embedding, "<f4").tobytes()
