"""Share of the encoded tokens that is text, not padding (the paper's Eq. 1), with and without our techniques.

The real loader plans batches with 1, 2, 4 and 8 buckets by length, padded and packed, with each distinct article
encoded once (central) and with every position encoded, padded histories included. Nothing is encoded, so it takes
seconds. The conventional workflow pads histories to 100 articles.

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
"""The paper's shares: one bucket without centralized encoding, and with both techniques."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEfficiencyConfig:
    """On which store batches are planned, and how many."""

    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in runs/bench."""
    recipe: str = "speed-mini"
    """Recipe whose batches are planned."""
    buckets: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of buckets by length, one measurement each."""
    most_batches: int = 1000
    """Batches planned for each number of buckets, at most."""
    seed: int = 0
    """Seed of the order of users and the negatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEfficiencyFigures:
    """Share of text among the encoded tokens, by number of buckets."""

    packed: dict[str, float]
    """Ours: each distinct article once, nothing padded; without buckets, so equal for all numbers."""
    padded: dict[str, float]
    """The paper's: each distinct article once, padded to the longest of its batch."""
    packed_positions: dict[str, float]
    """Every position of a batch, nothing padded."""
    padded_positions: dict[str, float]
    """Every position of a batch, with articles and histories padded to the longest of the batch."""
    conventional: float
    """Every position, with histories padded to 100 articles and articles to the longest of the store."""


def measure(config: DataEfficiencyConfig) -> DataEfficiencyFigures:
    """Plan batches in every way."""
    store = store_of(config.store)
    lengths_V = news_lengths(store.news)
    chosen = recipe(config.recipe)
    chosen = replace(chosen, train=replace(chosen.train, seed=config.seed))
    uncached = replace(chosen, cache=replace(chosen.cache, gamma=0))
    ways = {
        "packed": replace(chosen, batch=replace(chosen.batch, mode="packed")),
        "padded": replace(chosen, batch=replace(chosen.batch, mode="padded")),
        "packed_positions": replace(uncached, batch=replace(chosen.batch, mode="packed", central=False)),
        "padded_positions": replace(uncached, batch=replace(chosen.batch, mode="padded", central=False)),
    }
    shares: dict[str, dict[str, float]] = {name: {} for name in ways}
    with progress_bars() as report:
        for done, buckets in enumerate(config.buckets):
            report("plan", done, len(config.buckets))
            for name, way in ways.items():
                planned = plan(
                    store.train,
                    replace(way, batch=replace(way.batch, num_buckets=buckets)),
                    lengths_V,
                    most_batches=config.most_batches,
                    num_samples=1,
                )
                shares[name][str(buckets)] = planned.tokens / planned.padded_tokens
        slow = conventional(chosen)
        slow = replace(slow, batch=replace(slow.batch, size=CONVENTIONAL_SIZE))
        planned = plan(store.train, slow, lengths_V, most_batches=config.most_batches, num_samples=1)
    return DataEfficiencyFigures(**shares, conventional=planned.tokens / planned.padded_tokens)


LABELS = {
    "packed": "packed, central (ours)",
    "padded": "padded, central",
    "packed_positions": "packed, every position",
    "padded_positions": "padded, every position",
}


def tables(figures: DataEfficiencyFigures) -> str:
    """A row per kind of batch, a column per number of buckets."""
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
    """Draw a group of bars per number of buckets."""
    figure, ax = new_figure("Share of encoded tokens that is text")
    shown = {"padded_positions": "0.75", "padded": LIGHT, "packed": DARK}
    width = 0.8 / len(shown)
    for number, (name, colour) in enumerate(shown.items()):
        shares = [100 * share for share in getattr(figures, name).values()]
        centres = [bucket + (number - 1) * width for bucket in range(len(shares))]
        bars = ax.bar(centres, shares, width, color=colour, label=LABELS[name])
        ax.bar_label(bars, fmt="%.0f", padding=2)
    ax.axhline(100 * figures.conventional, color=ACCENT, linestyle="--", label="conventional, histories of 100")
    ax.set_xticks(range(len(figures.packed)), list(figures.packed))
    ax.set_xlabel("buckets by length")
    ax.set_ylabel("% of tokens")
    ax.set_ylim(0, 112)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return [save(figure, folder / "data-efficiency.png")]
