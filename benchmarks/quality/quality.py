"""The main table: baselines and ours, each over the same seeds.

There are NPA, NAML, LSTUR and NRMS, conventional and fast, and Speed-Mini, -Half and -Last. Every contender is
given the same minutes of training, starts from its recipe, keeps the model that validated best and is evaluated
on all impressions of dev. Chance and popularity stand beside them, and the best possible where the logs are a
synthetic newsroom's. Killed or stopped, the same command goes on; what was evaluated is not run again.

Example: python -m benchmarks quality --store store/ --runs nrms speed-mini --seeds 0 1 2 --minutes 1
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.drawing import new_figure, new_figures, save
from benchmarks.harness import table
from benchmarks.quality.references import Reference, find_references
from benchmarks.quality.trials import Contender, Limits, Spread, Trial, ValidationPoint, run_trials
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.recipes import conventional, recipe
from speedyfeed.training.run_folder import RunConfig

Colour = tuple[float, float, float, float]

METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10", "recall@50", "recall@100", "recall@200")
WIDTH, HEADS = 64, 4
"""Of the baselines: wide enough for some ten thousand clicks, narrow enough to learn from them in a minute."""
HISTORY = 20
"""Clicks of a history in the conventional workflow: with 100, a minute has no steps to speak of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityBenchConfig(Limits):
    """Who is trained on what, and for how long."""

    store: Path
    """Prepared log, with a dev split."""
    runs: tuple[str, ...] = ()
    """Contenders by name, or by the first part of it: npa, naml, lstur, nrms (each -conventional and -fast),
    speed-mini, speed-half, speed-last, or any encoder (a folder, ORG/NAME, half:NAME, ...), which is trained as
    speed-mini is. Without names, all but plm-conventional."""
    seeds: tuple[int, ...] = (0, 1, 2)
    out: Path = Path("runs/quality")
    """Folder for the runs, the table and the figures."""
    logs: Path | None = None
    """The raw logs of the store; of a synthetic newsroom they know the best possible AUC."""
    minutes: float | None = 1.0
    """Training time of every run, validations not counted."""
    epochs: int = 100
    """Passes over all users, if that comes first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRow:
    """A contender over its seeds."""

    name: str
    workflow: str
    """fast or conventional."""
    metrics: dict[str, Spread]
    clicks: float
    """Learned from, mean over seeds."""
    best_clicks: float
    """Learned from when the model that was kept stood, mean over seeds: the start is kept if nothing beats it."""
    minutes: float
    trials: list[Trial]


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityFigures:
    impressions: int
    """Of dev, those a ranking is evaluated by."""
    references: list[Reference]
    rows: list[QualityRow]
    seeds: list[int]


def contenders() -> Mapping[str, RunConfig]:
    """All runs of the table, by name, with the settings that suit some minutes on a CPU."""
    naml, lstur = _narrow(recipe("naml")), _narrow(recipe("lstur"), dim=2 * WIDTH)
    nrms, npa = (_narrow(recipe(name), lr=3e-3) for name in ("nrms", "npa"))
    return {
        "npa-conventional": _conventional(npa),
        "npa-fast": _fast_apart(npa),
        "naml-conventional": _conventional(naml),
        "naml-fast": naml,
        "lstur-conventional": _conventional(lstur),
        "lstur-fast": lstur,
        "nrms-conventional": _conventional(nrms),
        "nrms-fast": nrms,
        "speed-mini": recipe("speed-mini"),
        "speed-half": recipe("speed-half"),
        "speed-last": recipe("speed-last"),
        "plm-conventional": _conventional(recipe("plm-conventional")),
    }


def measure(config: QualityBenchConfig) -> QualityFigures:
    """Train and evaluate whatever was not before."""
    store = open_store(config.store)
    known = find_references(store, config.logs)
    chosen = choose(config.runs)
    runs = [Contender(name=name, config=config.limit(run)) for name, run in chosen.items()]
    trials = run_trials(runs, config.seeds, store, config.out)
    return QualityFigures(
        impressions=known.impressions,
        references=known.references,
        rows=[summarise(name, run, trials[name]) for name, run in chosen.items()],
        seeds=list(config.seeds),
    )


def choose(names: Sequence[str]) -> dict[str, RunConfig]:
    """The contenders so named, in their own order; all but the slowest for no name."""
    every = contenders()
    if not names:
        return {name: run for name, run in every.items() if name != "plm-conventional"}
    chosen = {
        known: run
        for known, run in every.items()
        if any(known == name or known.startswith(f"{name}-") for name in names)
    }
    for name in names:
        if any(known == name or known.startswith(f"{name}-") for known in every):
            continue
        if not (":" in name or "/" in name or Path(name).exists()):
            raise InputError(f"no run {name!r}: choose {', '.join(every)}, or an encoder's folder or Hub name")
        like = recipe("speed-mini")
        chosen[name] = replace(like, news=replace(like.news, encoder=name))
    return chosen


def summarise(name: str, run: RunConfig, trials: Sequence[Trial]) -> QualityRow:
    """Means and spreads over the seeds."""
    return QualityRow(
        name=name,
        workflow="fast" if run.batch.autoregressive else "conventional",
        metrics={metric: Spread.of([trial.metrics[metric] for trial in trials]) for metric in METRICS},
        clicks=float(np.mean([trial.clicks for trial in trials])),
        best_clicks=float(np.mean([trial.best_clicks for trial in trials])),
        minutes=float(np.mean([trial.minutes for trial in trials])),
        trials=list(trials),
    )


def tables(figures: QualityFigures) -> str:
    """Means and spreads, a row each."""
    seeds = " ".join(map(str, figures.seeds))
    known = [
        [one.name, *(_number(one.metrics.get(metric)) for metric in METRICS), "", "", ""]
        for one in figures.references
    ]
    learned = [
        [
            row.name,
            *(str(row.metrics[metric]) for metric in METRICS),
            f"{row.clicks:,.0f}",
            f"{row.best_clicks:,.0f}",
            f"{row.minutes:.2f}",
        ]
        for row in figures.rows
    ]
    header = ["", *METRICS, "clicks", "kept after", "minutes"]
    return f"{figures.impressions:,} impressions; mean and spread over seeds {seeds}\n\n" + table(
        header, known + learned
    )


def draw(figures: QualityFigures, folder: Path) -> list[Path]:
    """Two figures: how AUC rises with time and with clicks, and where every run ends."""
    return [_draw_curves(figures, folder / "quality-curves.png"), _draw_ends(figures, folder / "quality-auc.png")]


def _draw_curves(figures: QualityFigures, path: Path) -> Path:
    figure, axes = new_figures(["AUC over time", "AUC over clicks"], width=15, height=7)
    places: tuple[Callable[[ValidationPoint], float], ...] = (lambda look: look.minutes, lambda look: look.clicks)
    colours = _colours(figures.rows)
    for ax, place in zip(axes, places, strict=True):
        for row in (row for row in figures.rows if all(trial.curve for trial in row.trials)):
            xs, ys = _curves(row, place)
            mean, spread = ys.mean(0), ys.std(0)
            style = "--" if row.workflow == "conventional" else "-"
            ax.plot(xs, mean, style, color=colours[row.name], label=row.name)
            ax.fill_between(xs, mean - spread, mean + spread, color=colours[row.name], alpha=0.12, linewidth=0)
        _draw_references(ax.axhline, figures)
    axes[0].set_ylabel("validation AUC" + (", mean and spread over seeds" if len(figures.seeds) > 1 else ""))
    axes[0].set_xlabel("minutes of training")
    axes[1].set_xlabel("clicks learned from, log scale")
    axes[1].set_xscale("symlog", linthresh=100)
    axes[1].set_xlim(left=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return save(figure, path)


def _draw_ends(figures: QualityFigures, path: Path) -> Path:
    rows = sorted(figures.rows, key=lambda row: row.metrics["auc"].mean or 0.0)
    colours = _colours(figures.rows)
    figure, ax = new_figure("AUC at the end: each seed, and their mean", height=2.5 + 0.45 * len(rows))
    for place, row in enumerate(rows):
        aucs = [trial.metrics["auc"] or np.nan for trial in row.trials]
        ax.plot(aucs, [place] * len(aucs), "o", color=colours[row.name], alpha=0.5)
        ax.plot(np.mean(aucs), place, "|", color=colours[row.name], markersize=24, markeredgewidth=4)
    _draw_references(ax.axvline, figures)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_xlabel(f"AUC, {figures.impressions:,} impressions")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return save(figure, path)


def _draw_references(line: Callable[..., object], figures: QualityFigures) -> None:
    for reference, style in zip(figures.references, (":", "-.", "--", "-"), strict=False):
        auc = reference.metrics.get("auc")
        if auc is not None:
            line(auc, color="0.4", linestyle=style, linewidth=1.5, label=reference.name)


def _curves(
    row: QualityRow, of: Callable[[ValidationPoint], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places that all seeds came to, and each seed's AUC there: (places,), (seeds, places)."""
    curves = [([of(look) for look in trial.curve], [look.auc for look in trial.curve]) for trial in row.trials]
    xs = np.linspace(0, min(places[-1] for places, _ in curves), 200)
    return xs, np.array([np.interp(xs, places, aucs) for places, aucs in curves])


