"""Speed-up over the conventional workflow in clicks learned per second, and the factor of each technique.

All variants train the same encoder in the same precision on the same clicks of the same store. The real loader
plans an epoch from a cold cache, which gives the tokens to encode per click; real training steps on batches of
that plan, all variants in turn, give the seconds per token. Our epoch is planned whole; the other variants are
planned and measured on a part of theirs, and scaled.

Example: python -m benchmarks speedup --store store/ --json
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.newsroom import store_of
from benchmarks.speed.planned import Piece, Plan, cut, plan
from speedyfeed.batching.batches import news_lengths
from speedyfeed.batching.sample import Sampler
from speedyfeed.data.store import Store
from speedyfeed.drawing import DARK, LIGHT, new_figure, plain_numbers, save
from speedyfeed.markdown import table
from speedyfeed.profile import TimedTrainer, timed_run
from speedyfeed.progress import progress_bars
from speedyfeed.recipes import CONVENTIONAL_SIZE, conventional
from speedyfeed.training.config import RunConfig

PAPER_OVERALL = 128.7
PAPER_TECHNIQUES = {"central and batching": 3.0, "cache": 1.98, "autoregressive": 17.0, "BusLM": 1.27}
"""Factor of each technique on top of those before it; their product is the overall one."""
PLANNED_BATCHES = 5000
"""Batches planned of the variants whose epoch is too long to plan whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedupConfig:
    """Which run is compared with its conventional form, and over how many steps."""

    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in runs/bench."""
    recipe: str = "speed-mini"
    """Recipe of the accelerated run; the conventional run is that recipe with every acceleration off."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""
    precision: str = "fp32"
    """Precision of all variants: fp32, bf16, or fp16 on CUDA."""
    rounds: int = 3
    """Timed steps of each variant, after one to warm up."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One workflow, from the conventional one to ours, planned and timed."""

    name: str
    batches: int
    """Number of planned batches."""
    clicks: float
    """Clicks learned in the planned batches."""
    epoch_share: float
    """Planned share of the clicks of an epoch; the rest is assumed to cost the same."""
    tokens_per_click: float
    """Tokens to encode per click, padding included."""
    data_efficiency: float
    """Share of the encoded tokens that is not padding."""
    cache_hit_rate: float
    """Share of the distinct articles of a batch that are cache hits."""
    timed_tokens: int
    """Tokens encoded in the timed steps, padding included."""
    timed_seconds: float
    """Seconds of all timed steps together."""
    seconds_per_token: list[float]
    """Seconds to encode and learn a token, by timed step."""

    @property
    def seconds_per_click(self) -> float:
        """Seconds to learn a click."""
        return self.tokens_per_click * self.timed_seconds / self.timed_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedupFigures:
    overall: float
    """Clicks learned per second, as a multiple of the conventional workflow's."""
    overall_range: tuple[float, float]
    """Smallest and largest such multiple among the rounds of timed steps."""
    over_deduplicated: float
    """Clicks per second as a multiple of a conventional workflow that encodes each article of a batch once."""
    techniques: dict[str, float]
    """Factor of each technique on top of those before it; their product is `overall`."""
    alone: dict[str, float]
    """Factor of each technique alone, over the conventional workflow."""
    clicks: dict[str, float]
    """Clicks of an epoch by their weight in the loss, conventional and ours."""
    users: dict[str, int]
    """Users of an epoch, conventional and ours."""
    news: int
    epoch_hours: dict[str, float]
    """Hours of an epoch, conventional and ours."""
    seconds_per_click: dict[str, float]
    """Seconds to learn a click, by variant."""
    variants: list[Variant]


ONLY, THEN = "only ", "+ "

Switch = Callable[[RunConfig], RunConfig]


def switches(ours: RunConfig) -> Mapping[str, Switch]:
    """Functions that turn one technique on, in the order of the paper's table."""

    def batch(*names: str) -> Switch:
        changes: dict[str, Any] = {name: getattr(ours.batch, name) for name in names}
        return lambda run: replace(run, batch=replace(run.batch, **changes))

    return {
        "central and batching": batch("central", "size"),
        "cache": lambda run: replace(run, cache=replace(run.cache, gamma=ours.cache.gamma)),
        "autoregressive": batch("autoregressive"),
        "BusLM": lambda run: replace(run, news=replace(run.news, segments=ours.news.segments)),
        "packing": batch("mode"),
    }


