"""The table of a sweep: a row per variant, with the metrics of all seeds and what the training took.

chance, popularity, ...              references, which nobody trained
speed-mini, nrms, ...                mean and deviation over seeds
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedyfeed.data.store import Store
from speedyfeed.markdown import table
from speedyfeed.sweep.config import SweepConfig
from speedyfeed.sweep.references import Reference, find_references
from speedyfeed.sweep.summary import Difference, Spread, compare_trials
from speedyfeed.sweep.trials import Trial, Variant, run_trials, trial_path
from speedyfeed.training.config import RunConfig

METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10", "recall@50", "recall@100", "recall@200")
"""Metrics of the table; variants are compared by the first."""
TARGET_METRICS = ("hit@10", "pool_ndcg@10", "recall@20", "recall@50", "recall@100", "recall@200")
"""Metrics of the table for a log without impressions, where each click is searched among all articles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    """One variant, summarised over its seeds."""

    name: str
    workflow: str
    """Workflow of the run: fast or conventional."""
    metrics: dict[str, Spread]
    clicks: float
    """Clicks learned from, mean over seeds."""
    best_clicks: float
    """Clicks learned from when the evaluated model was saved, mean over seeds; 0 is the initial model."""
    saved: dict[str, int]
    """Number of seeds whose evaluated model is the initial or a trained one."""
    difference: Difference | None
    """First metric minus that of the first variant, with an interval over users and seeds; None for the first."""
    minutes: float
    """Training time in minutes, mean over seeds."""
    trials: list[Trial]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The results of all variants, and the references beside them."""

    impressions: int
    """Impressions of the evaluated split that have the first metric."""
    metrics: list[str]
    """Metrics of the table; variants are compared by the first."""
    pools: int
    """Number of pools that recall searches: days, or 1 for the whole split."""
    news_per_pool: float
    """Mean number of articles in a pool."""
    references: list[Reference]
    rows: list[SweepRow]
    seeds: list[int]


def run_sweep(variants: Mapping[str, RunConfig], config: SweepConfig, store: Store, out: Path) -> Sweep:
    """Train and evaluate all variants that are not in `out` yet, and summarise them all."""
    known = find_references(store, config.logs)
    metrics = TARGET_METRICS if known.are_targets else METRICS
    runs = [Variant(name=name, config=config.limit(run)) for name, run in variants.items()]
    trials = run_trials(runs, config.seeds, store, out)
    paths = {name: [trial_path(out, name, seed) for seed in config.seeds] for name in variants}
    first = next(iter(variants))
    return Sweep(
        impressions=known.impressions,
        metrics=list(metrics),
        pools=known.pools,
        news_per_pool=known.news_per_pool,
        references=known.references,
        rows=[
            summarise(
                name,
                run,
                trials[name],
                metrics,
                None if name == first else compare_trials(paths[first], paths[name], metrics[0]),
            )
            for name, run in variants.items()
        ],
        seeds=list(config.seeds),
    )


def summarise(
    name: str,
    run: RunConfig,
    trials: Sequence[Trial],
    metrics: Sequence[str],
    difference: Difference | None = None,
) -> SweepRow:
    """Means and deviations of one variant over its seeds, and its difference from the first variant."""
    return SweepRow(
        name=name,
        workflow="fast" if run.batch.autoregressive else "conventional",
        metrics={metric: Spread.of([trial.metrics[metric] for trial in trials]) for metric in metrics},
        clicks=float(np.mean([trial.clicks for trial in trials])),
        best_clicks=float(np.mean([trial.best_clicks for trial in trials])),
        saved=dict(Counter(trial.saved for trial in trials)),
        difference=difference,
        minutes=float(np.mean([trial.minutes for trial in trials])),
        trials=list(trials),
    )


def sweep_table(sweep: Sweep) -> str:
    """All rows as Markdown, references first."""
    references = [
        [one.name, *(_number(one.metrics.get(metric)) for metric in sweep.metrics), "", "", "", "", ""]
        for one in sweep.references
    ]
    trained = [
        [
            row.name,
            *(str(row.metrics[metric]) for metric in sweep.metrics),
            "" if row.difference is None else str(row.difference),
            f"{row.clicks:,.0f}",
            f"{row.best_clicks:,.0f}",
            ", ".join(f"{number} {kind}" for kind, number in row.saved.items()),
            f"{row.minutes:.2f}",
        ]
        for row in sweep.rows
    ]
    about = (
        f"{sweep.impressions:,} impressions; recall among {sweep.news_per_pool:,.0f} articles"
        f"{'' if sweep.pools == 1 else f' on average of {sweep.pools:,} days'}, less those of the user's history; "
        f"mean ± standard deviation over seeds {' '.join(map(str, sweep.seeds))}. "
        f"Differences are those of {label(sweep.metrics[0])} from {sweep.rows[0].name}, with 95% intervals over "
        f"users{'' if len(sweep.seeds) == 1 else ' and seeds'}; the saved model, chosen by validation, is the "
        "initial or a trained one."
    )
    header = ["", *sweep.metrics, "difference", "clicks", "saved after", "saved", "minutes"]
    return f"{about}\n\n" + table(header, references + trained)


def label(metric: str) -> str:
    """Name of a metric in prose and figures."""
    return metric.upper() if metric == "auc" else metric


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
