"""A run folder: the files of a training run, and the facts about it in run.json.

RUN/
  run.json             settings, store, precision and version of the run
  document_frequencies.parquet   number of articles each word occurs in, used to refine articles that come later
  metrics.jsonl        one line per logged step; tensorboard/ holds the same values
  checkpoints/         step-N/: everything needed to resume; the newest few
  best/                step-N/: the model with the best validation AUC so far
  model/               the finished recommender with its catalogue and its text settings, written last
  index/               HNSW graphs of the last evaluation
"""

import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speedyfeed import __version__
from speedyfeed.checksums import SEAL, damaged, is_intact, seal, sha256
from speedyfeed.data.manifest import MANIFEST, TextFacts
from speedyfeed.data.store import DOCUMENT_FREQUENCIES, Store
from speedyfeed.errors import InputError, command
from speedyfeed.files import new_folder, read_json, write_json
from speedyfeed.saved_model import find_recommender
from speedyfeed.training.config import RunConfig

RUN = "run.json"
AGAIN = "put it back from a copy, or train in another folder"
"""Advice where a file is lost that only training makes."""
RUN_VERSION = 2
"""Layout of run.json; runs of other layouts are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreReference:
    """The store a run trains on, and the fingerprint by which it is recognized."""

    path: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionFact:
    """The precision a run trains in, why it was chosen, and on which device."""

    name: str
    reason: str
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about a run, as run.json records them."""

    config: RunConfig
    """Settings the run was started with."""
    store: StoreReference
    """Store the run trains on."""
    text: TextFacts
    """Facts that decide which tokens a text becomes, taken from that store."""
    speedyfeed: str = __version__
    """Version of the program that started the run."""
    precision: PrecisionFact | None = None
    """Precision of training; None until the first step is prepared."""
    word_vectors: dict[str, int] = field(default_factory=dict)
    """Counts of words in all and of words with a pretrained vector; empty where words start at random."""
    warm_start: str | None = None
    """Finished run whose weights this run begins with; None for a run from pretrained or random weights."""
    taken_over: dict[str, dict[str, int]] = field(default_factory=dict)
    """Numbers of `known` and `new` users, categories and words of a warm start; empty without one."""
    best_auc: float | None = None
    """Best validation AUC; None until training ends."""
    best_clicks: float | None = None
    """Clicks learned from when it was measured; None until training ends."""

    def to_json(self) -> dict[str, Any]:
        """Plain values of all facts, with the version of the layout."""
        facts = dataclasses.asdict(self) | {"config": plain_config(self.config)}
        return {"run_version": RUN_VERSION, **facts}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "RunFacts":
        """Facts from what `to_json` gave; KeyError, TypeError or ValueError where it did not."""
        values = {name: value for name, value in values.items() if name != SEAL}
        if values.pop("run_version", None) != RUN_VERSION:
            raise ValueError("another run_version")
        precision = values["precision"]
        return cls(
            **values
            | {
                "config": _config_from(values["config"]),
                "store": StoreReference(**values["store"]),
                "text": TextFacts.from_json(values["text"]),
                "precision": None if precision is None else PrecisionFact(**precision),
            }
        )


class RunFolder:
    """Paths of a run and the facts about it."""

    def __init__(self, path: Path, facts: RunFacts) -> None:
        self.path = path
        self.facts = facts
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.model = path / "model"
        self.document_frequencies = path / DOCUMENT_FREQUENCIES

    @property
    def config(self) -> RunConfig:
        """Settings the run was started with."""
        return self.facts.config

    def note(self, **facts: Any) -> None:
        """Set some of the facts, and write run.json anew."""
        self.facts = dataclasses.replace(self.facts, **facts)
        partial = self.path / f"{RUN}.partial"
        write_json(partial, seal(self.facts.to_json()))
        partial.replace(self.path / RUN)

    def require_store(self, store: Store) -> None:
        """Refuse any store but the one the run was started with, unchanged."""
        if fingerprint(store.path) != self.facts.store.fingerprint:
            raise InputError(
                f"{store.path}: is not the store this run began with ({self.facts.store.path}), or was "
                "prepared anew; give that one, or start another run"
            )
        copied = store.manifest.files.get(DOCUMENT_FREQUENCIES)
        if copied is not None and sha256(self.document_frequencies) != copied.sha256:
            raise damaged(
                self.document_frequencies, f"copy it from the store: {store.path / DOCUMENT_FREQUENCIES}"
            )


def start_run(
    path: str | Path, config: RunConfig, store: Store, *, warm_start: str | Path | None = None
) -> RunFolder:
    """Create a run folder; a folder that holds a run already is refused.

    Settings whose default depends on the log are saved as they are for this one.
    `warm_start` is a finished run whose weights the new one begins with.
    """
    path = Path(path)
    if (path / RUN).exists():
        raise InputError(f"{path}: has a run already; add --resume to go on with it, or give another folder")
    if warm_start is not None:
        find_recommender(warm_start)
    facts = RunFacts(
        config=config.for_log(store.train, store.num_news),
        store=StoreReference(path=str(store.path.resolve()), fingerprint=fingerprint(store.path)),
        text=store.text_facts,
        warm_start=None if warm_start is None else str(_absolute(Path(warm_start))),
    )
    with new_folder(path) as folder:
        write_json(folder / RUN, seal(facts.to_json()))
        if store.document_frequencies.exists():
            shutil.copyfile(store.document_frequencies, folder / DOCUMENT_FREQUENCIES)
    return RunFolder(path, facts)


def _absolute(path: Path) -> Path:
    """Absolute path of what exists; anything else is a name on the Hub."""
    return path.resolve() if path.exists() else path


def open_run(path: str | Path) -> RunFolder:
    """Open an existing run folder."""
    path = Path(path)
    try:
        values = read_json(path / RUN)
        is_whole = is_intact(values)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no run here; start one with: {command('train', 'STORE', path)}") from error
    except (ValueError, TypeError) as error:
        raise damaged(path / RUN, AGAIN) from error
    if not is_whole:
        raise damaged(path / RUN, AGAIN)
    try:
        return RunFolder(path, RunFacts.from_json(values))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is a run of an older layout; train it again") from error


def is_run_of(path: Path, config: RunConfig, store: Store) -> bool:
    """Whether the folder holds a run with these settings on that store."""
    if not (path / RUN).exists():
        return False
    facts = open_run(path).facts
    config = config.for_log(store.train, store.num_news)
    return plain_config(facts.config) == plain_config(config) and facts.store.fingerprint == fingerprint(
        store.path
    )


def fingerprint(store: Path) -> str:
    """Checksum of a store's manifest, which names the checksum of every file."""
    try:
        return hashlib.sha256((store / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{store}: the store is gone; put it back and resume") from error


def plain_config(config: RunConfig) -> dict[str, Any]:
    """Settings of a run as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return plain


def _config_from(saved: dict[str, Any]) -> RunConfig:
    parts = {part.name: part.default_factory for part in dataclasses.fields(RunConfig)}
    if saved.keys() != parts.keys():
        raise KeyError(f"parts {sorted(saved)}, expected {sorted(parts)}")
    return RunConfig(**{name: type(make())(**saved[name]) for name, make in parts.items()})  # type: ignore[operator]
