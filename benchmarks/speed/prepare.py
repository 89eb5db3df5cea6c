"""Time and memory to prepare a store at three sizes: both should grow in proportion to the log.

Paper-shaped newsrooms with bodies are made in runs/bench. Each is prepared in a process of its own with the
defaults of `speedyfeed prepare`, into a temporary folder.

Example: python -m benchmarks prepare --users 5000 16000 50000 --json
"""

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import memory
from benchmarks.newsroom import WORK, make_logs, paper_shaped
from speedyfeed.drawing import ACCENT, DARK, from_zero, new_figures, save
from speedyfeed.markdown import table
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.progress import progress_bars


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareBenchmarkConfig:
    """Which newsrooms are prepared."""

    users: tuple[int, ...] = (5_000, 16_000, 50_000)
    """Users of each newsroom; the number of articles is in proportion."""
    work: Path = WORK
    """Folder in which the newsrooms are made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRow:
    """One newsroom, prepared."""

    users: int
    news: int
    """Rows of the news table as read from the logs."""
    impressions: int
    clicks: int
    seconds: float
    rows_per_second: float
    """Articles and impressions prepared per second."""
    peak_megabytes: float
    store_megabytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareFigures:
    rows: list[PrepareRow]


def measure(config: PrepareBenchmarkConfig) -> PrepareFigures:
    """Prepare all newsrooms, one process each."""
    logs = [make_logs(paper_shaped(users), config.work) for users in config.users]
    rows = []
    context = multiprocessing.get_context("spawn")
    with progress_bars() as report, context.Pool(1, maxtasksperchild=1) as pool:
        for done, (users, folder) in enumerate(zip(config.users, logs, strict=True)):
            report("prepare", done, len(logs), f"{users:,} users")
            rows.append(pool.apply(measure_size, (users, folder)))
    return PrepareFigures(rows=rows)


def measure_size(users: int, logs: Path) -> PrepareRow:
    """Prepare one newsroom; imports are not timed, and the logs are likely to be in the page cache."""
    with TemporaryDirectory(dir=logs.parent) as scratch:
        started = time.perf_counter()
        store = prepare(logs, Path(scratch) / "store", PrepareConfig()).store
        seconds = time.perf_counter() - started
    num_news, splits = store.manifest.counts.news.read, store.manifest.counts.splits.values()
    impressions = sum(split.read["impressions"] for split in splits)
    return PrepareRow(
        users=users,
        news=num_news,
        impressions=impressions,
        clicks=sum(split.read["clicks"] for split in splits),
        seconds=seconds,
        rows_per_second=(num_news + impressions) / seconds,
        peak_megabytes=memory("VmHWM") / 1e6,
        store_megabytes=sum(facts.bytes for facts in store.manifest.files.values()) / 1e6,
    )


def tables(figures: PrepareFigures) -> str:
    """A row per size."""
    return table(
        ["users", "news", "impressions", "clicks", "seconds", "rows/s", "clicks/s", "peak MB", "store MB"],
        [
            [
                f"{row.users:,}",
                f"{row.news:,}",
                f"{row.impressions:,}",
                f"{row.clicks:,}",
                f"{row.seconds:.1f}",
                f"{row.rows_per_second:,.0f}",
                f"{row.clicks / row.seconds:,.0f}",
                f"{row.peak_megabytes:,.0f}",
                f"{row.store_megabytes:,.0f}",
            ]
            for row in figures.rows
        ],
    )


def draw(figures: PrepareFigures, folder: Path) -> list[Path]:
    """Draw time and memory against the size of the log."""
    figure, (left, right) = new_figures(["Preparing a log: time", "Preparing a log: memory"])
    clicks = [row.clicks for row in figures.rows]
    seconds, megabytes = ([getattr(row, name) for row in figures.rows] for name in ("seconds", "peak_megabytes"))
    for ax, values, colour, label in (
        (left, seconds, DARK, "seconds"),
        (right, megabytes, ACCENT, "peak MB"),
    ):
        ax.plot(clicks, values, "o-", color=colour)
        ax.set_ylabel(label)
        from_zero(ax, values)
        ax.set_xlabel("clicks in the log")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="x", nbins=4)
        ax.set_xlim(0, 1.1 * max(clicks))
    return [save(figure, folder / "prepare.png")]
