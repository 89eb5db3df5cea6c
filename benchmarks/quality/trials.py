"""Runs to be compared: each variant with each seed in a folder of its own, trained and evaluated.

    OUT/NAME-SEED/     a run folder; beside the model it holds, once evaluated,
      trial.json       what the tables are made of
      values.parquet   every metric of every impression

What was evaluated before is read again, what was stopped or killed goes on, so a table can be made bit by bit
and grow by contenders and seeds.
"""

import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from speedyfeed.data.store import Store
from speedyfeed.errors import InputError
from speedyfeed.evaluation.bootstrap import compare
from speedyfeed.files import new_file, write_json
from speedyfeed.progress import progress_bars
from speedyfeed.run_evaluation import SEED, evaluate_run, open_data, open_finished, write_per_impression
from speedyfeed.training.loop import Watch, train
from speedyfeed.training.metrics import METRICS, load_rates
from speedyfeed.training.run_folder import RUN, RunConfig, RunFolder, open_run, start_run

log = logging.getLogger(__name__)

TRIAL = "trial.json"
VALUES = "values.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How long every run of a bench trains, and how it is looked at."""

    epochs: int = 1
    """Passes over all users."""
    steps: int | None = None
    """Batches, if that comes first."""
    minutes: float | None = None
    """Training time, validations not counted, if that comes first."""
    validations: int = 4
    """Points of a run's curve after its start; the best is kept. 0 keeps the last."""
    validation_impressions: int = 400
    """Dev impressions in the sample that the best is chosen by."""
    precision: str = "fp32"
    """The same for all runs: fp32, bf16, or auto, which measures at every start."""

    def limit(self, run: RunConfig) -> RunConfig:
        """The run within these limits."""
        limits = {name: getattr(self, name) for name in Limits.__dataclass_fields__}
        return replace(run, train=replace(run.train, max_checkpoints=1, **limits))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A run by name, to be had with any seed."""

    name: str
    config: RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationPoint:
    """A validation while training."""

    minutes: float
    """Time spent training so far."""
    clicks: int
    auc: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One contender with one seed, trained and evaluated."""

    seed: int
    metrics: dict[str, float | None]
    """Means over all impressions; None where no impression has a value."""
    steps: int
    epochs: float
    clicks: int
    """Learned from, each as often as it came by."""
    minutes: float
    """Spent training; looks at validation not counted."""
    cache_hit_rate: float | None
    """In the second half of the run; None where it was too short to tell."""
    precision: str
    curve: list[ValidationPoint]
    """Empty where nothing was validated; interpolates are no part of it."""
    best_clicks: int
    """What the model that was kept had learned from: 0 where no look found better than the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Over seeds."""

    mean: float | None
    std: float | None
    """Standard deviation of one seed (n - 1); None for a single one."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread":
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return cls(mean=None, std=None)
        return cls(mean=float(np.mean(known)), std=float(np.std(known, ddof=1)) if len(known) > 1 else None)

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.4f}" + ("" if self.std is None else f" ±{self.std:.4f}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much more one contender scores than another on the same impressions, seeds averaged."""

    mean: float
    ci95: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.ci95[0]:+.4f}, {self.ci95[1]:+.4f}]"


def run_trials(
    contenders: Sequence[Contender], seeds: Sequence[int], store: Store, out: Path, watch: Watch | None = None
) -> dict[str, list[Trial]]:
    """Every contender with every seed, by name; a seed of all before the next seed of any."""
    if not contenders or not seeds:
        raise InputError("nothing to run: name at least one run and one seed")
    trials: dict[str, list[Trial]] = {contender.name: [] for contender in contenders}
    num_trials = len(contenders) * len(seeds)
    for seed in seeds:
        for contender in contenders:
            done = sum(map(len, trials.values()))
            log.info("%s, seed %d (%d of %d)", contender.name, seed, done + 1, num_trials)
            trials[contender.name].append(run_trial(contender, seed, store, out, watch))
    return trials


