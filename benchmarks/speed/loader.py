"""Speed of the loader against that of the trainer, and the cost of a click, as the log grows tenfold.

The real loader runs through a whole epoch of the log, and of the log repeated three and ten times with users and
articles of their own, each in a process of its own. Measured are batches per second, tokens to encode per click,
and memory. Real training steps give the tokens per second that the trainer consumes.

Example: python -m benchmarks loader --store store/ --json
"""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import PeakMemory
from benchmarks.newsroom import store_of
from benchmarks.speed.planned import plan, repeat
from speedyfeed.batching.batches import news_lengths
from speedyfeed.data.store import Store, open_store
from speedyfeed.drawing import ACCENT, DARK, from_zero, new_figures, plain_numbers, save
from speedyfeed.markdown import table
from speedyfeed.profile import TimedTrainer, now, timed_run
from speedyfeed.progress import progress_bars
from speedyfeed.training.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderBenchmarkConfig:
    """On which store and with which run the loader is measured."""

    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in runs/bench."""
    copies: tuple[int, ...] = (1, 3, 10)
    """How often the log is repeated, each time with users and articles of its own; one measurement each."""
    recipe: str = "speed-mini"
    """Recipe whose batches are made and trained on."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""
    precision: str = "fp32"
    """Precision of the training steps: fp32, bf16, or fp16 on CUDA."""
    rounds: int = 3
    """Timed training steps, after one to warm up."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRow:
    """An epoch over a log of one size."""

    users: int
    news: int
    clicks: float
    """Clicks learned from, by their weight in the loss."""
    batches_per_second: float
    clicks_per_second: float
    tokens_per_second: float
    """Tokens to encode in the batches that the loader makes per second."""
    times_trainer: float
    """Tokens per second of the loader, as a multiple of the trainer's."""
    tokens_per_click: float
    cache_hit_rate: float
    milliseconds_per_click: float
    """Milliseconds to learn a click at the trainer's speed."""
    private_megabytes: float
    """Peak private memory of the loader; mapped files are not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderFigures:
    trained_tokens_per_second: float
    """Tokens per second that the trainer consumes."""
    cost_growth: float
    """Tokens per click of the largest log, as a multiple of those of the smallest."""
    rows: list[LoaderRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Totals of the batches of an epoch, and the time and memory the loader took."""

    users: int
    news: int
    batches: int
    clicks: float
    tokens: int
    encoded: int
    cache_hits: int
    seconds: float
    private_bytes: int


def measure(config: LoaderBenchmarkConfig) -> LoaderFigures:
    """Measure the loader at all sizes, then the trainer."""
    run = timed_run(
        config.recipe, encoder=config.encoder, precision=config.precision, seed=config.seed, in_batch=0.0
    )
    store = store_of(config.store)
    epochs = []
    context = multiprocessing.get_context("spawn")
    with progress_bars() as report:
        with context.Pool(1, maxtasksperchild=1) as pool:
            for done, copies in enumerate(config.copies):
                report("load", done, len(config.copies), f"{copies} copies")
                epochs.append(pool.apply(load_epoch, (store.path, copies, run)))
        report("train", 0, 0)
        trainer_speed = measure_trainer(run, store, config.rounds)
    rows = [
        LoaderRow(
            users=epoch.users,
            news=epoch.news,
            clicks=epoch.clicks,
            batches_per_second=epoch.batches / epoch.seconds,
            clicks_per_second=epoch.clicks / epoch.seconds,
            tokens_per_second=epoch.tokens / epoch.seconds,
            times_trainer=epoch.tokens / epoch.seconds / trainer_speed,
            tokens_per_click=epoch.tokens / epoch.clicks,
            cache_hit_rate=epoch.cache_hits / (epoch.cache_hits + epoch.encoded),
            milliseconds_per_click=1e3 * epoch.tokens / epoch.clicks / trainer_speed,
            private_megabytes=epoch.private_bytes / 1e6,
        )
        for epoch in epochs
    ]
    return LoaderFigures(
        trained_tokens_per_second=trainer_speed,
        cost_growth=rows[-1].tokens_per_click / rows[0].tokens_per_click,
        rows=rows,
    )


def load_epoch(path: Path, copies: int, run: RunConfig) -> Epoch:
    """Run the loader through an epoch of a repeated log without training."""
    store = open_store(path)
    train, lengths_V = repeat(store.train, news_lengths(store.news), copies)
    started = now()
    with PeakMemory() as peak:
        found = plan(train, run, lengths_V, most_batches=None, num_samples=1)
    return Epoch(
        users=len(train.clicks),
        news=len(lengths_V) - 1,
        batches=found.batches,
        clicks=found.clicks,
        tokens=found.tokens,
        encoded=found.encoded,
        cache_hits=found.cache_hits,
        seconds=now() - started,
        private_bytes=peak.growth,
    )


def measure_trainer(run: RunConfig, store: Store, rounds: int) -> float:
    """Tokens per second that training consumes, on batches spread over an epoch."""
    lengths_V = news_lengths(store.news)
    samples = plan(store.train, run, lengths_V, most_batches=None, num_samples=rounds).samples
    with TemporaryDirectory() as scratch:
        trainer = TimedTrainer(run, store, Path(scratch) / "run")
        trainer.time_step(samples[0])
        seconds = sum(trainer.time_step(batch) for batch in samples)
    return sum(batch.num_tokens for batch in samples) / seconds


def tables(figures: LoaderFigures) -> str:
    """A row per size."""
    return "\n\n".join(
        [
            f"The trainer consumes {figures.trained_tokens_per_second:,.0f} tokens per second. From the "
            f"smallest log to the largest, the tokens to encode per click change by {figures.cost_growth:.2f}x.",
            table(
                [
                    "users",
                    "articles",
                    "clicks",
                    "batches/s",
                    "tokens/s",
                    "times the trainer",
                    "cache hits",
                    "tokens/click",
                    "ms/click",
                    "loader MB",
                ],
                [
                    [
                        f"{row.users:,}",
                        f"{row.news:,}",
                        f"{row.clicks:,.0f}",
                        f"{row.batches_per_second:,.0f}",
                        f"{row.tokens_per_second:,.0f}",
                        f"{row.times_trainer:,.0f}x",
                        f"{row.cache_hit_rate:.0%}",
                        f"{row.tokens_per_click:.1f}",
                        f"{row.milliseconds_per_click:.2f}",
                        f"{row.private_megabytes:.0f}",
                    ]
                    for row in figures.rows
                ],
            ),
        ]
    )


def draw(figures: LoaderFigures, folder: Path) -> list[Path]:
    """Draw the speed of loader and trainer, and the cost of a click, against the size of the log."""
    figure, (left, right) = new_figures(["Loader against trainer", "Time to learn a click"])
    clicks = [row.clicks for row in figures.rows]
    left.plot(clicks, [row.tokens_per_second for row in figures.rows], "o-", color=DARK, label="loader")
    left.axhline(figures.trained_tokens_per_second, color=ACCENT, linestyle="--", label="trainer")
    left.set_yscale("log")
    plain_numbers(left.yaxis)
    left.set_ylabel("tokens per second, log scale")
    left.legend(loc="center right")
    costs = [row.milliseconds_per_click for row in figures.rows]
    right.plot(clicks, costs, "o-", color=DARK)
    right.set_ylabel("milliseconds per click")
    from_zero(right, costs)
    for ax in (left, right):
        ax.set_xlabel("clicks in the log, log scale")
        ax.set_xscale("log")
        plain_numbers(ax.xaxis, clicks)
        ax.margins(x=0.1)
    return [save(figure, folder / "loader.png")]
