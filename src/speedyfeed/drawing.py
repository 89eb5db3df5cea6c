"""The style of figures, in matplotlib: large enough to be read on a slide at half its size."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedyfeed.errors import InputError
from speedyfeed.files import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DARK, LIGHT, ACCENT = "#1f4e79", "#9dc3e6", "#c55a11"
COLOURS = (DARK, ACCENT, "#548235", "#7f6000", "#7030a0", LIGHT)
STYLE: dict[Any, Any] = {
    "font.size": 15,
    "axes.titlesize": 18,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "lines.linewidth": 2.5,
    "lines.markersize": 9,
}


def style() -> AbstractContextManager[None]:
    """A context in which figures get this style; raises InputError without matplotlib."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise InputError(f"figures need {error.name}: pip install 'speedyfeed[plots]'") from error
    return mpl.rc_context(STYLE)


def new_figure(title: str, *, width: float = 10.0, height: float = 5.6) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes; width and height are in inches."""
    figure, (ax,) = new_figures([title], width=width, height=height)
    return figure, ax


def new_figures(titles: list[str], *, width: float = 13.0, height: float = 5.6) -> "tuple[Figure, list[Axes]]":
    """A figure with axes side by side, one per title; width and height are in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, pad=12)
    return figure, axes


def from_zero(ax: "Axes", values: Sequence[float]) -> None:
    """Start the vertical axis at zero, with room above the values."""
    ax.set_ylim(0, 1.15 * max(values))


def plain_numbers(axis: "Axis", ticks: Sequence[float] | None = None) -> None:
    """Label a logarithmic axis with plain numbers at `ticks`, or at powers of ten."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    axis.set_major_locator(LogLocator() if ticks is None else FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.0f}")


def save(figure: "Figure", path: Path) -> Path:
    """Write a PNG or SVG file, whole or not at all; its suffix says which."""
    with new_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix("."), dpi=120)
    return path
