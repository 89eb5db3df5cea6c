"""Cost of a click and speed-up as a log grows, with its users and its articles in proportion.

A log is repeated: every copy has its own users and its own articles, so that popularity is distributed as in the
log itself. The real loader plans an epoch of each size from a cold cache, which gives the tokens to encode per
click; training steps on batches of the log itself, ours and conventional in turn, give the seconds per token.

Example: python -m benchmarks growth --store store/ --copies 1 4 16 --recipes speed-mini paper-mini
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.newsroom import store_of
from benchmarks.speed.planned import cut, plan, repeat
from benchmarks.speed.speedup import PLANNED_BATCHES, deduplicated
from speedyfeed.batching.batches import news_lengths
from speedyfeed.data.store import Store
from speedyfeed.drawing import ACCENT, DARK, from_zero, new_figures, plain_numbers, save
from speedyfeed.markdown import table
from speedyfeed.profile import TimedTrainer, timed_run
from speedyfeed.progress import progress_bars
from speedyfeed.recipes import CONVENTIONAL_SIZE, conventional
from speedyfeed.training.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthConfig:
    """Which log is repeated how often, and which recipes are compared with their conventional form."""

    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in runs/bench."""
    copies: tuple[int, ...] = (1, 4, 16)
    """How often the log is repeated, one measurement each."""
    recipes: tuple[str, ...] = ("speed-mini", "paper-mini")
    """Recipes of the accelerated runs; each is compared with its own conventional form."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipes'."""
    precision: str = "fp32"
    """Precision of all runs: fp32, bf16, or fp16 on CUDA."""
    rounds: int = 3
    """Timed steps of each run, after one to warm up; 0 plans alone."""
    most_batches: int | None = None
    """Batches planned of each size, at most; by default whole epochs."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthRow:
    """A recipe on a log of one size."""

    recipe: str
    users: int
    news: int
    token_budget: int
    """Token budget of a step, as the size of the log has it."""
    gamma: int
    """Number of steps for which a cached embedding is reused, as the size of the log has it."""
    batches: int
    clicks: float
    """Clicks learned in the planned batches, by their weight in the loss."""
    max_clicks_share: float
    """Share of the batches that `max_clicks_per_batch` ended, before their tokens reached the budget."""
    tokens_per_click: float
    cost_growth: float
    """Tokens per click, as a multiple of those of the smallest log."""
    cache_hit_rate: float
    token_ratio: float
    """Tokens per click of the conventional workflow, as a multiple of these."""
    deduplicated_token_ratio: float
    """Tokens per click of a conventional workflow that encodes each distinct article of a batch once, likewise."""
    speedup: tuple[float, float] | None
    """Speed-up over the conventional workflow, least and most by round of timed steps; None if none were timed."""
    over_deduplicated: tuple[float, float] | None
    """Speed-up over a conventional workflow that encodes each distinct article of a batch once, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthFigures:
    rows: list[GrowthRow]


def measure(config: GrowthConfig) -> GrowthFigures:
    """Time steps of every recipe and of its conventional form, then plan all sizes."""
    store = store_of(config.store)
    rows = []
    for name in config.recipes:
        run = timed_run(name, encoder=config.encoder, precision=config.precision, seed=config.seed, in_batch=0.0)
        rows += measure_recipe(name, run, store, config)
    return GrowthFigures(rows=rows)


