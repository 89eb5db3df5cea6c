"""How much of what is encoded is text and not padding (the paper's Eq. 1), with and without our techniques.

The real loader plans an epoch in every way: with 1, 2, 4 and 8 buckets by length, padded and packed, with each
distinct news encoded once (central) and with every place encoded, padded histories included. Nothing is encoded,
so it takes seconds. Conventional is what the workflow of that name does: histories padded to 100 news.

Example: python -m benchmarks data-efficiency --store store/ --json
"""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.newsroom import store_of
from benchmarks.speed.planned import plan
from speedyfeed.batching.batches import news_lengths
from speedyfeed.drawing import ACCENT, DARK, LIGHT, new_figure, save
from speedyfeed.markdown import table
from speedyfeed.progress import progress_bars
from speedyfeed.recipes import CONVENTIONAL_SIZE, conventional, recipe

PAPER_WITHOUT, PAPER_WITH = 0.30, 0.70
"""One bucket without centralized encoding, and what both techniques reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEfficiencyConfig:
    """What is planned."""

    store: Path | None = None
    """Prepared log; without one, a paper-shaped newsroom is made and kept in runs/bench."""
    recipe: str = "speed-mini"
    buckets: tuple[int, ...] = (1, 2, 4, 8)
    most_batches: int = 1000
    """Planned of each."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEfficiencyFigures:
    """Valid over all tokens, by number of buckets."""

    packed: dict[str, float]
    """Each distinct news once, nothing padded: ours. It has no buckets; the figure is the same for all."""
    padded: dict[str, float]
    """Each distinct news once, padded to the longest beside it: the paper's."""
    packed_places: dict[str, float]
    """Every place of a batch, nothing padded."""
    padded_places: dict[str, float]
    """Every place of a batch, news padded to the longest and histories to the longest beside them."""
    conventional: float
    """Every place, all histories padded to 100 news and all news to the longest of all."""


def measure(config: DataEfficiencyConfig) -> DataEfficiencyFigures:
    """Plan every way."""
    store = store_of(config.store)
    lengths_V = news_lengths(store.news)
    chosen = recipe(config.recipe)
    ours = replace(chosen.batch, seed=config.seed)
    ways = {
        "packed": replace(ours, mode="packed"),
        "padded": replace(ours, mode="padded"),
        "packed_places": replace(ours, mode="packed", central=False, gamma=0),
        "padded_places": replace(ours, mode="padded", central=False, gamma=0),
    }
    shares: dict[str, dict[str, float]] = {name: {} for name in ways}
    with progress_bars() as report:
        for done, buckets in enumerate(config.buckets):
            report("plan", done, len(config.buckets))
            for name, way in ways.items():
                planned = plan(
                    store,
                    replace(way, num_buckets=buckets),
                    lengths_V,
                    most_batches=config.most_batches,
                    num_samples=1,
                )
                shares[name][str(buckets)] = planned.tokens / planned.padded_tokens
        slow = replace(conventional(chosen).batch, size=CONVENTIONAL_SIZE, seed=config.seed)
        planned = plan(store, slow, lengths_V, most_batches=config.most_batches, num_samples=1)
    return DataEfficiencyFigures(**shares, conventional=planned.tokens / planned.padded_tokens)


LABELS = {
    "packed": "packed, central (ours)",
    "padded": "padded, central",
    "packed_places": "packed, every place",
    "padded_places": "padded, every place",
}


def tables(figures: DataEfficiencyFigures) -> str:
    """A row per way, a column per number of buckets."""
    rows = [
        [label, *(f"{share:.1%}" for share in getattr(figures, name).values())] for name, label in LABELS.items()
    ]
    return "\n\n".join(
        [
            f"Of the tokens the conventional workflow encodes, {figures.conventional:.1%} are text "
            f"(the paper: about {PAPER_WITHOUT:.0%} without its techniques, above {PAPER_WITH:.0%} with them).",
            table(["buckets", *figures.packed], rows),
        ]
    )


def draw(figures: DataEfficiencyFigures, folder: Path) -> list[Path]:
    """A group of bars per number of buckets."""
    figure, ax = new_figure("Share of encoded tokens that is text")
    shown = {"padded_places": "0.75", "padded": LIGHT, "packed": DARK}
    width = 0.8 / len(shown)
    for place, (name, colour) in enumerate(shown.items()):
        shares = [100 * share for share in getattr(figures, name).values()]
        places = [bucket + (place - 1) * width for bucket in range(len(shares))]
        bars = ax.bar(places, shares, width, color=colour, label=LABELS[name])
        ax.bar_label(bars, fmt="%.0f", padding=2)
    ax.axhline(100 * figures.conventional, color=ACCENT, linestyle="--", label="conventional, histories of 100")
    ax.set_xticks(range(len(figures.packed)), list(figures.packed))
    ax.set_xlabel("buckets by length")
    ax.set_ylabel("% of tokens")
    ax.set_ylim(0, 112)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return [save(figure, folder / "data-efficiency.png")]
