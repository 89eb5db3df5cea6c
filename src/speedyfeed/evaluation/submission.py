"""Leaderboard files: a zip with one text file, a line per impression in the order of the log.

    17 [2,1,3]        candidate one of impression 17 is ranked second, candidate two first, candidate three third

MIND calls the file `prediction.txt`, EB-NeRD `predictions.txt`. Impression ids may repeat (EB-NeRD's test split
does), so lines are matched by position. Writing and checking stream: the text is never in memory as a whole.
"""

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from speedyfeed.errors import InputError
from speedyfeed.evaluation.metrics import ranks_of
from speedyfeed.files import new_file
from speedyfeed.ragged import Ragged, offsets_of

_ROWS = 1 << 14  # impressions ranked at a time
_LINE = re.compile(r"(\S+) \[((?:[1-9][0-9]*(?:,[1-9][0-9]*)*)?)\]\n?")

NAMES = ("prediction.txt", "predictions.txt")
"""Names of the text file on the leaderboards of MIND and of EB-NeRD."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """An impression that a line of the file must rank."""

    impression_id: str
    """Id of the impression in the log."""
    num_candidates: int
    """Number of candidates to rank."""


def submission_name(log_format: str) -> str:
    """Name of the text file that the leaderboard of a log format expects in the zip."""
    return NAMES[log_format == "ebnerd"]


def write_submission(path: Path, name: str, impression_ids: Sequence[str], scores: Ragged) -> None:
    """Rank the candidates of each impression by score, ties by the order listed; the zip appears when complete.

    The same scores give the same bytes.
    """
    assert len(impression_ids) == len(scores), (len(impression_ids), len(scores))
    if name == NAMES[0] and len(set(impression_ids)) < len(impression_ids):
        twice, count = Counter(impression_ids).most_common(1)[0]
        raise InputError(f"impression {twice}: is {count} times in the log, expected once; give each its own id")
    entry = zipfile.ZipInfo(name)  # dated 1980, whenever it is written
    entry.compress_type = zipfile.ZIP_DEFLATED
    with (
        new_file(path) as partial,
        zipfile.ZipFile(partial, "w") as archive,
        archive.open(entry, "w", force_zip64=True) as file,
    ):
        for start in range(0, len(scores), _ROWS):
            some = _rows(scores, start, min(start + _ROWS, len(scores)))
            ranks = Ragged(values=ranks_of(some), offsets=some.offsets)
            ids = impression_ids[start : start + _ROWS]
            lines = [f"{key} [{','.join(map(str, row.tolist()))}]\n" for key, row in zip(ids, ranks, strict=True)]
            file.write("".join(lines).encode())


def check_submission(path: Path, log: Iterable[Shown] | None = None, name: str | None = None) -> int:
    """Check a leaderboard file and raise at its first bad line; returns the number of lines.

    Without a log, lines are checked on their own; without a name, that of either leaderboard is accepted.
    """
    names = NAMES if name is None else (name,)
    expected = " or ".join(names)
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.namelist()
            if len(found) != 1 or found[0] not in names:
                listed = ", ".join(found[:5]) or "nothing"
                raise InputError(f"{path}: found {listed} in the zip, expected {expected} alone, at its top")
            with archive.open(found[0]) as file:
                return _check_lines(f"{path}: {found[0]}", file, log)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: not a whole zip file ({error}); expected a zip with {expected} at its top"
        ) from error


def _check_lines(where: str, file: IO[bytes], log: Iterable[Shown] | None) -> int:
    number = 0
    seen: set[bytes] = set()
    may_repeat = where.endswith(NAMES[1])
    rest = None if log is None else iter(log)
    for number, line in enumerate(file, start=1):
        shown = None if rest is None else next(rest, None)
        if rest is not None and shown is None:
            raise InputError(
                f"{where}:{number}: found {_quoted(line)} after the last impression, expected the end"
            )
        _check_line(f"{where}:{number}", line, shown)
        key = line.split(b" ", 1)[0]
        if key in seen and not may_repeat:
            raise InputError(f"{where}:{number}: found impression {key.decode()} again, expected each once")
        seen.add(key)
    if rest is not None and (missing := next(rest, None)) is not None:
        raise InputError(
            f"{where}:{number + 1}: found the end, expected impression {missing.impression_id} "
            f"({1 + sum(1 for _ in rest)} missing)"
        )
    if rest is None and not number:
        raise InputError(f"{where}: found an empty file, expected a line per impression")
    return number


def _check_line(where: str, line: bytes, shown: Shown | None) -> None:
    match = _LINE.fullmatch(line.decode(errors="replace"))
    if match is None:
        key, num = (shown.impression_id, min(shown.num_candidates, 3)) if shown else ("17", 3)
        example = f"{key} [{','.join(map(str, range(1, num + 1)))}]"
        raise InputError(
            f"{where}: found {_quoted(line)}, expected a line like {example!r}: no spaces in brackets"
        )
    found_id, listed = match.groups()
    ranks = [int(rank) for rank in listed.split(",")] if listed else []
    if shown is not None and found_id != shown.impression_id:
        raise InputError(
            f"{where}: found impression {found_id}, expected {shown.impression_id}: keep the order of the log, "
            "skip none"
        )
    if shown is not None and len(ranks) != shown.num_candidates:
        raise InputError(f"{where}: found {len(ranks)} ranks, expected {shown.num_candidates}, one per candidate")
    if sorted(ranks) != list(range(1, len(ranks) + 1)):
        raise InputError(f"{where}: found ranks {_quoted(line)}, expected each of 1 to {len(ranks)} once")


def _quoted(line: bytes) -> str:
    """The beginning of a line, quoted."""
    text = repr(line.decode(errors="replace").removesuffix("\n"))
    return text if len(text) <= 60 else f"{text[:60]}..."


def _rows(table: Ragged, start: int, end: int) -> Ragged:
    """Rows `start` to `end`, without copying their values."""
    offsets = table.offsets[start : end + 1]
    return Ragged(values=table.values[offsets[0] : offsets[-1]], offsets=offsets_of(np.diff(offsets)))
