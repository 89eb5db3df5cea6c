"""Where the time of a training step goes: waiting for data, encoder, user model, update, cache.

The real loader feeds the real trainer; after some steps to warm up, hooks at the boundaries of the parts take the
time of each:

    waiting for data | gather | encoder forward | user model and loss | encoder backward | update | cache

Learning rates are zero, so that the weights stay those of the pretrained model.

Shapes: M articles, V all articles, E encoded articles, R cache hits, H width of an encoded text.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from speedyfeed.batching.batches import Batch, news_lengths
from speedyfeed.data.store import Store
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.models.packed import PackedNews
from speedyfeed.progress import Report, silent
from speedyfeed.ranges import MANY
from speedyfeed.recipes import recipe
from speedyfeed.training.config import ProfileConfig, RunConfig
from speedyfeed.training.loop import open_loader
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.trainer import Trainer

WAIT, GATHER, CACHE, USER, UPDATE = "waiting for data", "gather", "cache", "user model and loss", "update"
FORWARD, BACKWARD = "encoder forward", "encoder backward"
PARTS = (WAIT, GATHER, FORWARD, USER, BACKWARD, UPDATE, CACHE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Means over the timed steps."""

    waiting_share: float
    """Share of the time spent waiting for the loader."""
    encoder_share: float
    """Share of the time spent in the news encoder's forward and backward pass."""
    shares: dict[str, float]
    """Share of the time of each part, waiting included; they add up to 1."""
    seconds: float
    """Mean duration of a step."""
    clicks: float
    """Mean number of clicks learned in a step."""
    tokens: float
    """Mean number of tokens encoded in a step."""
    cache_hit_rate: float
    """Share of the distinct articles of a batch that the cache supplied."""


def profile(store: Store, config: ProfileConfig, report: Report = silent) -> Profile:
    """Train some steps on a store and measure the share of each part of a step."""
    run = timed_run(config.recipe, encoder=config.encoder, precision=config.precision, seed=config.seed)
    taken: list[Batch] = []
    with (
        TemporaryDirectory() as scratch,
        open_loader(run.for_log(store.train, store.num_news), store.train, news_lengths(store.news)) as loader,
    ):
        trainer = TimedTrainer(run, store, Path(scratch) / "run").trainer
        for batch in islice(loader, config.skip, config.skip + config.warmup):
            trainer.step(batch, lr_factor=0.0)
        watch = Stopwatch(trainer)
        for done in range(config.steps):
            report("step", done, config.steps)
            watch.switch_to(WAIT)
            taken.append(next(loader))
            watch.step(taken[-1])
    weight = trainer.loss.config.fallback_click_weight
    total = sum(watch.seconds.values())
    shares = {part: seconds / total for part, seconds in watch.seconds.items()}
    num_cache_hits = sum(len(batch.cached_R) for batch in taken)
    num_encoded = sum(len(batch.encode_E) for batch in taken)
    return Profile(
        waiting_share=shares[WAIT],
        encoder_share=shares[FORWARD] + shares[BACKWARD],
        shares=shares,
        seconds=total / config.steps,
        clicks=sum(batch.weigh_clicks(weight) for batch in taken) / config.steps,
        tokens=sum(batch.num_tokens for batch in taken) / config.steps,
        cache_hit_rate=num_cache_hits / (num_cache_hits + num_encoded),
    )


def timed_run(
    name: str, *, encoder: str | None, precision: str, seed: int, in_batch: float | None = None
) -> RunConfig:
    """A recipe with a language model, without validations, as its steps are timed.

    With `in_batch` 0 its clicks have the loss of the conventional workflow, so that both can be compared.
    """
    run = recipe(name)
    if run.recommender.uses_words:
        raise InputError(f"--recipe {name}: has no language model; choose one that has, such as speed-mini")
    return replace(
        run,
        news=replace(run.news, encoder=encoder or run.news.encoder),
        loss=run.loss if in_batch is None else replace(run.loss, in_batch=in_batch),
        train=replace(run.train, precision=precision, validations=0, seed=seed, epochs=MANY),
    )


