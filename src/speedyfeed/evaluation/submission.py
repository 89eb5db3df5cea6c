"""Leaderboard files: a zip with one text file, a line per impression in the order of the log.

    17 [2,1,3]        candidate one of impression 17 is ranked second, candidate two first, candidate three third

MIND calls the file `prediction.txt`, EB-NeRD `predictions.txt`. Impression ids may repeat (EB-NeRD's test split
does), so lines are matched by place. Writing and checking stream: the text is never in memory as a whole.
"""

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from speedyfeed.errors import InputError
from speedyfeed.evaluation.metrics import ranks_of
from speedyfeed.ragged import Ragged, offsets_of

_ROWS = 1 << 14  # impressions ranked at a time
_LINE = re.compile(r"(\S+) \[((?:[1-9][0-9]*(?:,[1-9][0-9]*)*)?)\]\n?")


def submission_name(log_format: str) -> str:
    """What the leaderboard of a log format wants the file in the zip to be called."""
    return "predictions.txt" if log_format == "ebnerd" else "prediction.txt"


def write_submission(path: Path, name: str, impression_ids: Sequence[str], scores: Ragged) -> None:
    """Rank the candidates of each impression by score, ties by the order listed; the zip appears when complete.

    The same scores give the same bytes.
    """
    assert len(impression_ids) == len(scores), (len(impression_ids), len(scores))
    entry = zipfile.ZipInfo(name)  # dated 1980, whenever it is written
    entry.compress_type = zipfile.ZIP_DEFLATED
    with (
        _new_file(path) as partial,
        zipfile.ZipFile(partial, "w") as archive,
        archive.open(entry, "w", force_zip64=True) as file,
    ):
        for start in range(0, len(scores), _ROWS):
            some = _rows(scores, start, min(start + _ROWS, len(scores)))
            ranks = Ragged(values=ranks_of(some), offsets=some.offsets)
            ids = impression_ids[start : start + _ROWS]
            lines = [f"{key} [{','.join(map(str, row.tolist()))}]\n" for key, row in zip(ids, ranks, strict=True)]
            file.write("".join(lines).encode())


def check_submission(
    path: Path, name: str, impression_ids: Sequence[str], num_candidates: NDArray[np.integer]
) -> None:
    """Refuse a file that the leaderboard would refuse or misread, naming the first bad line."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.namelist() != [name]:
                found = ", ".join(archive.namelist()[:5]) or "nothing"
                raise InputError(f"{path}: found {found} in the zip, expected {name} alone, at its top")
            with archive.open(name) as file:
                _check_lines(f"{path}: {name}", file, impression_ids, num_candidates)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: not a whole zip file ({error}); expected a zip with {name} at its top"
        ) from error


def _check_lines(
    where: str, file: IO[bytes], impression_ids: Sequence[str], num_candidates: NDArray[np.integer]
) -> None:
    number = 0
    for number, line in enumerate(file, start=1):
        if number > len(impression_ids):
            raise InputError(
                f"{where}:{number}: found {_quoted(line)} after the last impression, expected the end"
            )
        _check_line(f"{where}:{number}", line, impression_ids[number - 1], int(num_candidates[number - 1]))
    if number < len(impression_ids):
        raise InputError(
            f"{where}:{number + 1}: found the end, expected impression {impression_ids[number]} "
            f"({len(impression_ids) - number} missing)"
        )


def _check_line(where: str, line: bytes, impression_id: str, num_candidates: int) -> None:
    match = _LINE.fullmatch(line.decode(errors="replace"))
    if match is None:
        example = f"{impression_id} [{','.join(map(str, range(1, min(num_candidates, 3) + 1)))}]"
        raise InputError(
            f"{where}: found {_quoted(line)}, expected a line like {example!r}: no spaces in brackets"
        )
    found_id, listed = match.groups()
    if found_id != impression_id:
        raise InputError(
            f"{where}: found impression {found_id}, expected {impression_id}: keep the order of the log, skip none"
        )
    ranks = [int(rank) for rank in listed.split(",")] if listed else []
    if len(ranks) != num_candidates:
        raise InputError(f"{where}: found {len(ranks)} ranks, expected {num_candidates}, one per candidate")
    if sorted(ranks) != list(range(1, num_candidates + 1)):
        raise InputError(f"{where}: found ranks {_quoted(line)}, expected each of 1 to {num_candidates} once")


def _quoted(line: bytes) -> str:
    """Enough of a line to recognise it by."""
    text = repr(line.decode(errors="replace").removesuffix("\n"))
    return text if len(text) <= 60 else f"{text[:60]}..."


def _rows(table: Ragged, start: int, end: int) -> Ragged:
    """Consecutive rows, their values not copied."""
    offsets = table.offsets[start : end + 1]
    return Ragged(values=table.values[offsets[0] : offsets[-1]], offsets=offsets_of(np.diff(offsets)))


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
