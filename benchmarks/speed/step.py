"""Where the time of a training step goes: waiting for data, encoder, user model, update, cache.

The real loader feeds the real trainer, some steps after it has warmed up, and a stopwatch stands at the seams of
the step. Nothing but the encoder should be worth making faster: its forward and backward pass are to take at least
85% of a step, and waiting for data less than 2%.

Example: python -m benchmarks step --store store/ --json
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from benchmarks.drawing import ACCENT, DARK, LIGHT, new_figure, save
from benchmarks.harness import now, table
from benchmarks.newsroom import store_of
from benchmarks.speed.speedup import SpeedupConfig, our_run
from benchmarks.speed.stage import Stage
from speedyfeed.batching.batches import Batch, news_lengths
from speedyfeed.batching.loader import Loader
from speedyfeed.models.packed import PackedNews
from speedyfeed.progress import progress_bars
from speedyfeed.training.trainer import Trainer

WAIT, GATHER, CACHE, USER, UPDATE = "waiting for data", "gather", "cache", "user model and loss", "update"
FORWARD, BACKWARD = "encoder forward", "encoder backward"
PARTS = (WAIT, GATHER, FORWARD, USER, BACKWARD, UPDATE, CACHE)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepConfig:
    """What is profiled, and how long."""

    store: Path | None = None
    """Prepared log; without one, a paper-shaped newsroom is made and kept in runs/bench."""
    recipe: str = "speed-mini"
    encoder: str | None = None
    """Another encoder than the recipe's."""
    precision: str = "fp32"
    skip: int = 200
    """Steps that are planned but not taken: the cache should be warm."""
    warmup: int = 2
    """Steps taken before the stopwatch starts."""
    steps: int = 12
    """Steps measured."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    waiting_share: float
    encoder_share: float
    """Of the news encoder's forward and backward pass."""
    shares: dict[str, float]
    """Of the time of all steps, waiting included; they add up to 1."""
    seconds: float
    """Of a step, on average."""
    clicks: float
    tokens: float
    """Encoded by a step."""
    cache_hit_rate: float


def measure(config: StepConfig) -> StepFigures:
    """Take the steps."""
    store = store_of(config.store)
    run = our_run(
        SpeedupConfig(recipe=config.recipe, encoder=config.encoder, precision=config.precision, seed=config.seed)
    )
    taken: list[Batch] = []
    with (
        TemporaryDirectory() as scratch,
        progress_bars() as report,
        Loader(store.train, news_lengths(store.news), run.batch) as loader,
    ):
        trainer = Stage(run, store, Path(scratch) / "run").trainer
        for batch in islice(loader, config.skip, config.skip + config.warmup):
            trainer.step(batch, lr_factor=0.0)
        watch = Stopwatch(trainer)
        for done in range(config.steps):
            report("step", done, config.steps)
            watch.go_on(WAIT)
            taken.append(next(loader))
            watch.step(taken[-1])
    total = sum(watch.seconds.values())
    shares = {part: seconds / total for part, seconds in watch.seconds.items()}
    num_cache_hits = sum(len(batch.cached_R) for batch in taken)
    num_encoded = sum(len(batch.encode_E) for batch in taken)
    return StepFigures(
        waiting_share=shares[WAIT],
        encoder_share=shares[FORWARD] + shares[BACKWARD],
        shares=shares,
        seconds=total / config.steps,
        clicks=sum(batch.num_clicks for batch in taken) / config.steps,
        tokens=sum(batch.num_tokens for batch in taken) / config.steps,
        cache_hit_rate=num_cache_hits / (num_cache_hits + num_encoded),
    )


class Stopwatch:
    """Tells the parts of a trainer's steps apart, by hooks where one ends and the next begins.

        gather | encoder forward | last layer, user model, loss, forward and backward | encoder backward | update

    Every moment belongs to one part. The encoder's backward pass lasts until the last of its parameters has its
    gradient; nothing else of the model comes after it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._trainer = trainer
        self._part = UPDATE
        self._since = self._last_gradient = now()
        encoder, cache = trainer.model.news, trainer.cache
        encoder.encode_text = self._reading(encoder.encode_text)  # type: ignore[assignment,method-assign]
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note_gradient)
        trainer.optimizer.register_step_pre_hook(lambda *_: self._end_backward())
        if cache is not None:
            for name in ("read", "write"):
                setattr(cache, name, self._around(getattr(cache, name)))

    def step(self, batch: Batch) -> None:
        """Take a step, and stop."""
        self.go_on(GATHER)
        self._trainer.step(batch, lr_factor=0.0)
        self.go_on(UPDATE)

    def go_on(self, part: str) -> None:
        """What passes from here on belongs to `part`."""
        moment = now()
        self.seconds[self._part] += moment - self._since
        self._part, self._since = part, moment

    def _reading(self, read: Callable[[PackedNews], Tensor]) -> Callable[[PackedNews], Tensor]:
        """The same, on the encoder's account, backward pass included."""

        def timed(news: PackedNews) -> Tensor:
            self.go_on(FORWARD)
            news_MH = read(news)
            self.go_on(USER)
            if news_MH.requires_grad:
                news_MH.register_hook(lambda gradient: self.go_on(BACKWARD))
            return news_MH

        return timed

    def _note_gradient(self, parameter: Tensor) -> None:
        self._last_gradient = now()

    def _end_backward(self) -> None:
        """Clipping, since the last gradient, is part of the update."""
        self.seconds[self._part] += self._last_gradient - self._since
        self._part, self._since = UPDATE, self._last_gradient

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same, on the cache's account."""

        @wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            part = self._part
            self.go_on(CACHE)
            try:
                return method(*args, **options)
            finally:
                self.go_on(part)

        return timed


def tables(figures: StepFigures) -> str:
    """Shares, the parts in the order of the step."""
    return "\n\n".join(
        [
            f"A step takes {figures.seconds:.2f} s, learns {figures.clicks:,.0f} clicks and encodes "
            f"{figures.tokens:,.0f} tokens; {figures.cache_hit_rate:.0%} of its news come from the cache.",
            table(
                ["part", "share", "ms"],
                [
                    [part, f"{share:.2%}", f"{1e3 * share * figures.seconds:,.1f}"]
                    for part, share in figures.shares.items()
                ],
            ),
        ]
    )


def draw(figures: StepFigures, folder: Path) -> list[Path]:
    """A bar per part."""
    figure, ax = new_figure(f"Where a training step of {figures.seconds:.1f} s goes", height=4.6)
    parts = list(figures.shares)
    colours = [DARK if part in (FORWARD, BACKWARD) else ACCENT if part == WAIT else LIGHT for part in parts]
    shares = [100 * share for share in figures.shares.values()]
    ax.barh(parts, shares, color=colours)
    for place, share in enumerate(shares):
        ax.text(share + 0.7, place, f"{share:.1f}%" if share >= 0.1 else f"{share:.2f}%", va="center")
    ax.invert_yaxis()
    ax.set_xlim(0, max(shares) * 1.15)
    ax.set_xlabel("% of the time of a step, waiting included")
    return [save(figure, folder / "step.png")]
