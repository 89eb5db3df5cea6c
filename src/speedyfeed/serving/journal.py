"""What was added to a feed and what was removed from it, on disk before anyone is told so.

    seq   news_id   news (JSON, none once removed)   model     embedding
    1     N7        -                                -         -            removed
    3     new-1     {"title": ...}                   a3f0...   256 floats   added, or changed: the latest counts

SQLite with a write-ahead log, synced to disk at every commit: what `write` returned from survives kill -9 and a
power cut. The process that has a journal open has it alone. An embedding is kept beside the model that made it, so
that a restart encodes nothing and another model knows what it has to encode again.
"""

import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speedyfeed.errors import InputError

_SCHEMA = """
create table if not exists entries (
    seq integer primary key autoincrement,
    news_id text not null unique,
    news text,
    model text,
    embedding blob
)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """One news as users see it."""

    news_id: str
    title: str
    abstract: str = ""
    body: str = ""
    category: str = ""
    published: float | None = None
    """Seconds since 1970; None is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The latest that happened to one news."""

    seq: int
    news_id: str
    news: News | None
    """None: it was removed."""
    model: str | None = None
    """Fingerprint of the model that made the embedding."""
    embedding: NDArray[np.float32] | None = None


class Journal:
    """Entries in the order they were written; for one process at a time, any of its threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = sqlite3.connect(folder / "journal.sqlite", check_same_thread=False, timeout=0)
        try:
            self._file.execute("pragma locking_mode = exclusive")
            self._file.execute("pragma journal_mode = wal")
            self._file.execute("pragma synchronous = full")
            with self._file:
                self._file.execute("begin immediate")  # takes the lock, which a dying process gives back
                self._file.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            self._file.close()
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise InputError(
                    f"{folder}: another process serves from it; stop that one, or give another --data"
                ) from error
            raise InputError(
                f"{folder / 'journal.sqlite'}: holds no journal of ours ({error}); give another --data"
            ) from error

    def write(self, news: Sequence[News], model: str, embeddings: NDArray[np.float32]) -> int:
        """Add or change these news; on disk when it returns. The last number it gave."""
        rows = [
            (one.news_id, json.dumps(asdict(one)), model, _to_bytes(embedding))
            for one, embedding in zip(news, embeddings, strict=True)
        ]
        with self._lock, self._file:
            self._file.executemany(
                "insert or replace into entries (news_id, news, model, embedding) values (?, ?, ?, ?)", rows
            )
            return self._last()

    def remove(self, news_id: str) -> int:
        """Remove one news, the recommender's own included; on disk when it returns."""
        with self._lock, self._file:
            self._file.execute("insert or replace into entries (news_id) values (?)", (news_id,))
            return self._last()

    def read(self, after: int = 0, *, most: int = 1024) -> list[Entry]:
        """What was written after number `after`, in order, a part at a time; nothing at the end."""
        with self._lock:
            rows = self._file.execute(
                "select seq, news_id, news, model, embedding from entries where seq > ? order by seq limit ?",
                (after, most),
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

    def note_embeddings(self, seqs: Sequence[int], model: str, embeddings: NDArray[np.float32]) -> None:
        """Another model encoded these entries; the entries themselves stay as they are."""
        rows = [(model, _to_bytes(embedding), seq) for seq, embedding in zip(seqs, embeddings, strict=True)]
        with self._lock, self._file:
            self._file.executemany("update entries set model = ?, embedding = ? where seq = ?", rows)

    def close(self) -> None:
        """Let another process have it."""
        with self._lock:
            self._file.close()

    def _last(self) -> int:
        (last,) = self._file.execute("select max(seq) from entries").fetchone()
        return int(last)


def _to_bytes(embedding: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(embedding, "<f4").tobytes()