def _colours(rows: Sequence[QualityRow]) -> dict[str, Colour]:
    """A colour for each model, the same in both workflows."""
    from matplotlib import colormaps

    models = list(dict.fromkeys(_model(row.name) for row in rows))
    return {row.name: colormaps["tab10"](models.index(_model(row.name)) % 10) for row in rows}


def _model(name: str) -> str:
    return name.removesuffix("-conventional").removesuffix("-fast")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _narrow(run: RunConfig, *, dim: int = WIDTH, lr: float | None = None) -> RunConfig:
    """A baseline of few numbers; those without a section to read learn faster.

    Sections are as wide as in the recipe: narrower ones cost up to three points of AUC. LSTUR has them beside its
    text, which is as wide as that of the others.
    """
    return replace(
        run,
        news=replace(run.news, dim=dim),
        words=replace(run.words, width=WIDTH, heads=HEADS, query_width=WIDTH),
        user=replace(run.user, heads=HEADS, query_width=WIDTH),
        train=replace(run.train, lr=lr or run.train.lr),
    )


def _conventional(run: RunConfig) -> RunConfig:
    """Without accelerations, with short histories."""
    run = conventional(run)
    return replace(run, batch=replace(run.batch, max_clicks=HISTORY))


def _fast_apart(run: RunConfig) -> RunConfig:
    """All accelerations but those that share news among users, which a personal embedding forbids."""
    return replace(run, batch=replace(run.batch, autoregressive=True, size=0, mode="packed", token_budget=4096))
