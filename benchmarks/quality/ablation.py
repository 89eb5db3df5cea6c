"""What each technique is worth in quality: the default run without bus, without cache and without refinement.

The run without refinement needs a store of its own, prepared from the raw logs as the given one was, but with
--refine none: give --logs. AUC is compared with that of the default, paired by impression.

Example: python -m benchmarks ablation --store store/ --logs logs/ --epochs 1 --seeds 0
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from benchmarks.drawing import ACCENT, DARK, new_figure, save
from benchmarks.harness import table
from benchmarks.quality.trials import (
    Contender,
    Difference,
    Limits,
    Spread,
    Trial,
    compare_trials,
    run_trials,
    trial_path,
)
from speedyfeed.data.store import Store, open_store
from speedyfeed.errors import InputError
from speedyfeed.preparation.prepare import PrepareConfig, prepare
from speedyfeed.progress import progress_bars
from speedyfeed.recipes import recipe
from speedyfeed.training.run_folder import RunConfig

METRICS = ("auc", "recall@50", "recall@100")
DEFAULT, REFINEMENT = "default", "without-refinement"


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationBenchConfig(Limits):
    """What is trained, and for how long."""

    store: Path
    """Prepared log, refined, with a dev split."""
    logs: Path | None = None
    """The raw logs it was prepared from; without them the run without refinement is left out."""
    seeds: tuple[int, ...] = (0,)
    out: Path = Path("runs/ablation")
    """Folder for the runs, the store without refinement, the table and the figure."""
    recipe: str = "speed-mini"
    """The default run."""
    encoder: str | None = None
    """Another encoder than the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationRow:
    """One run over its seeds."""

    name: str
    metrics: dict[str, Spread]
    difference: Difference
    """AUC above the default's."""
    minutes: Spread
    trials: list[Trial]


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationFigures:
    rows: list[AblationRow]
    """The default comes last, as in the paper."""
    left_out: list[str]
    """Names of runs that could not be had, each with the reason."""


def variants(default: RunConfig) -> dict[str, RunConfig]:
    """The runs on the same store, each without one technique."""
    return {
        "without-bus": replace(default, news=replace(default.news, bus=False)),
        "without-cache": replace(default, batch=replace(default.batch, gamma=0)),
        DEFAULT: default,
    }


def measure(config: AblationBenchConfig) -> AblationFigures:
    """Train and evaluate whatever was not before."""
    store = open_store(config.store)
    if store.manifest["settings"]["refine"] == "none":
        raise InputError(f"{config.store}: is not refined, expected a store prepared with --refine bm25")
    default = config.limit(recipe(config.recipe))
    default = replace(default, news=replace(default.news, encoder=config.encoder or default.news.encoder))
    plain = None if config.logs is None else _prepare_plain(store, config.logs, config.out / "store")
    runs = [Contender(name=name, config=run) for name, run in variants(default).items()]
    trials = run_trials(runs, config.seeds, store, config.out)
    left_out = [f"{REFINEMENT}: give the raw logs with --logs"]
    if plain is not None:
        trials |= run_trials([Contender(name=REFINEMENT, config=default)], config.seeds, plain, config.out)
        left_out = []
    paths = {name: [trial_path(config.out, name, seed) for seed in config.seeds] for name in trials}
    rows = [
        AblationRow(
            name=name,
            metrics={metric: Spread.of([trial.metrics[metric] for trial in found]) for metric in METRICS},
            difference=compare_trials(paths[DEFAULT], paths[name]),
            minutes=Spread.of([trial.minutes for trial in found]),
            trials=found,
        )
        for name, found in sorted(trials.items(), key=lambda item: item[0] == DEFAULT)
    ]
    return AblationFigures(rows=rows, left_out=left_out)


def tables(figures: AblationFigures) -> str:
    """A row per run."""
    header = ["", *METRICS, "AUC above default", "minutes"]
    rows = [
        [
            row.name,
            *(str(row.metrics[metric]) for metric in METRICS),
            "" if row.name == DEFAULT else str(row.difference),
            f"{row.minutes.mean:.2f}",
        ]
        for row in figures.rows
    ]
    return "\n\n".join([table(header, rows), *(f"left out: {reason}" for reason in figures.left_out)])


def draw(figures: AblationFigures, folder: Path) -> list[Path]:
    """What AUC each technique is worth, with its interval."""
    figure, ax = new_figure("AUC without one technique, against the default")
    rows = [row for row in figures.rows if row.name != DEFAULT]
    means = np.array([row.difference.mean for row in rows])
    bounds = np.array([row.difference.ci95 for row in rows])
    ax.errorbar(means, range(len(rows)), xerr=np.abs(bounds.T - means), fmt="o", color=DARK, capsize=6)
    ax.axvline(0, color=ACCENT, linewidth=1.5, linestyle="--")
    ax.set_yticks(range(len(rows)), [row.name.replace("-", " ") for row in rows])
    ax.margins(y=0.3)
    ax.locator_params(axis="x", nbins=6)
    ax.set_xlabel("difference of AUC, 95% interval")
    return [save(figure, folder / "ablation.png")]


def _prepare_plain(store: Store, logs: Path, place: Path) -> Store:
    """The store of the same logs without refinement."""
    known = store.manifest["settings"] | {"refine": "none"}
    settings = {name: known[name] for name in (one.name for one in fields(PrepareConfig))}
    config = PrepareConfig(**settings | {"fields": tuple(known["fields"])})
    with progress_bars() as report:
        plain = prepare(logs, place, config, report=report).store
    if plain.manifest["inputs"] != store.manifest["inputs"]:
        raise InputError(
            f"{logs}: are not the logs that {store.path} was prepared from; give those, and another --out"
        )
    return plain
