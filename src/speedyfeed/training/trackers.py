"""Experiment trackers by name: each gets the metrics and the settings of a run, beside `metrics.jsonl`.

    name         files, unless its own environment variables say otherwise
    tensorboard  RUN/tensorboard
    wandb        RUN/wandb, and the service; nothing is sent with WANDB_MODE=offline
    mlflow       RUN/mlruns, or MLFLOW_TRACKING_URI
    trackio      the folder TRACKIO_DIR, or its own in the cache of Hugging Face

A package is imported when a run uses it. A resumed run continues what it had begun: `trackers.json` has its ids.
"""

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any, Protocol

from speedyfeed.errors import InputError
from speedyfeed.files import read_json, write_json

DEFAULT = "tensorboard"
PROJECT = "speedyfeed"
IDS = "trackers.json"


class Tracker(Protocol):
    """Receives the metrics of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a step."""
        ...

    def close(self) -> None:
        """Write what is left and end the recording."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """Facts about a run that trackers record."""

    folder: Path
    settings: Mapping[str, Any]
    """Settings by name; those of a part are a mapping of their own."""
    resume_step: int
    """Last step that a resumed run does not repeat; -1 for a new run."""

    def remember(self, tracker: str, make: Callable[[], str]) -> str:
        """Return the id that the run has with a tracker; a new one is made and saved first."""
        path = self.folder / IDS
        ids = read_json(path) if path.exists() else {}
        if tracker not in ids:
            ids[tracker] = make()
            write_json(path, ids)
        return str(ids[tracker])


def parse_trackers(names: str) -> tuple[str, ...]:
    """Names of trackers, separated by commas; empty or `none` for no tracker. Their packages must be installed."""
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip() not in ("", "none")))
    for name in chosen:
        if name not in TRACKERS:
            raise InputError(
                f"--track {names}: found {name!r}, expected some of {', '.join(TRACKERS)} or none; correct it"
            )
        if find_spec(name) is None:
            raise InputError(
                f"--track {name}: found no package {name}, expected it installed; pip install 'speedyfeed[{name}]'"
            )
    return chosen


def open_trackers(names: Sequence[str], run: TrackedRun) -> list[Tracker]:
    """Open trackers for a run, in the order of their names."""
    return [TRACKERS[name](run) for name in names]


@contextmanager
def _reporting(name: str, kind: type[Exception]) -> Iterator[None]:
    """Report errors of a tracker's own kind, such as a missing login or a lost service, in one line."""
    try:
        yield
    except kind as error:
        raise InputError(
            f"--track {name}: {error}; correct it, or leave {name} out: what was trained goes on with --resume"
        ) from error


class _TensorBoard:
    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / DEFAULT), purge_step=run.resume_step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._reporting = partial(_reporting, "wandb", wandb.Error)
        with self._reporting():
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run.folder.name,
                dir=str(run.folder),
                id=run.remember("wandb", lambda: secrets.token_hex(4)),
                resume="allow",
                config=dict(run.settings),
                settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._reporting():
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        with self._reporting():
            self._run.finish()


class _MLflow:
    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._reporting = partial(_reporting, "mlflow", MlflowException)

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = (run.folder / "mlruns").absolute().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files are what belongs into a run folder

        def start() -> str:
            client = self._client
            experiment = client.get_experiment_by_name(PROJECT)
            number = client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
            started = client.create_run(number, run_name=run.folder.name).info.run_id
            settings = [Param(name, str(value)) for name, value in _flat(run.settings)]
            for first in range(0, len(settings), 100):  # as many as one request may have
                client.log_batch(started, params=settings[first : first + 100])
            return str(started)

        with self._reporting():
            self._client = MlflowClient(tracking_uri=uri)
            self._run_id = run.remember("mlflow", start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time())
        names = {name: re.sub(r"[^\w./ -]", "_", name) for name in values}
        metrics = [Metric(names[name], float(value), now, step) for name, value in values.items()]
        with self._reporting():
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        with self._reporting():
            self._client.set_terminated(self._run_id)


class _Trackio:
    def __init__(self, run: TrackedRun) -> None:
        import trackio

        name = run.remember("trackio", lambda: f"{run.folder.name}-{secrets.token_hex(4)}")
        with redirect_stdout(sys.stderr):  # where results are printed, it must not speak
            self._run = trackio.init(project=PROJECT, name=name, config=dict(_flat(run.settings)), resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import trackio

        with redirect_stdout(sys.stderr):
            trackio.finish()


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
    "trackio": _Trackio,
}
"""Every tracker by its name, which is that of its package."""


def _flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Settings of all parts in one list: `news.encoder` is the setting `encoder` of the part `news`."""
    flat: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{before}{name}.")
        else:
            flat.append((f"{before}{name}", value))
    return flat
