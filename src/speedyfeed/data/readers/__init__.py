"""Raw logs of any known format as canonical tables; see docs/formats.md for what each format looks like.

Opening looks at file names only. Reading streams Arrow batches of some thousand rows, checks every one of
them, and reports the first broken line as `path:line: found X, expected Y; what to do`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from speedyfeed.data.readers import adressa, ebnerd, mind, msnews, parquet, speedyrec
from speedyfeed.data.readers.folders import find_splits
from speedyfeed.data.tables import TO_RANK, Logs, Split, choose_split
from speedyfeed.errors import InputError


class Reader(Protocol):
    """What a module of this package offers for its format."""

    FILES: str
    """What the folder must hold, for messages."""

    def recognises(self, folder: Path) -> bool: ...
    def open_splits(self, folder: Path) -> tuple[Split, ...]: ...


_READERS: Mapping[str, Reader] = {
    "mind": mind,
    "msnews": msnews,
    "speedyrec": speedyrec,
    "ebnerd": ebnerd,
    "adressa": adressa,
    "parquet": parquet,
}

FORMATS = tuple(_READERS)


def open_logs(folder: Path, format: str | None = None) -> Logs:
    """The splits of a folder of logs, in the order train, dev, test; format None is recognised by its files."""
    if not folder.is_dir():
        raise InputError(f"{folder}: found no such folder, expected a folder of logs; check the path")
    if format is None:
        format = _recognise(folder)
    elif format not in _READERS:
        raise InputError(f"format {format!r}: found no such format, expected {_expected()}; choose one of them")
    return Logs(format=format, splits=_READERS[format].open_splits(folder))


def open_split(
    folder: Path, split: str | None = None, format: str | None = None, *, prefer: Sequence[str] = TO_RANK
) -> Logs:
    """One split to rank, the last, and before it the train split, if any: some logs keep histories only there.

    The split asked for, or the preferred one that is there. A folder that is itself a split goes by any name.
    """
    logs = open_logs(folder, format)
    if len(logs.splits) == 1 and not find_splits(folder):
        own = logs.splits[0].name
        name = split or (own if own in TO_RANK else prefer[0])
        return replace(logs, splits=(replace(logs.splits[0], name=name),))
    chosen = choose_split(folder, [part.name for part in logs.splits], split, prefer=prefer)
    return replace(logs, splits=tuple(part for part in logs.splits if part.name in ("train", chosen)))


def _recognise(folder: Path) -> str:
    for name, reader in _READERS.items():
        if reader.recognises(folder):
            return name
    raise InputError(f"{folder}: found logs of no known format, expected {_expected()}; check the folder")


def _expected() -> str:
    return "one of " + " | ".join(f"{name}: {reader.FILES}" for name, reader in _READERS.items())
