"""Batches against the trainer's appetite, and what a click costs, as the log grows tenfold.

The real loader goes through a whole epoch with a tenth of the users, with a third and with all, each in a
process of its own: how fast it makes batches, how many tokens are to be encoded for a click, how much memory it
takes. Real training steps tell how many tokens a second the trainer consumes.

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
from speedyfeed.training.run_folder import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderBenchmarkConfig:
    """How much is measured."""

    store: Path | None = None
    """Prepared log; without one, a paper-shaped newsroom is made and kept in runs/bench."""
    shares: tuple[float, ...] = (0.1, 0.32, 1.0)
    """Of its users."""
    recipe: str = "speed-mini"
    encoder: str | None = None
    """Another encoder than the recipe's."""
    precision: str = "fp32"
    rounds: int = 3
    """Training steps timed, after one to warm up."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRow:
    """An epoch over some of the users."""

    users: int
    clicks: int
    batches_per_second: float
    clicks_per_second: float
    tokens_per_second: float
    """To be encoded, in the batches made."""
    times_trainer: float
    """That against what the trainer consumes."""
    tokens_per_click: float
    cache_hit_rate: float
    milliseconds_per_click: float
    """To learn it, at the trainer's speed."""
    private_megabytes: float
    """Taken by the loader at most, files it maps not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderFigures:
    trained_tokens_per_second: float
    """What the trainer consumes."""
    cost_growth: float
    """A click's tokens in the largest log against the smallest."""
    rows: list[LoaderRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What the loader made, and what it took."""

    batches: int
    clicks: int
    tokens: int
    encoded: int
    read: int
    seconds: float
    private_bytes: int


def measure(config: LoaderBenchmarkConfig) -> LoaderFigures:
    """All sizes, then the appetite."""
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
        appetite = measure_appetite(run, store, config.rounds)
    rows = [
        LoaderRow(
            users=users,
            clicks=epoch.clicks,
            batches_per_second=epoch.batches / epoch.seconds,
            clicks_per_second=epoch.clicks / epoch.seconds,
            tokens_per_second=epoch.tokens / epoch.seconds,
            times_trainer=epoch.tokens / epoch.seconds / appetite,
            tokens_per_click=epoch.tokens / epoch.clicks,
            cache_hit_rate=epoch.read / (epoch.read + epoch.encoded),
            milliseconds_per_click=1e3 * epoch.tokens / epoch.clicks / appetite,
            private_megabytes=epoch.private_bytes / 1e6,
        )
        for users, epoch in zip(sizes, epochs, strict=True)
    ]
    return LoaderFigures(
        trained_tokens_per_second=appetite,
        cost_growth=rows[-1].tokens_per_click / rows[0].tokens_per_click,
        rows=rows,
    )


def first_users(timelines: Timelines, number: int) -> Timelines:
    """The log of so many of its users; mapped as before."""
    offsets = timelines.clicks.offsets[: number + 1]
    return Timelines(
        clicks=Ragged(values=timelines.clicks.values[: offsets[-1]], offsets=offsets),
        click_pools=timelines.click_pools[: offsets[-1]],
        user_pools=timelines.user_pools[:number],
        pools=timelines.pools,
    )


def load_epoch(path: Path, users: int, run: RunConfig) -> Epoch:
    """Go through an epoch, and do nothing else."""
    store = open_store(path)
    lengths_V = news_lengths(store.news)
    batches = clicks = tokens = encoded = read = 0
    started = now()
    with (
        PeakMemory() as peak,
        Loader(first_users(store.train, users), lengths_V, run.batch, epochs=1) as loader,
    ):
        for batch in loader:
            batches += 1
            clicks += batch.num_clicks
            tokens += batch.num_tokens
            encoded += len(batch.encode_E)
            read += len(batch.cached_R)
    return Epoch(
        batches=batches,
        clicks=clicks,
        tokens=tokens,
        encoded=encoded,
        read=read,
        seconds=now() - started,
        private_bytes=peak.growth,
    )


def measure_appetite(run: RunConfig, store: Store, rounds: int) -> float:
    """Tokens a second that training consumes, on batches spread over an epoch."""
    lengths_V = news_lengths(store.news)
    samples = plan(store, run.batch, lengths_V, most_batches=None, num_samples=rounds).samples
    with TemporaryDirectory() as scratch:
        stage = TimedTrainer(run, store, Path(scratch) / "run")
        stage.time_step(samples[0])
        seconds = sum(stage.time_step(batch) for batch in samples)
    return sum(batch.num_tokens for batch in samples) / seconds


def tables(figures: LoaderFigures) -> str:
    """A row per size."""
    return "\n\n".join(
        [
            f"The trainer consumes {figures.trained_tokens_per_second:,.0f} tokens a second. From the smallest "
            f"log to the largest the tokens to encode for a click change by {figures.cost_growth:.2f}x.",
            table(
                [
                    "users",
                    "clicks",
                    "batches/s",
                    "tokens/s",
                    "times appetite",
                    "cached",
                    "tokens a click",
                    "ms a click",
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
    """Speed against appetite, and the cost of a click, as the log grows."""
    figure, (left, right) = new_figures(["Batches are always ready", "What a click costs to learn"])
    clicks = [row.clicks for row in figures.rows]
    left.plot(clicks, [row.tokens_per_second for row in figures.rows], "o-", color=DARK, label="the loader makes")
    left.axhline(figures.trained_tokens_per_second, color=ACCENT, linestyle="--", label="the trainer consumes")
    left.set_yscale("log")
    plain_numbers(left.yaxis)
    left.set_ylabel("tokens a second, log scale")
    left.legend(loc="center right")
    costs = [row.milliseconds_per_click for row in figures.rows]
    right.plot(clicks, costs, "o-", color=DARK)
    right.set_ylabel("milliseconds a click")
    from_zero(right, costs)
    for ax in (left, right):
        ax.set_xlabel("clicks in the log, log scale")
        ax.set_xscale("log")
        plain_numbers(ax.xaxis, clicks)
        ax.margins(x=0.1)
    return [save(figure, folder / "loader.png")]
