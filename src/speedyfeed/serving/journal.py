"""A durable log of the articles added to a feed and removed from it, of feedback, and of an editor's rules.

    seq   news_id   news (JSON, none once removed)   model     embedding
    1     N7        -                                -         -            removed
    3     new-1     {"title": ...}                   a3f0...   256 floats   added or replaced: the latest counts

Feedback and rules are rows of JSON in tables of their own.

SQLite with a write-ahead log, synced to disk at every commit: what `write` and `remove` returned from survives
kill -9 and a power cut. One service at a time can open a journal: a single process, or the worker processes of one
service, of which one writes and the others follow it. Every embedding is stored with the fingerprint of its model,
so that a restart encodes nothing again and another model knows what it has to encode. Every row has a checksum,
which is compared with it when a service opens the journal.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speedyfeed.errors import InputError, UnwritableError
from speedyfeed.files import FolderLock

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
    "create table if not exists loads (number integer primary key autoincrement, run text, model text)",
)
_CHECKED = {"entries": "news_id, news, model, embedding", "feedback": "feedback", "rules": "rule_id, rule"}
"""Columns that the column `checksum` of a table is computed from; earlier versions wrote none."""
_BESIDE = ("graphs-*", "precision.json", "writer.lock")
"""What a service writes into the folder of a journal once it has one."""
_UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_REMEDY = "put it back from a copy, or give another --data to begin without it"
BUSY_SECONDS = 10
"""Time that a worker waits for another one which recovers or shortens the write-ahead log."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """One time that a run was put into service by the process that writes."""

    number: int
    """Number of the load; later ones have larger numbers."""
    run: Path
    """Folder of the run, links resolved."""
    model: str
    """Fingerprint of its model."""


class Journal:
    """Entries in the order they were written; any thread of a process may use it."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """Open the journal in `folder`, or create it; an error if another service has it open.

        A shared one is opened to be read by every worker of a service, which has claimed the folder by
        `hand_over`; one worker calls `begin_writing`.
        """
        self.is_writer = not shared
        """Whether this process may write."""
        self._path = path = folder / "journal.sqlite"
        is_lost = not path.exists() or (path.is_file() and not path.stat().st_size)
        if is_lost and any(one for name in _BESIDE for one in folder.glob(name)):
            raise InputError(f"{path}: is missing or empty, but held what was added; {_REMEDY}")
        if path.is_dir():
            raise InputError(f"{path}: is a folder, expected a journal; {_REMEDY}")
        self._own = None if shared else _claim(folder)
        self._lock = threading.Lock()
        self._version = 0
        timeout = BUSY_SECONDS if shared else 0
        try:
            self._file = sqlite3.connect(path, check_same_thread=False, timeout=timeout)
        except sqlite3.OperationalError as error:  # no permission to read it
            self._release()
            raise UnwritableError(path, error) from error
        self._file.create_function("sha256", -1, _checksum, deterministic=True)
        try:
            if not shared:
                self._file.execute("pragma locking_mode = exclusive")
            self._file.execute("pragma journal_mode = wal")
            self._file.execute("pragma synchronous = full")
            if shared:
                self._file.execute("pragma query_only = 1")
            else:
                self._create_tables()
                self._require_intact(path)
        except sqlite3.DatabaseError as error:
            self.close()
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise _taken(folder) from error
            if _is_unwritable(error):
                raise UnwritableError(path, error) from error
            raise InputError(f"{path}: not a journal of speedyfeed ({error}); {_REMEDY}") from error
        except InputError:
            self.close()
            raise

    def begin_writing(self) -> None:
        """Let this process write; the caller makes sure that it is the only one."""
        with self._lock:
            self._file.execute("pragma query_only = 0")
            self.is_writer = True

    def has_changed(self) -> bool:
        """Whether another process has written since this was last asked."""
        with self._lock:
            before = self._version
            (self._version,) = self._file.execute("pragma data_version").fetchone()
            return bool(self._version != before)

    def write(self, news: Sequence[News], model: str, embeddings: NDArray[np.float32]) -> int:
        """Record added or replaced articles, on disk once this returns; the number of the last entry."""
        rows = [
            (one.news_id, json.dumps(asdict(one)), model, _to_bytes(embedding))
            for one, embedding in zip(news, embeddings, strict=True)
        ]
        with self._writing():
            self._file.executemany(_replace("entries"), rows)
            return self._last_seq()

    def remove(self, news_id: str) -> int:
        """Record a removal, also of an article of the trained run, on disk once this returns; its number."""
        with self._writing():
            self._file.execute(_replace("entries"), (news_id, None, None, None))
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
        with self._writing():
            self._file.executemany(
                "update entries set model = ?1, embedding = ?2, checksum = sha256(news_id, news, ?1, ?2) "
                "where seq = ?3",
                rows,
            )

    def write_feedback(self, feedback: dict[str, Any]) -> int:
        """Record feedback, on disk once this returns; its number."""
        with self._writing():
            added = self._file.execute(_replace("feedback"), (json.dumps(feedback),))
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
        with self._writing():
            if rule is None:
                return self._file.execute("delete from rules where rule_id = ?", (rule_id,)).rowcount > 0
            self._file.execute(_replace("rules"), (rule_id, json.dumps(rule)))
            return True

    def read_rules(self) -> list[dict[str, Any]]:
        """All rules, in the order they were made."""
        with self._lock:
            rows = self._file.execute("select rule from rules order by rowid").fetchall()
        return [json.loads(rule) for (rule,) in rows]

    def write_load(self, run: Path, model: str) -> int:
        """Record that a run was put into service; its number."""
        with self._writing():
            added = self._file.execute("insert into loads (run, model) values (?, ?)", (str(run), model))
            return int(added.lastrowid or 0)

    def last_load(self) -> Load | None:
        """The run that the workers of this service have in service; None before the first one is loaded."""
        with self._lock:
            row = self._file.execute(
                "select number, run, model from loads order by number desc limit 1"
            ).fetchone()
        return None if row is None else Load(number=row[0], run=Path(row[1]), model=row[2])

    def hand_over(self) -> FolderLock:
        """Close the file but keep the folder claimed, for processes that open the journal as a shared one."""
        own, self._own = self._own, None
        assert own is not None, "a shared journal was claimed by another process"
        self.close()
        return own

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        with self._lock:
            self._file.close()
        self._release()

    def _release(self) -> None:
        """Give up the folder, if this process has claimed it."""
        if self._own is not None:
            self._own.release()
            self._own = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction; a full disk and the like is an `UnwritableError`, and nothing was written."""
        try:
            with self._lock, self._file:
                yield
        except sqlite3.OperationalError as error:
            if _is_unwritable(error):
                raise UnwritableError(self._path, error) from error
            raise

    def _create_tables(self) -> None:
        with self._file:
            self._file.execute("begin immediate")  # takes the lock, which is released when a process dies
            for table in _SCHEMA:
                self._file.execute(table)
            for name in _CHECKED:
                if "checksum" not in [row[1] for row in self._file.execute(f"pragma table_info({name})")]:
                    self._file.execute(f"alter table {name} add column checksum text")
            self._file.execute("delete from loads")  # by an earlier service; the numbers go on

    def _require_intact(self, path: Path) -> None:
        """Refuse a journal with a damaged page or row."""
        found = self._file.execute("pragma integrity_check(1)").fetchall()
        if found != [("ok",)]:
            raise InputError(f"{path}: is damaged ({found[0][0]}); {_REMEDY}")
        for name, columns in _CHECKED.items():
            wrong = f"select rowid from {name} where checksum != sha256({columns}) limit 1"
            if (row := self._file.execute(wrong).fetchone()) is not None:
                raise InputError(f"{path}: is damaged, row {row[0]} of {name} changed; {_REMEDY}")

    def _last_seq(self) -> int:
        (last,) = self._file.execute("select max(seq) from entries").fetchone()
        return int(last)


def _claim(folder: Path) -> FolderLock:
    """Claim the journal in `folder` for one service; an error if another one, still alive, has it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FolderLock(folder)
    except InputError as error:
        raise _taken(folder) from error


def _taken(folder: Path) -> InputError:
    return InputError(f"{folder}: another process serves from it; stop that process, or give another --data")


def _is_unwritable(error: sqlite3.Error) -> bool:
    """Whether the system is the cause: a full disk, a permission."""
    return error.sqlite_errorcode & 0xFF in _UNWRITABLE


def _replace(table: str) -> str:
    """Statement that adds a row with its checksum to a table, instead of one with the same id."""
    columns = _CHECKED[table]
    values = ", ".join(f"?{number + 1}" for number in range(columns.count(",") + 1))
    return f"insert or replace into {table} ({columns}, checksum) values ({values}, sha256({values}))"


def _checksum(*values: str | bytes | None) -> str:
    whole = hashlib.sha256()
    for value in values:
        content = value.encode() if isinstance(value, str) else value or b""
        whole.update(b"%d:%b" % (len(content), content))
    return whole.hexdigest()


def _to_bytes(embedding: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(embedding, "<f4").tobytes()
