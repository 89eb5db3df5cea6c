"""What each technique is worth in AUC: the default run without bus, without cache and without refinement.

The run without refinement needs another store, prepared from the same raw logs with --refine none: give --logs.
AUC is compared with that of the default, paired by impression.

Example: python -m benchmarks ablation --store store/ --logs logs/ --epochs 1 --seeds 0
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from benchmarks.newsroom import WORK
from speedyfeed.data.store import Store, open_store
from speedyfeed.drawing import ACCENT, DARK, new_figure, save
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.progress import progress_bars
from speedyfeed.recipes import recipe
from speedyfeed.sweep.config import Limits
from speedyfeed.sweep.summary import Difference, Spread, compare_trials
from speedyfeed.sweep.trials import Trial, Variant, run_trials, trial_path
from speedyfeed.training.config import RunConfig

METRICS = ("auc", "recall@50", "recall@100")
DEFAULT, REFINEMENT = "default", "without-refinement"


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationConfig(Limits):
    """Which run loses one technique at a time, and for how long it trains."""

    store: Path
    """Folder of the prepared store, refined and with a dev split."""
    logs: Path | None = None
    """Raw logs of the store; without them, the run without refinement is left out."""
    seeds: tuple[int, ...] = (0,)
    """Seeds that every variant is trained with."""
    work: Path = WORK / "ablation"
    """Folder for the runs, which a later call continues, and for the store without refinement."""
    recipe: str = "speed-mini"
    """Recipe of the default run."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationRow:
    """One variant, summarised over its seeds."""

    name: str
    metrics: dict[str, Spread]
    difference: Difference
    """AUC minus the default's."""
    minutes: Spread
    trials: list[Trial]


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationFigures:
    rows: list[AblationRow]
    """All variants; the default is the last, as in the paper."""
    left_out: list[str]
    """Variants that were not run, each with the reason."""


def variants(default: RunConfig) -> dict[str, RunConfig]:
    """The runs on the refined store, each without one technique, and the default."""
    return {
        "without-bus": replace(default, news=replace(default.news, bus=False)),
        "without-cache": replace(default, cache=replace(default.cache, gamma=0)),
        DEFAULT: default,
    }


def measure(config: AblationConfig) -> AblationFigures:
    """Train and evaluate all trials that are not finished yet."""
    store = open_store(config.store)
    if store.manifest.settings.refine == "none":
        raise InputError(f"{config.store}: is not refined, expected a store prepared with --refine bm25")
    default = config.limit(recipe(config.recipe))
    default = replace(default, news=replace(default.news, encoder=config.encoder or default.news.encoder))
    plain = None if config.logs is None else _prepare_plain(store, config.logs, config.work / "store")
    runs = [Variant(name=name, config=run) for name, run in variants(default).items()]
    trials = run_trials(runs, config.seeds, store, config.work)
    left_out = [f"{REFINEMENT}: give the raw logs with --logs"]
    if plain is not None:
        trials |= run_trials([Variant(name=REFINEMENT, config=default)], config.seeds, plain, config.work)
        left_out = []
    return AblationFigures(rows=rows_of(trials, config.seeds, config.work), left_out=left_out)


def rows_of(trials: Mapping[str, list[Trial]], seeds: Sequence[int], work: Path) -> list[AblationRow]:
    """A row per variant, compared with the variant `DEFAULT`, which comes last."""
    paths = {name: [trial_path(work, name, seed) for seed in seeds] for name in trials}
    return [
        AblationRow(
            name=name,
            metrics={metric: Spread.of([trial.metrics[metric] for trial in found]) for metric in METRICS},
            difference=compare_trials(paths[DEFAULT], paths[name]),
            minutes=Spread.of([trial.minutes for trial in found]),
            trials=found,
        )
        for name, found in sorted(trials.items(), key=lambda item: item[0] == DEFAULT)
    ]


def tables(figures: AblationFigures) -> str:
    """A row per variant."""
    header = ["", *METRICS, "AUC minus default", "minutes"]
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
    """Draw the AUC without each technique minus the default's, with its interval."""
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


def _prepare_plain(store: Store, logs: Path, folder: Path) -> Store:
    """Prepare the same logs without refinement."""
    known = store.manifest.settings
    settings = {one.name: getattr(known, one.name) for one in fields(PrepareConfig)}
    config = PrepareConfig(**settings | asdict(known.reader_options) | {"refine": "none"})
    with progress_bars() as report:
        plain = prepare(logs, folder, config, report=report).store
    if plain.manifest.inputs != store.manifest.inputs:
        raise InputError(
            f"{logs}: are not the logs that {store.path} was prepared from; give those, and another --work"
        )
    return plain
