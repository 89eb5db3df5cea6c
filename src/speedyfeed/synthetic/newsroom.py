"""A newsroom with planted interests and a known best possible score, written as train, dev and test logs.

Users have tastes for sections, subtopics, entities and angles, articles have words of theirs, and clicks follow
taste, popularity and freshness. A model that uses the text can therefore learn what ids and sections cannot
tell: dev comes after train and test after dev, when most articles are new and some of their words, too. Blocks
of users and of articles are drawn, written and discarded, each from its own seed, so memory is bounded and time
grows with the number of clicks.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from speedyfeed.data.tables import NEWS
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, write_json
from speedyfeed.progress import Report, silent
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges
from speedyfeed.synthetic.audience import (
    DAY_SECONDS,
    Visits,
    draw_num_clicks,
    draw_visits,
)
from speedyfeed.synthetic.figures import Figure, Tally
from speedyfeed.synthetic.files import MindSplit, ParquetSplit, SplitWriter
from speedyfeed.synthetic.ladder import Ladder, Rung
from speedyfeed.synthetic.lexicon import load_lexicon
from speedyfeed.synthetic.pages import Pages, build_pages
from speedyfeed.synthetic.popularity import LIFE, SLOT_SECONDS, Ints
from speedyfeed.synthetic.storylines import build_storylines
from speedyfeed.synthetic.tastes import draw_interests, draw_tastes
from speedyfeed.synthetic.text import Stories, Writer
from speedyfeed.synthetic.world import MISSING, World, build_world, num_slots_of

SPLITS: dict[str, Callable[[Path], SplitWriter]] = {"mind": MindSplit, "parquet": ParquetSplit}
USERS_PER_BLOCK = 8192
NEWS_PER_BLOCK = 4096
SAMPLE_USERS = 2048
"""Number of users in the sample that popularity is fitted to."""
MIN_DAYS = 3
DEV_SHARE = 1 / 8
"""Share of the days in the dev split, which has at least one; the day after it is test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A kind of newsroom: its default size and the proportions of its log."""

    users: int
    news: int
    days: int
    history_share: float
    """Share of the days whose clicks appear only as histories of train users."""
    sharpness: float
    """Exponent on the paper's click shares. A small newsroom cannot have their extremes; slightly above 1 makes up
    for articles whose lives are cut off by the ends of the log."""

    @property
    def end(self) -> int:
        """Second at which the log ends."""
        return self.days * DAY_SECONDS

    @property
    def train_start(self) -> int:
        """Second at which train begins; clicks before it are histories only."""
        return int(self.end * self.history_share)

    @property
    def test_start(self) -> int:
        """Second at which dev ends and test begins."""
        return self.end - DAY_SECONDS

    @property
    def dev_start(self) -> int:
        """Second at which train ends and dev begins."""
        return self.test_start - max(1, round(self.days * DEV_SHARE)) * DAY_SECONDS


SHAPES = {
    "small": Shape(users=4000, news=3500, days=14, history_share=0.25, sharpness=0.5),
    "paper": Shape(users=4_720_192, news=1_202_576, days=123, history_share=0.0, sharpness=1.06),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SynthConfig:
    """Settings of a synthetic newsroom."""

    users: int | None = None
    """Number of users; by default that of the shape."""
    news: int | None = None
    """Number of articles; by default that of the shape."""
    days: int | None = None
    """Length of the log in days; by default that of the shape."""
    seed: int = 0
    """Seed of all random draws; equal seeds give equal files, byte for byte."""
    shape: Literal["small", "paper"] = "small"
    """Size and proportions: small is quick to make and like MIND, paper is like the paper's log."""
    format: Literal["mind", "parquet"] = "mind"
    """Format of the files to write; only parquet has article bodies."""

    RANGES: ClassVar[Ranges] = {
        "users": (1, MANY),
        "news": (1, MANY),
        "days": (1, 10_000),
        "seed": (0, MAX_SEED),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Newsroom:
    """Facts about a newsroom that was made; saved in its folder as newsroom.json."""

    config: SynthConfig
    num_users: int
    num_news: int
    num_clicks: int
    num_train_impressions: int
    num_dev_impressions: int
    num_test_impressions: int
    best_auc: float
    """AUC on dev of the true preferences, the best possible in expectation."""
    popularity_auc: float
    """AUC on dev of popularity and freshness alone, which need no knowledge of the user."""
    ladder: tuple[Rung, ...]
    """AUCs on dev from chance to the best possible, on impressions of the first users of a large log."""
    figures: tuple[Figure, ...]
    """Figures of the log beside the paper's."""


def synthesize(out: str | Path, config: SynthConfig, progress: Report | None = None) -> Newsroom:
    """Write a newsroom to the folder `out`, completely or not at all."""
    shape = _choose_shape(config)
    with new_folder(Path(out)) as folder:
        newsroom = _write_newsroom(folder, config, shape, progress or silent)
        write_json(folder / "newsroom.json", asdict(newsroom))
    return newsroom


def _choose_shape(config: SynthConfig) -> Shape:
    """The requested shape with the requested size."""
    if config.shape not in SHAPES:
        raise InputError(f"shape {config.shape!r}: expected one of {', '.join(SHAPES)}")
    if config.format not in SPLITS:
        raise InputError(f"format {config.format!r}: expected one of {', '.join(SPLITS)}")
    sizes = {"users": config.users, "news": config.news, "days": config.days}
    given = {name: size for name, size in sizes.items() if size is not None}
    shape = replace(SHAPES[config.shape], **given)
    if shape.users < 1:
        raise InputError(f"users {shape.users}: expected 1 or more")
    if shape.days < MIN_DAYS:
        raise InputError(f"days {shape.days}: expected {MIN_DAYS} or more, for train, dev and test")
    fewest = num_slots_of(shape.days)
    if shape.news < fewest:
        raise InputError(f"news {shape.news}: expected {fewest} or more; raise --news or lower --days")
    return shape


def _write_newsroom(folder: Path, config: SynthConfig, shape: Shape, progress: Report) -> Newsroom:
    rng = _rng(config.seed, 0)
    storylines = build_storylines(load_lexicon(), days=shape.days, rng=rng)
    interests = draw_interests(storylines, rng)
    world = build_world(
        num_news=shape.news,
        days=shape.days,
        storylines=storylines,
        interests=interests,
        tastes=draw_tastes(SAMPLE_USERS, interests, rng),
        num_clicks=draw_num_clicks(SAMPLE_USERS, shape.days, rng),
        sharpness=shape.sharpness,
        rng=rng,
    )
    number = rng.permutation(shape.news)  # of the articles with ids N1, N2, ...: an id carries no information
    news_ids = pa.array([f"N{position + 1}" for position in np.argsort(number)], pa.string())
    tally, ladder = Tally.of(world), Ladder(world=world)
    with ExitStack() as stack:
        train, dev, test = (
            stack.enter_context(closing(SPLITS[config.format](folder / name))) for name in ("train", "dev", "test")
        )
        progress("write users", 0, shape.users)
        for block in _draw_blocks(world, shape, config.seed):
            train.write_pages(block.train, block.first_user, news_ids)
            dev.write_pages(block.dev, block.first_user, news_ids)
            test.write_pages(block.test, block.first_user, news_ids)
            tally.add_users(block.visits, block.train, block.dev, block.test)
            ladder.add_users(block.visits, block.dev, shape.dev_start)
            progress("write users", block.first_user + len(block.visits.tastes), shape.users)
        if not (tally.num_train_impressions and tally.num_aucs and tally.num_test_impressions):
            raise InputError(f"users {shape.users}: too few for train, dev and test; raise --users")
        progress("write articles", 0, shape.news)
        for numbers, news in _draw_news(world, number, shape, config.seed, has_bodies=config.format == "parquet"):
            train.write_news(news.filter(pa.array(tally.in_train[numbers])))
            dev.write_news(news.filter(pa.array(tally.in_dev[numbers])))
            test.write_news(news.filter(pa.array(tally.in_test[numbers])))
            tally.add_news(news)
            progress("write articles", tally.num_written, shape.news)
    return Newsroom(
        config=config,
        num_users=shape.users,
        num_news=shape.news,
        num_clicks=int(tally.clicks.sum()),
        num_train_impressions=tally.num_train_impressions,
        num_dev_impressions=tally.num_dev_impressions,
        num_test_impressions=tally.num_test_impressions,
        best_auc=tally.best_auc,
        popularity_auc=tally.popularity_auc,
        ladder=ladder.rungs(),
        figures=tally.figures(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A block of users and their part of each split."""

    first_user: int
    visits: Visits
    train: Pages
    dev: Pages
    test: Pages


def _draw_blocks(world: World, shape: Shape, seed: int) -> Iterator[_Block]:
    """Draw all users, some thousands at a time."""
    for block, first_user in enumerate(range(0, shape.users, USERS_PER_BLOCK)):
        rng = _rng(seed, 1, block)
        num_users = min(USERS_PER_BLOCK, shape.users - first_user)
        visits = draw_visits(world, num_users=num_users, days=shape.days, shown_from=shape.train_start, rng=rng)
        starts = (shape.train_start, shape.dev_start, shape.test_start, shape.end)
        train, dev, test = (
            build_pages(visits, start=start, end=end, history_end=start, rng=rng)
            for start, end in pairwise(starts)
        )
        yield _Block(first_user=first_user, visits=visits, train=train, dev=dev, test=test)


def _draw_news(
    world: World, number: Ints, shape: Shape, seed: int, *, has_bodies: bool
) -> Iterator[tuple[Ints, pa.RecordBatch]]:
    """Draw all articles in the order of their ids, some thousands at a time: their numbers and their rows."""
    lexicon = load_lexicon()
    writer = Writer(lexicon, _rng(seed, 2), with_bodies=has_bodies)
    names = np.array([*lexicon.topics, ""], dtype=object)  # the last one is that of MISSING
    assert MISSING == -1
    for block, first in enumerate(range(0, len(number), NEWS_PER_BLOCK)):
        rng = _rng(seed, 3, block)
        numbers = number[first : first + NEWS_PER_BLOCK]
        storyline = world.storyline[numbers]
        stories = Stories(
            subtopic=world.storylines.subtopic[storyline],
            entity=world.storylines.entity[storyline],
            angle=world.angle[numbers],
            is_loud=world.is_loud[numbers],
            is_late=world.born[numbers] >= LIFE + shape.dev_start // SLOT_SECONDS,
            event=rng.random(len(numbers)),
        )
        nothing = pa.repeat("", len(numbers))
        columns = [
            pa.array([f"N{first + position + 1}" for position in range(len(numbers))]),
            pa.array(names[world.section[numbers]], pa.string()),
            nothing,
            pa.array(writer.write_titles(stories, rng)),
            pa.array(writer.write_abstracts(stories, rng)),
            writer.write_bodies(stories, rng) if has_bodies else nothing,
        ]
        yield numbers, pa.record_batch(columns, schema=NEWS)


def _rng(seed: int, *key: int) -> np.random.Generator:
    """A separate generator for each part of the newsroom, so that no part depends on how others are divided."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
