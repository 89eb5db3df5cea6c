"""Validation AUC against training time, from the conventional workflow to the default recipe.

All sides begin with the same weights on the same log, train in turn, and are validated after 1/32, 1/16, ..., 1/2
and 1 of their budgets. Clicks per second can be bought by learning less from each; what counts is the time to a
given AUC. Learning rates are the same on all sides and constant, so that an AUC does not depend on the budget of
its side. Time is processor time on a CPU, which other programs hardly change, and time of the clock on CUDA;
validations and setting up a side are not counted. A side has reached an AUC at its first validation with at least
that much.

Example: python -m benchmarks time-to-quality --logs logs/ --minutes 15 --our-minutes 3 --out results/
"""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import torch

from benchmarks.newsroom import WORK, make_newsroom
from benchmarks.speed.speedup import ONLY, variants_of
from speedyfeed.data.store import Store, open_store
from speedyfeed.drawing import ACCENT, COLOURS, DARK, new_figure, save
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.profile import now, timed_run
from speedyfeed.progress import progress_bars
from speedyfeed.ranges import MANY, Ranges, check_ranges
from speedyfeed.recipes import conventional
from speedyfeed.synthetic import SynthConfig
from speedyfeed.training.config import RunConfig
from speedyfeed.training.loop import open_loader
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.trainer import Trainer

log = logging.getLogger(__name__)