class TimedTrainer:
    """A trainer whose steps are timed, with a cache that holds a row for every article.

    Any batch of an epoch can therefore be taken without those before it. Learning rates are zero: a step costs the
    same and the weights do not move. A conventional batch is timed in pieces, so the update of the weights, which
    its pieces share, is left out.
    """

    def __init__(self, run: RunConfig, store: Store, folder: Path) -> None:
        accumulate = 1 if run.batch.central else run.batch.size
        run = replace(run, train=replace(run.train, accumulate=accumulate))
        self.trainer = Trainer(start_run(folder, run, store), store)
        cache = self.trainer.cache
        if cache is not None:
            rows_VH = torch.nn.functional.normalize(torch.randn(cache.rows_VH[1:].shape), dim=1)
            cache.write(torch.arange(1, len(cache.rows_VH)), rows_VH, step=0)

    def time_step(self, batch: Batch) -> float:
        """Take a training step and return its seconds."""
        started = now()
        self.trainer.step(batch, lr_factor=0.0)
        return now() - started


class Stopwatch:
    """Hooks in a trainer that add up the seconds of each part of its steps.

    Every moment belongs to one part. The encoder's backward pass ends when the last of its parameters has its
    gradient; no other part of the model has a backward pass after it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._trainer = trainer
        self._part = UPDATE
        self._since = self._last_gradient = now()
        encoder, cache = trainer.model.news, trainer.cache
        encoder.encode_text = self._time_encoder(encoder.encode_text)  # type: ignore[assignment,method-assign]
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note_gradient)
        trainer.optimizer.register_step_pre_hook(lambda *_: self._end_backward())
        if cache is not None:
            for name in ("read", "write"):
                setattr(cache, name, self._time_cache(getattr(cache, name)))

    def step(self, batch: Batch) -> None:
        """Take a training step and add its seconds."""
        self.switch_to(GATHER)
        self._trainer.step(batch, lr_factor=0.0)
        self.switch_to(UPDATE)

    def switch_to(self, part: str) -> None:
        """End the current part; the time from now on belongs to `part`."""
        moment = now()
        self.seconds[self._part] += moment - self._since
        self._part, self._since = part, moment

    def _time_encoder(self, encode: Callable[[PackedNews], Tensor]) -> Callable[[PackedNews], Tensor]:
        def timed(news: PackedNews) -> Tensor:
            self.switch_to(FORWARD)
            news_MH = encode(news)
            self.switch_to(USER)
            if news_MH.requires_grad:
                news_MH.register_hook(lambda gradient: self.switch_to(BACKWARD))
            return news_MH

        return timed

    def _note_gradient(self, parameter: Tensor) -> None:
        self._last_gradient = now()

    def _end_backward(self) -> None:
        """Count the time since the last gradient, which clipping takes, to the update."""
        self.seconds[self._part] += self._last_gradient - self._since
        self._part, self._since = UPDATE, self._last_gradient

    def _time_cache(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **options: Any) -> Any:
            part = self._part
            self.switch_to(CACHE)
            try:
                return method(*args, **options)
            finally:
                self.switch_to(part)

        return timed


def now() -> float:
    """Seconds of a monotonic clock, read after the device has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def profile_table(found: Profile) -> str:
    """One sentence about a step and a row per part, in the order of the step."""
    return "\n\n".join(
        [
            f"A step takes {found.seconds:.2f} s, learns {found.clicks:,.0f} clicks and encodes "
            f"{found.tokens:,.0f} tokens; {found.cache_hit_rate:.0%} of its articles are cache hits.",
            table(
                ["part", "share", "ms"],
                [
                    [part, f"{share:.2%}", f"{1e3 * share * found.seconds:,.1f}"]
                    for part, share in found.shares.items()
                ],
            ),
        ]
    )
