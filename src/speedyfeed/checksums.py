"""Checksums of files, so that a damaged one is named before anything is computed from it.

FOLDER/checksums.json   {"model.safetensors": "9f86d0...", ...}: SHA-256 of the files of the folder
{"...": ..., "sha256": "60303a..."}: a JSON object sealed by the checksum of all its other members
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from speedyfeed.errors import InputError
from speedyfeed.files import read_json

CHECKSUMS = "checksums.json"
SEAL = "sha256"
SHARED_BYTES = 1 << 16
"""Size from which equal files share their room on disk."""


def sha256(path: Path) -> str:
    """Checksum of a file's contents."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str] | None = None) -> None:
    """Record the checksums of the named files of a folder, by default of all below it."""
    if names is None:
        files = (file for file in folder.rglob("*") if file.is_file() and file != folder / CHECKSUMS)
        names = sorted(file.relative_to(folder).as_posix() for file in files)
    sums = {name: sha256(folder / name) for name in names}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")


def verify_checksums(folder: Path, remedy: str, *, needs_record: bool = False) -> None:
    """Compare the files of a folder with their recorded checksums; an error names the file.

    A folder without a record is taken as it is, unless `needs_record`: earlier versions wrote none.
    """
    path = folder / CHECKSUMS
    try:
        sums = read_json(path)
        names = list(sums.items())
    except FileNotFoundError as error:
        if needs_record:
            raise InputError(f"{path}: is missing, so nothing can be compared with it; {remedy}") from error
        return
    except (ValueError, AttributeError) as error:
        raise damaged(path, remedy) from error
    for name, expected in names:
        file = folder / name
        if not file.is_file():
            raise InputError(f"{file}: is missing; {remedy}")
        if sha256(file) != expected:
            raise damaged(file, remedy)


def share_equal(folder: Path, others: Iterable[Path]) -> None:
    """Replace files of a folder by hard links to equal ones of other folders, so that they take room once.

    Equal are files of the same name and recorded checksum; the other file is read to be sure. Files of a run are
    replaced, never changed in place, so that a link is as good as a copy. Without links in the system, both stay.
    """
    own = _recorded(folder)
    for other in others:
        for name, value in _recorded(other).items():
            file, twin = folder / name, other / name
            if own.get(name) != value or not twin.is_file() or twin.stat().st_size < SHARED_BYTES:
                continue
            if file.samefile(twin) or sha256(twin) != value:
                continue
            link = file.with_name(f".{file.name}.link")
            try:
                os.link(twin, link)
            except OSError:
                return
            link.replace(file)


def _recorded(folder: Path) -> dict[str, str]:
    """Checksums of a folder by file name; none where they cannot be read."""
    try:
        return dict(read_json(folder / CHECKSUMS))
    except (OSError, ValueError, TypeError):
        return {}


def damaged(path: Path, remedy: str) -> InputError:
    """Error for a file whose contents are not what was written."""
    return InputError(f"{path}: is damaged, its contents changed since it was written; {remedy}")


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum of a JSON object to it."""
    return {**value, SEAL: _checksum(value)}


def is_intact(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object is what was sealed; one without a seal is taken as it is."""
    return SEAL not in value or value[SEAL] == _checksum(value)


def _checksum(value: Mapping[str, Any]) -> str:
    others = {name: member for name, member in value.items() if name != SEAL}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
