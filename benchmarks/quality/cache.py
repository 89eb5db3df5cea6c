"""What the cache costs in quality and saves in time: one run with several gammas, for equal epochs or time.

Gamma is the number of steps for which a cached embedding stays fresh; 0 is no cache. Each gamma is trained with
deferred gradients and without, when cache hits teach the language model nothing. AUC is compared with that of
gamma 0, paired by impression. Drift is the cosine between a cached row and the same article encoded at that step.

Example: python -m benchmarks cache --store store/ --epochs 1 --seeds 0
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.newsroom import WORK
from benchmarks.quality.drift import Drift, load_drift, watch_drift
from speedyfeed.data.store import open_store
from speedyfeed.drawing import ACCENT, DARK, new_figures, save
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.recipes import recipe
from speedyfeed.sweep.config import Limits
from speedyfeed.sweep.summary import Difference, Spread, compare_trials
from speedyfeed.sweep.trials import Trial, Variant, run_trials, trial_path

METRICS = ("auc", "recall@50", "recall@100")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheBenchmarkConfig(Limits):
    """Which run is trained with which gammas and seeds, and for how long."""

    store: Path
    """Folder of the prepared store, with a dev split."""
    gammas: tuple[int, ...] = (0, 10, 20, 30, 60)
    """Steps for which a cached embedding stays fresh; 0 must be among them."""
    gradients_only: bool = False
    """Train with deferred gradients alone; by default every gamma above 0 is trained without them as well."""
    seeds: tuple[int, ...] = (0,)
    """Seeds that every variant is trained with."""
    work: Path = WORK / "cache"
    """Folder for the runs, which a later call continues."""
    recipe: str = "speed-mini"
    """Recipe of the run whose gamma is varied."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheRow:
    """One gamma, with deferred gradients or without, summarised over its seeds."""

    gamma: int
    gradients: bool
    """Whether cache hits have deferred gradients."""
    metrics: dict[str, Spread]
    difference: Difference
    """AUC minus that of gamma 0."""
    minutes: Spread
    clicks_per_second: Spread
    hit_rate: Spread
    drift: list[Drift | None]
    """Drift of each seed; None where there was no cache hit."""
    trials: list[Trial]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFigures:
    rows: list[CacheRow]


def measure(config: CacheBenchmarkConfig) -> CacheFigures:
    """Train and evaluate all trials that are not finished yet."""
    if 0 not in config.gammas:
        raise InputError("--gammas: expected 0 among them, since the others are compared with it")
    store = open_store(config.store)
    base = config.limit(recipe(config.recipe))
    base = replace(base, news=replace(base.news, encoder=config.encoder or base.news.encoder))
    caches = {
        f"gamma-{gamma}" + ("" if gradients else "-no-gradients"): replace(
            base.cache, gamma=gamma, gradients=gradients
        )
        for gradients in ((True,) if config.gradients_only else (True, False))
        for gamma in config.gammas
        if gamma or gradients
    }
    variants = [Variant(name=name, config=replace(base, cache=cache)) for name, cache in caches.items()]
    trials = run_trials(variants, config.seeds, store, config.work, watch_drift)
    paths = {name: [trial_path(config.work, name, seed) for seed in config.seeds] for name in caches}
    return CacheFigures(
        rows=[
            CacheRow(
                gamma=cache.max_age,
                gradients=cache.gradients,
                metrics={
                    metric: Spread.of([trial.metrics[metric] for trial in trials[name]]) for metric in METRICS
                },
                difference=compare_trials(paths["gamma-0"], paths[name]),
                minutes=Spread.of([trial.minutes for trial in trials[name]]),
                clicks_per_second=Spread.of([trial.clicks / trial.minutes / 60 for trial in trials[name]]),
                hit_rate=Spread.of([trial.cache_hit_rate for trial in trials[name]]),
                drift=[load_drift(path) for path in paths[name]],
                trials=trials[name],
            )
            for name, cache in caches.items()
        ]
    )


def tables(figures: CacheFigures) -> str:
    """A row per gamma, with deferred gradients and without."""
    header = [
        "gamma",
        "gradients of hits",
        *METRICS,
        "AUC minus gamma 0",
        "minutes",
        "clicks/s",
        "hit rate",
        "drift, cosine",
        "steps old",
    ]
    rows = []
    for row in figures.rows:
        drifts = [drift for drift in row.drift if drift is not None]
        rows.append(
            [
                str(row.gamma),
                _gradients(row),
                *(str(row.metrics[metric]) for metric in METRICS),
                "" if row.gamma == 0 else str(row.difference),
                f"{row.minutes.mean:.2f}",
                f"{row.clicks_per_second.mean:,.1f}",
                "-" if row.hit_rate.mean is None else f"{row.hit_rate.mean:.1%}",
                f"{np.mean([drift.cosine for drift in drifts]):.4f}" if drifts else "-",
                f"{np.mean([drift.steps for drift in drifts]):.1f}" if drifts else "-",
            ]
        )
    return table(header, rows)


def draw(figures: CacheFigures, folder: Path) -> list[Path]:
    """Draw AUC minus that of gamma 0 with its interval, and the clicks learned per second."""
    figure, (quality, speed) = new_figures(["AUC against no cache", "Clicks learned in a second"])
    gammas = [str(row.gamma) for row in figures.rows if row.gradients]
    for name, colour, shift in (("deferred", DARK, 0.0), ("none", ACCENT, 0.15)):
        rows = [row for row in figures.rows if _gradients(row) == name]
        means = np.array([row.difference.mean for row in rows])
        bounds = np.array([row.difference.ci95 for row in rows]).reshape(-1, 2)
        places = [gammas.index(str(row.gamma)) + shift for row in rows]
        quality.errorbar(places, means, np.abs(bounds.T - means), fmt="o", color=colour, capsize=6, label=name)
    quality.legend(title="gradients of cache hits")
    quality.axhline(0, color="0.4", linewidth=1.5, linestyle="--")
    quality.set_ylabel("difference of AUC, 95% interval")
    quality.set_xticks(range(len(gammas)), gammas)
    with_gradients = [row for row in figures.rows if row.gradients]
    speeds = [row.clicks_per_second.mean or 0.0 for row in with_gradients]
    speed.bar(gammas, speeds, color=ACCENT, width=0.6)
    for position, row in enumerate(with_gradients):
        if row.hit_rate.mean:
            speed.annotate(f"{row.hit_rate.mean:.0%} hits", (position, speeds[position]), ha="center", va="bottom")
    speed.set_ylabel("clicks a second")
    for ax in (quality, speed):
        ax.set_xlabel("gamma: steps a cached embedding stays fresh")
    return [save(figure, folder / "cache.png")]


def _gradients(row: CacheRow) -> str:
    """When the language model gets the gradients of an article: at once, deferred, or none for cache hits."""
    return "at once" if row.gamma == 0 else "deferred" if row.gradients else "none"