def measure_recipe(name: str, run: RunConfig, store: Store, config: GrowthConfig) -> list[GrowthRow]:
    """Rows of one recipe, the smallest log first."""
    slow = conventional(run)
    slow = replace(slow, batch=replace(slow.batch, size=CONVENTIONAL_SIZE), train=run.train)
    ratios = time_ratios(run, slow, store, config.rounds)
    rows: list[GrowthRow] = []
    with progress_bars() as report:
        for done, copies in enumerate(sorted(config.copies)):
            report(f"plan {name}", done, len(config.copies), f"{copies} copies")
            train, lengths_V = repeat(store.train, news_lengths(store.news), copies)
            ours = plan(train, run, lengths_V, most_batches=config.most_batches, num_samples=1)
            other, shared = (
                plan(train, one, lengths_V, most_batches=PLANNED_BATCHES // 10, num_samples=1)
                for one in (slow, deduplicated(slow))
            )
            tokens = ours.padded_tokens / ours.clicks
            factors = [one.padded_tokens / one.clicks / tokens for one in (other, shared)]
            ranges = [(factor * min(ratios), factor * max(ratios)) if ratios else None for factor in factors]
            rows.append(
                GrowthRow(
                    recipe=name,
                    users=len(train.clicks),
                    news=len(lengths_V) - 1,
                    token_budget=ours.run.batch.tokens_per_batch,
                    gamma=ours.run.cache_in_use.max_age,
                    batches=ours.batches,
                    clicks=ours.clicks,
                    max_clicks_share=ours.full / ours.batches,
                    tokens_per_click=tokens,
                    cost_growth=tokens / rows[0].tokens_per_click if rows else 1.0,
                    cache_hit_rate=ours.cache_hits / (ours.cache_hits + ours.encoded),
                    token_ratio=factors[0],
                    deduplicated_token_ratio=factors[1],
                    speedup=ranges[0],
                    over_deduplicated=ranges[1],
                )
            )
    return rows


def time_ratios(run: RunConfig, slow: RunConfig, store: Store, rounds: int) -> list[float]:
    """Seconds per token of the conventional workflow, as multiples of ours, by round; empty without rounds."""
    if not rounds:
        return []
    lengths_V = news_lengths(store.news)
    samples = {
        one: plan(store.train, one, lengths_V, most_batches=most, num_samples=rounds).samples
        for one, most in ((slow, PLANNED_BATCHES // 10), (run, None))
    }
    pieces = {one: [cut(batch, one.batch, lengths_V) for batch in batches] for one, batches in samples.items()}
    with TemporaryDirectory() as scratch, progress_bars() as report:
        trainers = {one: TimedTrainer(one, store, Path(scratch) / str(done)) for done, one in enumerate(pieces)}
        for one, trainer in trainers.items():
            trainer.time_step(pieces[one][0].batch)
        ratios = []
        for turn in range(rounds):
            report("time", turn, rounds)
            before, after = (
                trainer.time_step(pieces[one][turn].batch) / pieces[one][turn].tokens
                for one, trainer in trainers.items()
            )
            ratios.append(before / after)
    return ratios


def tables(figures: GrowthFigures) -> str:
    """A row per recipe and size."""
    return table(
        [
            "recipe",
            "users",
            "articles",
            "token budget",
            "gamma",
            "tokens/click",
            "growth",
            "cache hits",
            "ended by max clicks",
            "fewer tokens",
            "than deduplicated",
            "speed-up",
            "over deduplicated",
        ],
        [
            [
                row.recipe,
                f"{row.users:,}",
                f"{row.news:,}",
                f"{row.token_budget:,}",
                str(row.gamma),
                f"{row.tokens_per_click:,.1f}",
                f"{row.cost_growth:.2f}x",
                f"{row.cache_hit_rate:.0%}",
                f"{row.max_clicks_share:.0%}",
                f"{row.token_ratio:,.0f}x",
                f"{row.deduplicated_token_ratio:,.0f}x",
                _range(row.speedup),
                _range(row.over_deduplicated),
            ]
            for row in figures.rows
        ],
    )


def draw(figures: GrowthFigures, folder: Path) -> list[Path]:
    """Draw the cost of a click and the speed-up against the number of users."""
    figure, (left, right) = new_figures(["Tokens to encode per click", "Speed-up over conventional training"])
    for name, colour in zip(dict.fromkeys(row.recipe for row in figures.rows), (DARK, ACCENT), strict=False):
        rows = [row for row in figures.rows if row.recipe == name]
        users = [row.users for row in rows]
        left.plot(users, [row.tokens_per_click for row in rows], "o-", color=colour, label=name)
        timed = [row.speedup for row in rows if row.speedup is not None]
        if timed:
            right.plot(users, [sum(pair) / 2 for pair in timed], "o-", color=colour, label=name)
    from_zero(left, [row.tokens_per_click for row in figures.rows])
    left.legend()
    for ax in (left, right):
        ax.set_xlabel("users, articles in proportion; log scale")
        ax.set_xscale("log")
        plain_numbers(ax.xaxis, sorted({row.users for row in figures.rows}))
        ax.margins(x=0.1)
    return [save(figure, folder / "growth.png")]


def _range(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:,.0f} to {pair[1]:,.0f}x"
