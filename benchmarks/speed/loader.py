"""Speed of the loader against that of the trainer, and the cost of a click, as the log grows tenfold.

The real loader runs through a whole epoch with a tenth of the users, a third and all of them, each in a process of
its own. Measured are batches per second, tokens to encode per click, and memory. Real training steps give the
tokens per second that the trainer consumes.

Example: python -m benchmarks loader --store store/ --json
"""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import PeakMemory
from benchmarks.newsroom import store_of
from benchmarks.speed.planned import plan
from speedyfeed.batching.batches import news_lengths
from speedyfeed.batching.loader import Loader
from speedyfeed.data.store import Store, Timelines, open_store
from speedyfeed.drawing import ACCENT, DARK, from_zero, new_figures, plain_numbers, save
from speedyfeed.markdown import table
from speedyfeed.profile import TimedTrainer, now, timed_run
from speedyfeed.progress import progress_bars
from speedyfeed.ragged import Ragged
from speedyfeed.training.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderBenchmarkConfig:
    """On which store and with which run the loader is measured."""

    store: Path | None = None
    """Folder of a prepared log; by default a paper-shaped newsroom, made in runs/bench."""
    shares: tuple[float, ...] = (0.1, 0.32, 1.0)
    """Shares of the users of the store, one measurement each."""
    recipe: str = "speed-mini"
    """Recipe whose batches are made and trained on."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""
    precision: str = "fp32"
    """Number format of the training steps: fp32, bf16, or fp16 on CUDA."""
    rounds: int = 3
    """Timed training steps, after one to warm up."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRow:
    """An epoch over a share of the users."""

    users: int
    clicks: int
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
    """Tokens per click with the most users, as a multiple of those with the fewest."""
    rows: list[LoaderRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Totals of the batches of an epoch, and the time and memory the loader took."""

    batches: int
    clicks: int
    tokens: int
    encoded: int
    cache_hits: int
    seconds: float
    private_bytes: int


def measure(config: LoaderBenchmarkConfig) -> LoaderFigures:
    """Measure the loader at all sizes, then the trainer."""
    run = timed_run(config.recipe, encoder=config.encoder, precision=config.precision, seed=config.seed)
    store = store_of(config.store)
    sizes = [max(1, round(share * len(store.train.clicks))) for share in config.shares]
    epochs = []
    context = multiprocessing.get_context("spawn")
    with progress_bars() as report:
        with context.Pool(1, maxtasksperchild=1) as pool:
            for done, users in enumerate(sizes):
                report("load", done, len(sizes), f"{users:,} users")
                epochs.append(pool.apply(load_epoch, (store.path, users, run)))
        report("train", 0, 0)
        trainer_speed = measure_trainer(run, store, config.rounds)
    rows = [
        LoaderRow(
            users=users,
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
        for users, epoch in zip(sizes, epochs, strict=True)
    ]
    return LoaderFigures(
        trained_tokens_per_second=trainer_speed,
        cost_growth=rows[-1].tokens_per_click / rows[0].tokens_per_click,
        rows=rows,
    )


def first_users(timelines: Timelines, number: int) -> Timelines:
    """The timelines of the first users; still memory-mapped."""
    offsets = timelines.clicks.offsets[: number + 1]
    return Timelines(
        clicks=Ragged(values=timelines.clicks.values[: offsets[-1]], offsets=offsets),
        click_pools=timelines.click_pools[: offsets[-1]],
        user_pools=timelines.user_pools[:number],
        pools=timelines.pools,
    )


def load_epoch(path: Path, users: int, run: RunConfig) -> Epoch:
    """Run the loader through an epoch without training."""
    store = open_store(path)
    lengths_V = news_lengths(store.news)
    batches = clicks = tokens = encoded = cache_hits = 0
    started = now()
    with (
        PeakMemory() as peak,
        Loader(
            first_users(store.train, users), lengths_V, run.batch, run.cache, seed=run.train.seed, epochs=1
        ) as loader,
    ):
        for batch in loader:
            batches += 1
            clicks += batch.num_clicks
            tokens += batch.num_tokens
            encoded += len(batch.encode_E)
            cache_hits += len(batch.cached_R)
    return Epoch(
        batches=batches,
        clicks=clicks,
        tokens=tokens,
        encoded=encoded,
        cache_hits=cache_hits,
        seconds=now() - started,
        private_bytes=peak.growth,
    )


def measure_trainer(run: RunConfig, store: Store, rounds: int) -> float:
    """Tokens per second that training consumes, on batches spread over an epoch."""
    lengths_V = news_lengths(store.news)
    samples = plan(store, run, lengths_V, most_batches=None, num_samples=rounds).samples
    with TemporaryDirectory() as scratch:
        trainer = TimedTrainer(run, store, Path(scratch) / "run")
        trainer.time_step(samples[0])
        seconds = sum(trainer.time_step(batch) for batch in samples)
    return sum(batch.num_tokens for batch in samples) / seconds


def tables(figures: LoaderFigures) -> str:
    """A row per size."""
    return "\n\n".join(
        [
            f"The trainer consumes {figures.trained_tokens_per_second:,.0f} tokens per second. From the fewest "
            f"users to all of them, the tokens to encode per click change by {figures.cost_growth:.2f}x.",
            table(
                [
                    "users",
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
                        f"{row.clicks:,}",
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