def variants_of(ours: RunConfig) -> dict[str, RunConfig]:
    """The conventional run, each technique alone (`only ...`), and one after the other (`+ ...`) up to ours."""
    slow, known = conventional(ours), switches(ours)
    # Planned as whole updates; `cut` cuts them into pieces that fit into memory.
    # Without the in-batch loss, all of them learn from the same clicks.
    slow = replace(
        slow,
        loss=replace(slow.loss, in_batch=0.0),
        batch=replace(slow.batch, size=CONVENTIONAL_SIZE),
        train=ours.train,
    )
    _, *others = known  # the first alone is the first of those one after the other
    _, *steps = accumulate(known.values(), lambda run, switch: switch(run), initial=slow)
    steps[-1] = replace(steps[-1], loss=ours.loss)  # an in-batch loss needs all of them
    return (
        {"conventional": slow}
        | {f"{ONLY}{name}": known[name](slow) for name in others}
        | {f"{THEN}{name}": step for name, step in zip(known, steps, strict=True)}
    )


def measure(config: SpeedupConfig) -> SpeedupFigures:
    """Plan every variant, then time steps of all in turn."""
    store = store_of(config.store)
    runs = variants_of(our_run(config))
    first, last = next(iter(runs)), next(reversed(runs))
    lengths_V = news_lengths(store.news)
    plans: dict[str, Plan] = {}
    pieces: dict[str, list[Piece]] = {}
    trainers: dict[str, TimedTrainer] = {}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with TemporaryDirectory() as scratch, progress_bars() as report:
        for done, (name, run) in enumerate(runs.items()):
            report("plan", done, len(runs), name)
            most = None if name == last else PLANNED_BATCHES
            plans[name] = plan(store.train, run, lengths_V, most_batches=most, num_samples=config.rounds)
            pieces[name] = [cut(batch, run.batch, lengths_V) for batch in plans[name].samples]
        for done, (name, run) in enumerate(runs.items()):
            report("warm up", done, len(runs), name)
            trainers[name] = TimedTrainer(run, store, Path(scratch) / str(done))
            trainers[name].time_step(pieces[name][0].batch)
        for turn in range(config.rounds):
            for done, (name, trainer) in enumerate(trainers.items()):
                report("time", turn * len(runs) + done, config.rounds * len(runs), name)
                seconds[name].append(trainer.time_step(pieces[name][turn].batch))
        shared = plan(
            store.train,
            deduplicated(runs[first]),
            lengths_V,
            most_batches=PLANNED_BATCHES,
            num_samples=1,
        )
    variants = [
        _variant(name, plan, pieces[name], seconds[name], epoch_clicks=plans[last].clicks)
        for name, plan in plans.items()
    ]
    return _summarise(store, runs[first], variants, plans[last].users, shared.padded_tokens / shared.clicks)


def our_run(config: SpeedupConfig) -> RunConfig:
    """The accelerated run, which the conventional one is compared with."""
    return timed_run(
        config.recipe, encoder=config.encoder, precision=config.precision, seed=config.seed, in_batch=0.0
    )


def deduplicated(slow: RunConfig) -> RunConfig:
    """The conventional run, but with each distinct article of a batch encoded once, as any careful port does."""
    return replace(slow, batch=replace(slow.batch, central=True))


def count_conventional(store: Store, run: RunConfig) -> tuple[int, int]:
    """Clicks and users of a conventional epoch, which has one instance per click and is too long to plan."""
    config = run.batch
    sampler = Sampler(
        store.train,
        num_news=store.num_news,
        max_clicks=config.max_clicks,
        negatives=config.negatives,
        seed=0,  # counts do not depend on it
        autoregressive=False,
        without_negatives=run.loss_on(store.train).without_negatives,
        first_click=config.first_click,
    )
    clicks = np.unique(sampler.order(0))
    return len(clicks), len(np.unique(np.searchsorted(store.train.clicks.offsets, clicks, side="right")))


def _variant(name: str, plan: Plan, pieces: list[Piece], seconds: list[float], *, epoch_clicks: float) -> Variant:
    return Variant(
        name=name,
        batches=plan.batches,
        clicks=plan.clicks,
        epoch_share=plan.clicks / epoch_clicks,
        tokens_per_click=plan.padded_tokens / plan.clicks,
        data_efficiency=plan.tokens / plan.padded_tokens,
        cache_hit_rate=plan.cache_hits / (plan.cache_hits + plan.encoded),
        timed_tokens=sum(piece.tokens for piece in pieces),
        timed_seconds=sum(seconds),
        seconds_per_token=[taken / piece.tokens for taken, piece in zip(seconds, pieces, strict=True)],
    )