def run_trial(contender: Contender, seed: int, store: Store, out: Path, watch: Watch | None = None) -> Trial:
    """The trial of a contender and a seed: read, or gone on with, or begun."""
    path = trial_path(out, contender.name, seed)
    run = _open_run(path, _seeded(contender.config, seed), store)
    if not (path / TRIAL).exists():
        _train_and_evaluate(run, store, watch)
        for spent in (run.checkpoints, run.best):  # a evaluated run is not gone on with
            shutil.rmtree(spent, ignore_errors=True)
    found = json.loads((path / TRIAL).read_text("utf-8"))
    return Trial(**found | {"curve": [ValidationPoint(**look) for look in found["curve"]]})


def trial_path(out: Path, name: str, seed: int) -> Path:
    """The run folder of a trial; an encoder may be named by a path."""
    return out / f"{name.replace('/', '-').replace(':', '-').strip('-')}-{seed}"


def load_values(path: Path, metric: str) -> NDArray[np.float64]:
    """A metric of every impression of a evaluated trial, in the order of the log; NaN where it has none."""
    column = pq.read_table(path / VALUES, columns=[metric])[metric]
    return np.asarray(column.to_numpy(), np.float64)


def compare_trials(a: Sequence[Path], b: Sequence[Path]) -> Difference:
    """AUC of the trials b above that of the trials a, paired by impression."""
    means = [np.mean([load_values(path, "auc") for path in paths], axis=0) for paths in (a, b)]
    found = compare(means[0], means[1], np.random.default_rng(SEED))
    return Difference(mean=found.mean, ci95=found.ci95)


def load_curve(run: Path, *, interpolates: bool = False) -> list[ValidationPoint]:
    """The validations of a run, in order; those of interpolates, which come last, only if asked for."""
    lines = [json.loads(line) for line in (run / METRICS).read_text("utf-8").splitlines()]
    return [
        ValidationPoint(minutes=line["seconds"] / 60, clicks=line["clicks"], auc=line["validation_auc"])
        for line in lines
        if "validation_auc" in line and (interpolates or "interpolation_alpha" not in line)
    ]


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, batch=replace(config.batch, seed=seed), train=replace(config.train, seed=seed))


def _open_run(path: Path, config: RunConfig, store: Store) -> RunFolder:
    """The run that is there, if it is the one asked for; else a new one."""
    if not (path / RUN).exists():
        return start_run(path, config, store)
    run = open_run(path)
    run.require_store(store)
    if run.config != config:
        raise InputError(
            f"{path}: was run with other settings; give them again, or another --out, or remove that folder"
        )
    return run


def _train_and_evaluate(run: RunFolder, store: Store, watch: Watch | None) -> None:
    with progress_bars() as report:
        outcome = train(run, store, report, watch=watch)
        if not outcome.is_finished:
            raise KeyboardInterrupt  # it was told to stop, and saved
        finished = open_finished(run.path)
        with open_data(finished, store.path, report=report) as data:
            evaluated = evaluate_run(finished, data, exact=True, report=report)
            write_per_impression(run.path / VALUES, data, evaluated)
    looks = load_curve(run.path, interpolates=True)
    means = {name: found.mean for name, found in evaluated.overall.metrics.items()}
    trial = Trial(
        seed=run.config.train.seed,
        metrics={name: None if math.isnan(mean) else mean for name, mean in means.items()},
        steps=outcome.progress.step,
        epochs=outcome.progress.epochs,
        clicks=outcome.progress.clicks,
        minutes=outcome.progress.seconds / 60,
        cache_hit_rate=load_rates(run.path).get("cache_hit_rate"),
        precision=run.facts["precision"]["name"],
        curve=load_curve(run.path),
        best_clicks=max(looks, key=lambda look: look.auc).clicks if looks else outcome.progress.clicks,
    )
    with new_file(run.path / TRIAL) as partial:
        write_json(partial, asdict(trial))
