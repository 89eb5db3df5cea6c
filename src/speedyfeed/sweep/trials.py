"""Trials: each variant with each seed, trained and evaluated in a folder of its own.

    OUT/NAME-SEED/     a run folder; once evaluated, it also holds
      trial.json       the results, which tables are made from
      values.parquet   every metric of every impression

Finished trials are read, stopped or killed ones are resumed, so a table can grow by variants and seeds.
"""

import json
import logging
import math
import shutil
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from speedyfeed.data.store import Store
from speedyfeed.errors import InputError
from speedyfeed.files import new_file, read_json, write_json
from speedyfeed.finished_run import USER, number_users, open_data, open_finished_run
from speedyfeed.progress import progress_bars
from speedyfeed.run_evaluation import evaluate_run, write_per_impression
from speedyfeed.training.config import RunConfig
from speedyfeed.training.loop import Watch, train
from speedyfeed.training.metrics import METRICS, SavedModel, load_rates, load_saved
from speedyfeed.training.run_folder import RUN, RunFolder, open_run, start_run

log = logging.getLogger(__name__)

TRIAL = "trial.json"
VALUES = "values.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A named run that is trained with several seeds."""

    name: str
    config: RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationPoint:
    """A validation during training."""

    minutes: float
    """Training time until then, in minutes."""
    clicks: float
    """Clicks learned from until then."""
    auc: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One variant with one seed, trained and evaluated."""

    seed: int
    metrics: dict[str, float | None]
    """Means over all impressions of the split; None where no impression has a value."""
    steps: int
    epochs: float
    clicks: float
    """Clicks learned from, by their weight in the loss; a click counts once per epoch."""
    minutes: float
    """Training time in minutes, validations not counted."""
    cache_hit_rate: float | None
    """Cache hit rate in the second half of the run; None if the run was too short to measure it."""
    precision: str
    curve: list[ValidationPoint]
    """Validations in order; empty if there were none."""
    best_clicks: float
    """Clicks learned from when the evaluated model was saved; 0 if no validation beat the initial one."""
    saved: str
    """Evaluated model: initial or trained."""


def run_trials(
    variants: Sequence[Variant], seeds: Sequence[int], store: Store, out: Path, watch: Watch | None = None
) -> dict[str, list[Trial]]:
    """Train and evaluate every variant with every seed, seed by seed; returns the trials by variant."""
    if not variants or not seeds:
        raise InputError("nothing to run: name at least one run and one seed")
    trials: dict[str, list[Trial]] = {variant.name: [] for variant in variants}
    num_trials = len(variants) * len(seeds)
    for seed in seeds:
        for variant in variants:
            done = sum(map(len, trials.values()))
            log.info("%s, seed %d (%d of %d)", variant.name, seed, done + 1, num_trials)
            trials[variant.name].append(run_trial(variant, seed, store, out, watch))
    return trials


def run_trial(variant: Variant, seed: int, store: Store, out: Path, watch: Watch | None = None) -> Trial:
    """The trial of a variant and a seed: read if it is finished, else resumed or started."""
    path = trial_path(out, variant.name, seed)
    run = _open_run(path, _seeded(variant.config, seed), store)
    if not (path / TRIAL).exists():
        _train_and_evaluate(run, store, watch)
    for spent in (run.checkpoints, run.best):  # an evaluated run is never resumed
        shutil.rmtree(spent, ignore_errors=True)
    found = read_json(path / TRIAL)
    return Trial(**found | {"curve": [ValidationPoint(**point) for point in found["curve"]]})


def trial_path(out: Path, name: str, seed: int) -> Path:
    """The run folder of a trial; slashes and colons in the name, as encoders have, become dashes."""
    return out / f"{name.replace('/', '-').replace(':', '-').strip('-')}-{seed}"


def load_values(path: Path, metric: str) -> NDArray[np.float64]:
    """A metric of every impression of an evaluated trial, in the order of the log; NaN where it is undefined."""
    column = pq.read_table(path / VALUES, columns=[metric])[metric]
    return np.asarray(column.to_numpy(), np.float64)


def load_users(path: Path) -> NDArray[np.int64]:
    """Number of the user of every impression of an evaluated trial, in the order of the log."""
    if USER not in pq.read_schema(path / VALUES).names:
        raise InputError(
            f"{path / VALUES}: has no column {USER}, as it was written by an earlier version; remove "
            f"{path / TRIAL} and its run to train and evaluate it again"
        )
    return number_users(pq.read_table(path / VALUES, columns=[USER])[USER])


def load_curve(run: Path) -> list[ValidationPoint]:
    """The validations of a run in order."""
    lines = [json.loads(line) for line in (run / METRICS).read_text("utf-8").splitlines()]
    return [
        ValidationPoint(minutes=line["seconds"] / 60, clicks=line["clicks"], auc=line["validation_auc"])
        for line in lines
        if "validation_auc" in line
    ]


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, train=replace(config.train, seed=seed))


def _open_run(path: Path, config: RunConfig, store: Store) -> RunFolder:
    """The run in this folder, or a new one; refuses a folder of a run with other settings."""
    if not (path / RUN).exists():
        return start_run(path, config, store)
    run = open_run(path)
    run.require_store(store)
    if run.config != config.for_log(store.train, store.num_news):
        raise InputError(
            f"{path}: holds a run with other settings; give those, choose another folder, or remove this one"
        )
    return run


def _train_and_evaluate(run: RunFolder, store: Store, watch: Watch | None) -> None:
    with progress_bars() as report:
        outcome = train(run, store, report, watch=watch)
        if not outcome.is_finished:
            raise KeyboardInterrupt(outcome.signal or signal.SIGTERM)  # stopped the run after it was saved
        finished = open_finished_run(run.path)
        with open_data(finished, store.path, report=report) as data:
            evaluated = evaluate_run(finished, data, exact=True, report=report)
            write_per_impression(run.path / VALUES, data, evaluated)
    saved = load_saved(run.path) or SavedModel(clicks=outcome.progress.clicks)
    means = {name: found.mean for name, found in evaluated.overall.metrics.items()}
    trial = Trial(
        seed=run.config.train.seed,
        metrics={name: None if math.isnan(mean) else mean for name, mean in means.items()},
        steps=outcome.progress.step,
        epochs=outcome.progress.epochs,
        clicks=outcome.progress.clicks,
        minutes=outcome.progress.seconds / 60,
        cache_hit_rate=load_rates(run.path).get("cache_hit_rate"),
        precision=run.facts.precision.name if run.facts.precision else "",
        curve=load_curve(run.path),
        best_clicks=saved.clicks,
        saved=saved.kind,
    )
    with new_file(run.path / TRIAL) as partial:
        write_json(partial, asdict(trial))