CONVENTIONAL = "conventional"
FIELDS = ("title", "abstract")
"""Fields of the articles that are encoded, where logs are prepared here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToQualityConfig:
    """Which log is learned from, and for how long."""

    store: Path | None = None
    """Folder of a prepared store; by default the small newsroom, made in --work."""
    logs: Path | None = None
    """Raw logs, prepared in --work from titles and abstracts; instead of --store."""
    recipe: str = "speed-mini"
    """Recipe of the accelerated run; the conventional run is that recipe with every acceleration off."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""
    precision: str = "fp32"
    """Precision of all sides: fp32, bf16, or fp16 on CUDA."""
    minutes: float = 15.0
    """Training time of the conventional side, in minutes."""
    our_minutes: float = 3.0
    """Training time of every other side, in minutes; AUC in equal time is compared after the shorter of both."""
    validations: int = 6
    """Validations of a side: at the end of its budget, and after a half, a quarter, an eighth ... of it."""
    validation_impressions: int = 2000
    """Impressions of the validation split that are ranked at each validation."""
    sides: tuple[str, ...] = ()
    """Sides to train beside the conventional one, named as in the table of results, such as "default recipe"; by
    default all of them."""
    least_gain: float = 0.005
    """AUC above its start from which on a side has learned something; below that, its AUC is not a goal."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""
    work: Path = WORK
    """Folder for the newsroom and the stores that are made on the way."""

    RANGES: ClassVar[Ranges] = {
        "minutes": (1e-6, MANY),
        "our_minutes": (1e-6, MANY),
        "validations": (1, 30),
        "validation_impressions": (1, MANY),
        "least_gain": (0, 1),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A validation of a side."""

    due: float
    """Seconds of training after which it was due."""
    seconds: float
    """Seconds of training it came after: the step that was running is finished first."""
    clicks: float
    """Clicks learned from until then, each by its weight in the loss."""
    auc: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """AUC of a side in the course of its training."""

    name: str
    points: list[Point]
    """Validations in order; the first is that of the initial weights."""

    @property
    def gain(self) -> float:
        """AUC of the last validation, less that of the initial weights."""
        return self.points[-1].auc - self.points[0].auc

    def best(self, due: float = float("inf")) -> float:
        """Best AUC of the validations that were due until then."""
        return max(point.auc for point in self.points if point.due <= due)

    def seconds_to(self, auc: float) -> float | None:
        """Seconds of training until the first validation with at least this AUC; None if none has it."""
        return next((point.seconds for point in self.points if point.auc >= auc), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """When a side reached a goal."""

    seconds: float | None
    """Seconds of training until the goal; 0 is before any training, None not within the budget."""
    ratio: float | None
    """Seconds of the conventional side as a multiple of these; None where it says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """An AUC, and when each side reached it."""

    what: str
    auc: float
    is_bound: bool
    """Whether the conventional side did not reach it within its budget, so that ratios are lower bounds."""
    arrivals: dict[str, Arrival]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToQualityFigures:
    has_learned: bool
    """Whether the conventional side gained at least `least_gain` within its budget."""
    equal_minutes: float
    """Training time after which `equal_time` compares the sides."""
    equal_time: dict[str, float]
    """Best AUC of each side in equal time."""
    goals: list[Goal]
    """What is to be reached: the conventional AUC, if that side learned something, and half of the best gain."""
    curves: list[Curve]


def measure(config: TimeToQualityConfig) -> TimeToQualityFigures:
    """Train all sides in turn, from one validation to the next."""
    runs = sides_of(config)
    if unknown := sorted(set(config.sides) - set(runs)):
        raise InputError(f"--sides {unknown[0]!r}: no such side; choose {', '.join(runs)}")
    if config.sides:
        runs = {name: run for name, run in runs.items() if name in (CONVENTIONAL, *config.sides)}
    store = _store_of(config)
    with TemporaryDirectory() as scratch, ExitStack() as stack, progress_bars() as report:
        sides: list[Side] = []
        for name, run in runs.items():
            report("set up", len(sides), len(runs), name)
            budget = 60 * (config.minutes if name == CONVENTIONAL else config.our_minutes)
            side = Side(name, run, store, Path(scratch) / str(len(sides)), _due(budget, config.validations))
            stack.callback(side.close)
            side.start_from(sides[0] if sides else None)
            sides.append(side)
        for turn in range(config.validations):
            for done, side in enumerate(sides):
                report("train", turn * len(sides) + done, config.validations * len(sides), side.name)
                side.advance()
        curves = [Curve(name=side.name, points=side.points) for side in sides]
    return summarise(curves, config)


def sides_of(config: TimeToQualityConfig) -> dict[str, RunConfig]:
    """The runs that are compared: the conventional one, one technique after the other, and the recipe as it is."""
    ours, default = (
        _validated(
            timed_run(
                config.recipe,
                encoder=config.encoder,
                precision=config.precision,
                seed=config.seed,
                in_batch=in_batch,
            ),
            config,
        )
        for in_batch in (0.0, None)
    )
    without_gradients = replace(ours, cache=replace(ours.cache, gradients=False))
    ladder = {name: run for name, run in variants_of(without_gradients).items() if not name.startswith(ONLY)}
    return (
        ladder
        | {CONVENTIONAL: conventional(without_gradients)}  # click by click: 32 at once do not fit into memory
        | {"+ cache gradients": ours, "default recipe": default}
    )


class Side:
    """A workflow in training, and its validations so far."""

    def __init__(self, name: str, run: RunConfig, store: Store, folder: Path, due: Iterator[float]) -> None:
        self.name = name
        self.points: list[Point] = []
        self._trainer = Trainer(start_run(folder, run, store), store)
        if self._trainer.validation is None:
            raise InputError(f"{store.path}: expected impressions to validate on; prepare it with --validation")
        self._loader = open_loader(self._trainer.config, store.train, self._trainer.news.lengths_M.numpy())
        self._due = due
        self._seconds = self._clicks = 0.0

    def start_from(self, other: "Side | None") -> None:
        """Take the initial weights of another side, or draw them, and validate them."""
        if other is None:
            self._trainer.initialize()
        else:
            self._trainer.model.load_state_dict(other._trainer.model.state_dict())
        self._validate(0.0)

    def advance(self) -> None:
        """Train until the next validation is due, and validate."""
        due = next(self._due)
        weight = self._trainer.loss.config.fallback_click_weight
        while self._seconds < due:
            started = _clock()
            batch = next(self._loader)
            self._trainer.step(batch, lr_factor=1.0)
            self._seconds += _clock() - started
            self._clicks += batch.weigh_clicks(weight)
        self._validate(due)

    def close(self) -> None:
        """Stop the loader."""
        self._loader.close()

    def _validate(self, due: float) -> None:
        auc = self._trainer.validate()
        log.info("%s: AUC %.4f after %.1f s and %.0f clicks", self.name, auc, self._seconds, self._clicks)
        self.points.append(Point(due=due, seconds=self._seconds, clicks=self._clicks, auc=auc))


def summarise(curves: list[Curve], config: TimeToQualityConfig) -> TimeToQualityFigures:
    """Goals and when each side reached them; the conventional side comes first.

    Where it learned nothing within its budget, its AUC is no goal: the initial weights have it already.
    """
    slow = curves[0]
    has_learned = slow.gain >= config.least_gain
    start, best = (max(values) for values in zip(*((c.points[0].auc, c.best()) for c in curves), strict=True))
    goals = []
    if has_learned:
        last = slow.points[-1]
        goals.append(
            _goal("the AUC of the conventional side after its budget", last.auc, last.seconds, False, curves)
        )
    if best - start >= config.least_gain:
        half, end = (start + best) / 2, slow.points[-1].seconds
        reached = slow.seconds_to(half)
        goals.append(_goal("half of the best gain of any side", half, reached or end, reached is None, curves))
    equal = min(config.minutes, config.our_minutes)
    return TimeToQualityFigures(
        has_learned=has_learned,
        equal_minutes=equal,
        equal_time={curve.name: curve.best(60 * equal) for curve in curves},
        goals=goals,
        curves=curves,
    )


def _goal(what: str, auc: float, seconds: float, is_bound: bool, curves: list[Curve]) -> Goal:
    arrivals = {}
    for curve in curves:
        own = curve.seconds_to(auc)
        arrivals[curve.name] = Arrival(seconds=own, ratio=seconds / own if own else None)
    if not is_bound:  # an earlier validation may have had as much by chance
        arrivals[curves[0].name] = Arrival(seconds=seconds, ratio=1.0)
    else:
        arrivals[curves[0].name] = Arrival(seconds=None, ratio=None)
    return Goal(what=what, auc=auc, is_bound=is_bound, arrivals=arrivals)


def tables(figures: TimeToQualityFigures) -> str:
    """What the conventional side reached, then a row per side."""
    slow = figures.curves[0]
    first, last = slow.points[0], slow.points[-1]
    said = (
        f"The conventional side went from AUC {first.auc:.4f} to {last.auc:.4f} in "
        f"{last.seconds / 60:.1f} minutes of training ({last.clicks:,.0f} clicks)"
    )
    if not figures.has_learned:
        said += ": it learned nothing that counts, so there is no time to its AUC"
    parts = [f"{said}."]
    for goal in figures.goals:
        bound = "; it did not get there, so that ratios are lower bounds" if goal.is_bound else ""
        parts.append(f"Goal: AUC {goal.auc:.4f}, {goal.what}{bound}.")
        parts.append(
            table(
                ["side", "minutes", "conventional time, as a multiple"],
                [
                    [name, _minutes(arrival.seconds), _ratio(arrival.ratio, goal.is_bound)]
                    for name, arrival in goal.arrivals.items()
                ],
            )
        )
    rows = [
        [
            curve.name,
            f"{curve.points[0].auc:.4f}",
            f"{figures.equal_time[curve.name]:.4f}",
            f"{curve.best():.4f}",
            f"{curve.points[-1].seconds / 60:.1f}",
            f"{curve.points[-1].clicks:,.0f}",
            f"{curve.points[-1].clicks / curve.points[-1].seconds:,.1f}",
        ]
        for curve in figures.curves
    ]
    equal = f"best in {figures.equal_minutes:g} minutes"
    parts.append(table(["side", "AUC at start", equal, "best", "minutes", "clicks", "clicks/s"], rows))
    return "\n\n".join(parts)


def draw(figures: TimeToQualityFigures, folder: Path) -> list[Path]:
    """Draw the AUC of every side against its training time, and the goals."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, ax = new_figure("Validation AUC against training time", width=11, height=6)
    last = figures.curves[-1].name
    for number, curve in enumerate(figures.curves):
        colour = {CONVENTIONAL: ACCENT, last: DARK}.get(curve.name, COLOURS[2 + number % (len(COLOURS) - 2)])
        style = "o-" if curve.name in (CONVENTIONAL, last) else "o--"
        start, *trained = curve.points
        minutes = [trained[0].seconds / 120, *(point.seconds / 60 for point in trained)]
        ax.plot(minutes, [start.auc, *(p.auc for p in trained)], style, color=colour, label=curve.name)
    for goal in figures.goals:
        ax.axhline(goal.auc, color="0.3", linewidth=1.5, linestyle=":", label=f"goal: {goal.what}")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel(
        "minutes of training, without validations; log scale\n(the first point of a side is before training)"
    )
    ax.set_ylabel("AUC")
    ax.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    return [save(figure, folder / "time-to-quality.svg")]


def _store_of(config: TimeToQualityConfig) -> Store:
    if config.store is not None and config.logs is not None:
        raise InputError("--store and --logs: expected one of both; leave one out")
    if config.store is not None:
        return open_store(config.store)
    if config.logs is None:
        return make_newsroom(SynthConfig(), config.work).store
    with progress_bars() as report:
        folder = config.work / f"store-{config.logs.absolute().name}"
        return prepare(config.logs, folder, PrepareConfig(fields=FIELDS), report=report).store


def _validated(run: RunConfig, config: TimeToQualityConfig) -> RunConfig:
    train = replace(
        run.train, validations=1, validation_impressions=config.validation_impressions, schedule="constant"
    )
    return replace(run, train=train)


def _due(budget: float, count: int) -> Iterator[float]:
    """Seconds after which validations are due: doubling, the last at the end of the budget."""
    return (budget / 2**halvings for halvings in reversed(range(count)))


def _clock() -> float:
    """Processor seconds of this process, or seconds of the clock where the device is a GPU."""
    return now() if torch.cuda.is_available() else time.process_time()


def _minutes(seconds: float | None) -> str:
    return "not reached" if seconds is None else "at its start" if seconds == 0 else f"{seconds / 60:.2f}"


def _ratio(ratio: float | None, is_bound: bool) -> str:
    return "" if ratio is None else f"{'>= ' if is_bound else ''}{ratio:,.1f}x"
