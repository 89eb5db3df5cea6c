"""Where the time of a training step goes: `speedyfeed profile`, on a store or on a paper-shaped newsroom.

Only the encoder should be worth making faster: its forward and backward pass should take at least 85% of a step,
and waiting for data less than 2%.

Example: python -m benchmarks step --store store/ --json
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.newsroom import store_of
from speedyfeed.drawing import ACCENT, DARK, LIGHT, new_figure, save
from speedyfeed.profile import BACKWARD, FORWARD, WAIT, Profile, profile, profile_table
from speedyfeed.progress import progress_bars
from speedyfeed.training.config import ProfileConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class StepConfig(ProfileConfig):
    """Which run is profiled on which store, and over how many steps."""

    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in runs/bench."""


def measure(config: StepConfig) -> Profile:
    """Profile some steps."""
    store = store_of(config.store)
    with progress_bars() as report:
        return profile(store, config, report)


def tables(figures: Profile) -> str:
    """A row per part, in the order of the step."""
    return profile_table(figures)


def draw(figures: Profile, folder: Path) -> list[Path]:
    """Draw a bar per part."""
    figure, ax = new_figure(f"Where a training step of {figures.seconds:.1f} s goes", height=4.6)
    parts = list(figures.shares)
    colours = [DARK if part in (FORWARD, BACKWARD) else ACCENT if part == WAIT else LIGHT for part in parts]
    shares = [100 * share for share in figures.shares.values()]
    ax.barh(parts, shares, color=colours)
    for row, share in enumerate(shares):
        ax.text(share + 0.7, row, f"{share:.1f}%" if share >= 0.1 else f"{share:.2f}%", va="center")
    ax.invert_yaxis()
    ax.set_xlim(0, max(shares) * 1.15)
    ax.set_xlabel("% of the time of a step, waiting included")
    return [save(figure, folder / "step.png")]
