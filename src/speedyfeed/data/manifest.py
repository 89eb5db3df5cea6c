"""The manifest of a store: how and from what it was prepared, what it holds, and the checksum of every file.

    manifest.json  {"store_version": 4, "settings": ..., "inputs": ..., "splits": ..., "statistics": ...,
                    "counts": ..., "files": ...}

A part of it, `TextFacts`, travels with every model trained on the store, so that later articles are treated alike.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speedyfeed.checksums import SEAL, damaged, is_intact, seal, sha256
from speedyfeed.data.reader_options import ReaderOptions, reader_options_of
from speedyfeed.errors import InputError, command
from speedyfeed.files import read_json, write_json

STORE_VERSION = 4
TEXT_VERSION = 2
"""Number of the code that turns texts into tokens: raised when the same text and settings give other tokens."""
MANIFEST = "manifest.json"
REMEDY = "remove the store and prepare the log again"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """Settings a store was prepared with."""

    format: str
    """Format of the raw logs."""
    encoder: str
    """Encoder whose tokenizer was used: a name, a folder or a Hub id."""
    tokenizer: str
    """Checksum of that tokenizer."""
    refine: Literal["bm25", "long", "none"]
    """Whether each field was reduced to its most informative words, always, where it was too long, or never."""
    fields: tuple[str, ...]
    """Text fields that were read, in order."""
    segment_tokens: int
    """Maximum tokens of a segment, special tokens included."""
    body_segments: int
    """Maximum segments of a body."""
    body_paragraphs: int = 0
    """Maximum paragraphs of a body that were read; 0 for all."""
    tables: str = ""
    """Files named as the tables of a log of interactions; empty where they were found."""
    columns: str = ""
    """Columns named by their meaning, as `user=visitor`; empty where the usual names were found."""
    charset: str | None = None
    """Encoding of the text files of a log of interactions; None for UTF-8."""
    dates: Literal["day-first", "month-first"] | None = None
    """Order of dates as 01/02/2026, where it was given."""
    events: str = ""
    """Events that were clicks; empty where all were."""
    min_weight: float | None = None
    """Smallest weight or rating of a click; None where every row was one."""
    skip_broken: bool = False
    """Whether rows that could not be read were left out."""
    split: Literal["time", "last"] | None = None
    """How a log of interactions was split; None for logs that come in splits."""
    dev_from: str | None = None
    """Time at which dev begins, where it was asked for."""
    validation: float | None = None
    """Share of the train impressions that was to be set aside for validation; None for the default."""
    like: str | None = None
    """Checksum of the manifest of the store whose text rules were used; None where it made its own."""
    text_version: int = 1
    """Number of the code that turned its texts into tokens (`TEXT_VERSION`); version 1 was not written down."""

    @property
    def reader_options(self) -> ReaderOptions:
        """Options of the log reader."""
        return reader_options_of(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StoreSettings":
        """Settings as `dataclasses.asdict` and JSON saved them."""
        names = [one.name for one in dataclasses.fields(cls) if one.name in value]
        return cls(**{name: value[name] for name in names} | {"fields": tuple(value["fields"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionStatistics:
    """Figures of a collection that BM25 needs, beside its document frequencies."""

    num_news: int
    mean_words: tuple[float, ...]
    """Mean number of words of each field, stop words excluded."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> "CollectionStatistics | None":
        """Statistics as saved; None where texts were not refined."""
        return None if value is None else cls(num_news=value["num_news"], mean_words=tuple(value["mean_words"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFacts:
    """Facts that decide which tokens a text becomes, beside the tokenizer and the document frequencies."""

    settings: StoreSettings
    statistics: CollectionStatistics | None
    """None where texts are not refined."""
    vocabulary_checksum: str | None
    """Checksum of the tokenizer of the store's word vocabulary; None where the store has none."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `text.json` and `run.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TextFacts":
        """Facts as `to_json` gave them."""
        return cls(
            settings=StoreSettings.from_json(value["settings"]),
            statistics=CollectionStatistics.from_json(value["statistics"]),
            vocabulary_checksum=value["vocabulary_checksum"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsCounts:
    """Articles read from the logs and articles in the store."""

    read: int
    kept: int
    repeated: int
    """Rows dropped because a later row has the same article."""
    without_words: int
    """Articles in the store whose fields hold no token."""
    in_train: int
    """Articles that the train impressions refer to. They have the first numbers, and whatever is fitted to
    articles sees no others; 0 in a store that is not to train on."""
    changed: int = 0
    """Articles whose text differs between rows; that of the last row is used."""
    texts_with_markup: int = 0
    """Titles, abstracts and bodies read that HTML tags or entities were taken out of."""
    texts_decomposed: int = 0
    """Titles, abstracts and bodies read whose accents were characters of their own, and were combined (NFC)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitCounts:
    """Rows and ids of one split that were read, kept and dropped, by what they are."""

    read: dict[str, int]
    kept: dict[str, int]
    dropped: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetAside:
    """Train impressions that were set aside as the validation split."""

    impressions: int
    first_time: str | None
    """Time of the first of them; None where the log has no times and each user's last impression was taken."""
    last_time: str | None
    """Time of the last of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreCounts:
    """Everything read is either kept or counted as dropped."""

    news: NewsCounts
    splits: dict[str, SplitCounts]
    vocabulary_size: int | None
    """Words in the store's vocabulary; None where the store has none."""
    notes: tuple[str, ...] = ()
    """Statements of the log reader: how it split the log, and what it left out."""
    set_aside: SetAside | None = None
    """Validation split taken from train; None where the log has its own, or none was wanted."""
    clicked_and_skipped: int = 0
    """Articles that an impression listed both as clicked and as skipped; they count as clicked, once."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StoreCounts":
        """Counts as `dataclasses.asdict` and JSON saved them."""
        return cls(
            news=NewsCounts(**value["news"]),
            splits={name: SplitCounts(**counts) for name, counts in value["splits"].items()},
            vocabulary_size=value["vocabulary_size"],
            notes=tuple(value.get("notes", ())),
            set_aside=None if value["set_aside"] is None else SetAside(**value["set_aside"]),
            clicked_and_skipped=value.get("clicked_and_skipped", 0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """Size in bytes and checksum of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Typed contents of a store's `manifest.json`."""

    settings: StoreSettings
    inputs: dict[str, str]
    """Checksum of every raw log file, by its name below the folder of logs."""
    splits: tuple[str, ...]
    """Splits of the store: some of train, valid, dev and test."""
    statistics: CollectionStatistics | None
    """None where texts were not refined."""
    counts: StoreCounts
    files: dict[str, FileFacts]
    """Facts of every file of the store but the manifest, by its name below the store."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `manifest.json`, the store's version first."""
        return {"store_version": STORE_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Manifest":
        """The manifest as `to_json` gave it; other keys are ignored."""
        return cls(
            settings=StoreSettings.from_json(value["settings"]),
            inputs=dict(value["inputs"]),
            splits=tuple(value["splits"]),
            statistics=CollectionStatistics.from_json(value["statistics"]),
            counts=StoreCounts.from_json(value["counts"]),
            files={name: FileFacts(**facts) for name, facts in value["files"].items()},
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a store."""
    write_json(folder / MANIFEST, seal(manifest.to_json()))


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store; a folder without one, or of another store version, is refused."""
    try:
        value = read_json(path / MANIFEST)
        version = value["store_version"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: not a store; {_make_one(path)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path / MANIFEST, REMEDY) from error
    if version != STORE_VERSION:
        raise InputError(f"{path}: found a store of version {version}, expected {STORE_VERSION}; {REMEDY}")
    if not is_intact(value):
        raise damaged(path / MANIFEST, REMEDY)
    try:
        return Manifest.from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if SEAL not in value:
            raise damaged(path / MANIFEST, REMEDY) from error
        raise InputError(
            f"{path}: was prepared by another version of speedyfeed (its manifest lacks or adds {error}); {REMEDY}"
        ) from error


def _make_one(path: Path) -> str:
    """Advice on how to make a store where there is none; one is not made over files of somebody else."""
    is_taken = path.is_file() or (path.is_dir() and any(path.iterdir()))
    folder = f"{path}-store" if is_taken else path
    return f"{'it holds other files; ' if is_taken else ''}make one with: {command('prepare', 'LOGS', folder)}"


def file_facts(folder: Path) -> dict[str, FileFacts]:
    """Size and checksum of every file below a folder, by relative name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): FileFacts(bytes=file.stat().st_size, sha256=sha256(file))
        for file in files
    }
