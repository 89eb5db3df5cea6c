"""Readers that turn raw logs into canonical tables; docs/formats.md describes each format.

Opening uses file names only. Reading streams Arrow batches of some thousand rows, checks every row, and reports
the first broken line as `path:line: found X, expected Y; what to do`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers import adressa, ebnerd, interactions, mind, msnews, parquet, speedyrec
from speedyfeed.data.readers.folders import find_splits
from speedyfeed.data.tables import TO_RANK, Logs, Split, choose_split
from speedyfeed.errors import InputError


class Reader(Protocol):
    """Interface of the modules of this package: one reader per format."""

    FILES: str
    """Files a folder of this format must have, for messages."""

    def recognises(self, folder: Path) -> bool:
        """Whether the files of the folder are named as in this format."""
        ...

    def open_splits(self, folder: Path) -> tuple[Split, ...]:
        """Splits of the folder, in the order train, valid, dev, test, not yet read."""
        ...


READERS: dict[str, Reader] = {
    "mind": mind,
    "msnews": msnews,
    "speedyrec": speedyrec,
    "ebnerd": ebnerd,
    "adressa": adressa,
    "parquet": parquet,
    "interactions": interactions,
}

FORMATS = tuple(READERS)
MAX_SHOWN = 10
"""Number of files that the message about an unknown folder names."""

MADE_HERE = {"a prepared store": ("manifest.json", "news"), "a training run": ("run.json", "metrics.jsonl")}
"""What this program makes, and the names by which it is told from logs."""


def open_logs(
    folder: Path, format: str | None = None, options: ReaderOptions | None = None, *, is_whole: bool = False
) -> Logs:
    """Open all splits of a folder of logs, in the order train, valid, dev, test; None recognises the format.

    Options are for logs of interactions; other formats have no use for them. With `is_whole`, such a log is not
    split: all of it is to be ranked.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: found no such folder, expected a folder of logs; check the path")
    if format is None:
        format = "interactions" if options is not None and options.tables else _recognise(folder)
    elif format not in READERS:
        raise InputError(f"format {format!r}: found no such format, expected {_expected()}; choose one of them")
    if format == "interactions":
        options = options or ReaderOptions()
        if is_whole:
            options = replace(options, split=None, dev_from=None)
            return Logs(format=format, splits=interactions.open_whole(folder, options), options=options)
        options = replace(options, split=options.split_by)
        return Logs(format=format, splits=interactions.open_splits(folder, options), options=options)
    return Logs(format=format, splits=READERS[format].open_splits(folder))


def open_split(
    folder: Path,
    split: str | None = None,
    format: str | None = None,
    *,
    prefer: Sequence[str] = TO_RANK,
    options: ReaderOptions | None = None,
) -> Logs:
    """Open one split to rank, preceded by the train split if there is one, which may hold its histories.

    The split is `split`, or the first preferred one that exists. A folder that is itself a split may have any
    name; so may a log of interactions, which is one split here, however the options split it to train.
    """
    logs = open_logs(folder, format, options, is_whole=True)
    if len(logs.splits) == 1 and not find_splits(folder):
        own = logs.splits[0].name
        name = split or (own if own in TO_RANK else prefer[0])
        return replace(logs, splits=(replace(logs.splits[0], name=name),))
    chosen = choose_split(folder, [part.name for part in logs.splits], split, prefer=prefer)
    return replace(logs, splits=tuple(part for part in logs.splits if part.name in ("train", chosen)))


def _recognise(folder: Path) -> str:
    for kind, names in MADE_HERE.items():
        if all((folder / name).exists() for name in names):
            raise InputError(f"{folder}: found {kind}, expected raw logs; give the folder it was made from")
    for name, reader in READERS.items():
        if reader.recognises(folder):
            return name
    files = ", ".join(sorted(path.name for path in folder.iterdir())[:MAX_SHOWN]) or "none"
    raise InputError(
        f"{folder}: found logs of no known format (files: {files}), expected {_expected()}; check the folder, or "
        "save the tables as CSV with a header"
    )


def _expected() -> str:
    return "one of " + " | ".join(f"{name}: {reader.FILES}" for name, reader in READERS.items())
