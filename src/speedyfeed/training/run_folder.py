"""A run folder: where everything of a training run is, and what it was started with.

RUN/
  run.json        settings, store, precision, versions: what ran
  words.parquet   document frequencies, so that later news are refined alike
  metrics.jsonl   a line per logged step; tensorboard/ has the same
  checkpoints/    step-N/: all it takes to resume; the newest few
  initial.safetensors  the weights it began with, to be blended with the last
  best/           step-N/: the model that validated best so far
  model/          the finished recommender with its news and how they were prepared, written last
  index/          the graphs of the last evaluation
"""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from speedyfeed import __version__
from speedyfeed.data.store import MANIFEST, Store
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, write_json
from speedyfeed.training.config import RunConfig

RUN = "run.json"


class RunFolder:
    """The paths of a run, and its `run.json`."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts = facts
        self.checkpoints = path / "checkpoints"
        self.initial_weights = path / "initial.safetensors"
        self.best = path / "best"
        self.model = path / "model"
        self.words = path / "words.parquet"

    @property
    def config(self) -> RunConfig:
        """What it was started with."""
        saved = self.facts["config"]
        parts = {part.name: part.default_factory for part in dataclasses.fields(RunConfig)}
        return RunConfig(**{name: type(make())(**saved[name]) for name, make in parts.items()})  # type: ignore[operator]

    def note(self, **facts: Any) -> None:
        """Add to `run.json`."""
        self.facts |= facts
        partial = self.path / f"{RUN}.partial"
        write_json(partial, self.facts)
        partial.replace(self.path / RUN)

    def require_store(self, store: Store) -> None:
        """Refuse any store but the one the run began with, as it was."""
        if fingerprint(store.path) != self.facts["store"]["fingerprint"]:
            raise InputError(
                f"{store.path}: is not the store this run began with ({self.facts['store']['path']}), or was "
                "prepared anew; give that one, or start another run"
            )


def start_run(path: Path, config: RunConfig, store: Store) -> RunFolder:
    """Make a run folder; one that has a run already is refused."""
    if (path / RUN).exists():
        raise InputError(f"{path}: has a run already; add --resume to go on with it, or give another folder")
    vocabulary = {"vocabulary": store.vocabulary} if config.recommender.reads_words else {}
    facts = {
        "speedyfeed": __version__,
        "config": _plain(config),
        "store": {"path": str(store.path.resolve()), "fingerprint": fingerprint(store.path)},
        "text": {name: store.manifest[name] for name in ("settings", "statistics")} | vocabulary,
    }
    with new_folder(path) as folder:
        write_json(folder / RUN, facts)
        if (store.path / "words.parquet").exists():
            shutil.copyfile(store.path / "words.parquet", folder / "words.parquet")
    return RunFolder(path, facts)


def open_run(path: Path) -> RunFolder:
    """A run folder that is there."""
    try:
        return RunFolder(path, json.loads((path / RUN).read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no run here; start one with: speedyfeed train STORE {path}") from error


def is_run_of(path: Path, config: RunConfig, store: Store) -> bool:
    """Whether a run with these settings on that store is there already."""
    if not (path / RUN).exists():
        return False
    facts = open_run(path).facts
    return bool(facts["config"] == _plain(config) and facts["store"]["fingerprint"] == fingerprint(store.path))


def fingerprint(store: Path) -> str:
    """Of a store: its manifest names the checksum of every file."""
    try:
        return hashlib.sha256((store / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{store}: the store is gone; put it back and resume") from error


def _plain(config: RunConfig) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
