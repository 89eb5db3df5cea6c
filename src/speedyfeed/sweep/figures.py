"""Figures of a sweep: how validation AUC rises with time and with clicks, and where every run ends."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speedyfeed.drawing import new_figure, new_figures, save
from speedyfeed.sweep.table import Sweep, SweepRow, label
from speedyfeed.sweep.trials import ValidationPoint

Colour = tuple[float, float, float, float]


def draw_sweep(sweep: Sweep, folder: Path, name: str) -> list[Path]:
    """Write NAME-curves.png and NAME-auc.png, or NAME-hit.png for a log without impressions."""
    ends = folder / f"{name}-{sweep.metrics[0].partition('@')[0]}.png"
    return [_draw_curves(sweep, folder / f"{name}-curves.png"), _draw_ends(sweep, ends)]


def _draw_curves(sweep: Sweep, path: Path) -> Path:
    figure, axes = new_figures(["Validation AUC over time", "Validation AUC over clicks"], width=15, height=7)
    positions: tuple[Callable[[ValidationPoint], float], ...] = (
        lambda point: point.minutes,
        lambda point: point.clicks,
    )
    colours = _colours(sweep.rows)
    for ax, position in zip(axes, positions, strict=True):
        for row in (row for row in sweep.rows if all(trial.curve for trial in row.trials)):
            xs, ys = _curves(row, position)
            mean, spread = ys.mean(0), ys.std(0)
            style = "--" if row.workflow == "conventional" else "-"
            ax.plot(xs, mean, style, color=colours[row.name], label=row.name)
            ax.fill_between(xs, mean - spread, mean + spread, color=colours[row.name], alpha=0.12, linewidth=0)
        if sweep.metrics[0] == "auc":
            _draw_references(ax.axhline, sweep)
    axes[0].set_ylabel("validation AUC" + (", mean and spread over seeds" if len(sweep.seeds) > 1 else ""))
    axes[0].set_xlabel("minutes of training")
    axes[1].set_xlabel("clicks learned from, log scale")
    axes[1].set_xscale("symlog", linthresh=100)
    axes[1].set_xlim(left=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return save(figure, path)


def _draw_ends(sweep: Sweep, path: Path) -> Path:
    metric = sweep.metrics[0]
    rows = sorted(sweep.rows, key=lambda row: row.metrics[metric].mean or 0.0)
    colours = _colours(sweep.rows)
    figure, ax = new_figure(
        f"{label(metric)} at the end: each seed, and their mean", height=2.5 + 0.45 * len(rows)
    )
    for position, row in enumerate(rows):
        aucs = [trial.metrics[metric] or np.nan for trial in row.trials]
        ax.plot(aucs, [position] * len(aucs), "o", color=colours[row.name], alpha=0.5)
        ax.plot(np.mean(aucs), position, "|", color=colours[row.name], markersize=24, markeredgewidth=4)
    _draw_references(ax.axvline, sweep)
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_xlabel(f"{label(metric)}, {sweep.impressions:,} impressions")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return save(figure, path)


def _draw_references(line: Callable[..., object], sweep: Sweep) -> None:
    for reference, style in zip(sweep.references, (":", "-.", "--", "-"), strict=False):
        value = reference.metrics.get(sweep.metrics[0])
        if value is not None:
            line(value, color="0.4", linestyle=style, linewidth=1.5, label=reference.name)


def _curves(
    row: SweepRow, position: Callable[[ValidationPoint], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions that all seeds reached, and each seed's AUC there: (positions,), (seeds, positions)."""
    curves = [
        ([position(point) for point in trial.curve], [point.auc for point in trial.curve]) for trial in row.trials
    ]
    xs = np.linspace(0, min(positions[-1] for positions, _ in curves), 200)
    return xs, np.array([np.interp(xs, positions, aucs) for positions, aucs in curves])


def _colours(rows: Sequence[SweepRow]) -> dict[str, Colour]:
    """A colour for each model, shared by its workflows."""
    from matplotlib import colormaps

    models = list(dict.fromkeys(_model(row.name) for row in rows))
    return {row.name: colormaps["tab10"](models.index(_model(row.name)) % 10) for row in rows}


def _model(name: str) -> str:
    return name.removesuffix("-conventional").removesuffix("-fast")