def _summarise(
    store: Store, slow: RunConfig, variants: list[Variant], users: int, shared_tokens_per_click: float
) -> SpeedupFigures:
    seconds = {variant.name: variant.seconds_per_click for variant in variants}
    conventional, ours = variants[0], variants[-1]
    base = conventional.seconds_per_click
    chain = [variant for variant in variants if not variant.name.startswith(ONLY)]
    techniques = {
        after.name.removeprefix(THEN): before.seconds_per_click / after.seconds_per_click
        for before, after in pairwise(chain)
    }
    joint = next(iter(techniques))
    alone = {name.removeprefix(ONLY): base / value for name, value in seconds.items() if name.startswith(ONLY)}
    slow_clicks, slow_users = count_conventional(store, slow)
    overall, tokens = base / ours.seconds_per_click, conventional.tokens_per_click / ours.tokens_per_click
    ratios = [
        tokens * before / after
        for before, after in zip(conventional.seconds_per_token, ours.seconds_per_token, strict=True)
    ]
    return SpeedupFigures(
        overall=overall,
        overall_range=(min(ratios), max(ratios)),
        # Its sequences are those of the conventional workflow, and so are its seconds per token.
        over_deduplicated=overall * shared_tokens_per_click / conventional.tokens_per_click,
        techniques=techniques,
        alone={joint: techniques[joint], **alone},
        clicks={"conventional": slow_clicks, "ours": ours.clicks},
        users={"conventional": slow_users, "ours": users},
        news=store.num_news,
        epoch_hours={
            "conventional": slow_clicks * base / 3600,
            "ours": ours.clicks * ours.seconds_per_click / 3600,
        },
        seconds_per_click=seconds,
        variants=variants,
    )


def tables(figures: SpeedupFigures) -> str:
    """The factors beside the paper's, then the figures of every variant."""
    hours = figures.epoch_hours
    ratios = [
        [name, f"{ratio:.2f}x", f"{figures.alone[name]:.2f}x", _times(PAPER_TECHNIQUES.get(name))]
        for name, ratio in figures.techniques.items()
    ]
    rows = [
        [
            variant.name,
            f"{variant.tokens_per_click:,.1f}",
            f"{variant.data_efficiency:.0%}",
            f"{variant.cache_hit_rate:.0%}",
            f"{variant.timed_tokens / variant.timed_seconds:,.0f}",
            f"{1e3 * variant.seconds_per_click:,.2f}",
            f"{figures.seconds_per_click['conventional'] / variant.seconds_per_click:,.1f}x",
            f"{variant.epoch_share:.1%}",
        ]
        for variant in figures.variants
    ]
    return "\n\n".join(
        [
            f"A click is learned {figures.overall:.1f} times as fast as conventionally "
            f"({figures.overall_range[0]:.0f} to {figures.overall_range[1]:.0f} by round of timed steps), and "
            f"{figures.over_deduplicated:.1f} times as fast as in a conventional workflow that encodes each "
            f"distinct article of a batch once; the paper's ratio is {PAPER_OVERALL}. An epoch of "
            f"{figures.clicks['ours']:,.0f} clicks by {figures.users['ours']:,} "
            f"users on {figures.news:,} articles takes {hours['ours']:.2f} hours; the conventional epoch, "
            f"{figures.clicks['conventional']:,.0f} clicks by {figures.users['conventional']:,} users, would "
            f"take {hours['conventional']:,.0f} hours, scaled from the part that was measured.",
            table(
                ["technique", "on top of those above", "alone", "paper"],
                [*ratios, ["overall", f"{figures.overall:.1f}x", "", _times(PAPER_OVERALL)]],
            ),
            table(
                [
                    "",
                    "tokens/click",
                    "not padding",
                    "cache hits",
                    "tokens/s",
                    "ms/click",
                    "speed-up",
                    "planned of epoch",
                ],
                rows,
            ),
        ]
    )


def draw(figures: SpeedupFigures, folder: Path) -> list[Path]:
    """Draw the speed-up as the techniques are added one by one, with the paper's beside it."""
    names = ["conventional", *(f"{THEN}{name}" for name in figures.techniques)]
    found = np.cumprod([1.0, *figures.techniques.values()])
    paper = np.cumprod([1.0, *PAPER_TECHNIQUES.values()])
    figure, ax = new_figure("Clicks learned in the same time", height=5.2)
    rows = range(len(names))
    ax.barh(rows, found, color=[LIGHT] * (len(names) - 1) + [DARK])
    for row, ratio in zip(rows, found, strict=True):
        ax.text(
            ratio * 1.15,
            row,
            f"{ratio:,.1f}x" if ratio < 10 else f"{ratio:,.0f}x",
            va="center",
            fontweight="bold",
        )
    ax.plot(
        paper, rows[: len(paper)], "D", color="black", markerfacecolor="none", label="the paper (UniLM, 4 V100)"
    )
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.set_xscale("log")
    plain_numbers(ax.xaxis)
    ax.set_xlim(0.7, max(found.max(), paper.max()) * 3)
    ax.set_xlabel("times as many as in the conventional workflow, log scale")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))
    return [save(figure, folder / "speedup.png")]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:g}x"
