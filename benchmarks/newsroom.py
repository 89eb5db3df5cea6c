"""Synthetic newsrooms that benchmarks measure on when no store is given; made once, in runs/bench."""

from dataclasses import dataclass
from pathlib import Path

from speedyfeed.data.store import Store, open_store
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.progress import progress_bars
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.synthetic.newsroom import SHAPES

WORK = Path("runs/bench")
"""Folder for what benchmarks make on the way: newsrooms, stores, runs."""
USERS = 50_000
"""Users of the newsroom that is made by default."""
DAYS = 16


def paper_shaped(users: int) -> SynthConfig:
    """The paper's log with fewer users, proportionally fewer articles, and fewer days; articles have bodies.

    Spread over the paper's 123 days, so few articles would leave users with too few to click.
    """
    paper = SHAPES["paper"]
    news = round(users * paper.news / paper.users)
    return SynthConfig(shape="paper", format="parquet", users=users, news=news, days=DAYS)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeNewsroom:
    """Raw logs of a newsroom, and the store prepared from them."""

    logs: Path
    store: Store


def make_logs(config: SynthConfig, folder: Path = WORK) -> Path:
    """Make the raw logs of a newsroom, unless they exist."""
    logs = folder / f"newsroom-{_name(config)}"
    if not logs.exists():
        with progress_bars() as report:
            synthesize(logs, config, report)
    return logs


def make_newsroom(config: SynthConfig, folder: Path = WORK) -> MadeNewsroom:
    """Make and prepare a newsroom, unless it exists."""
    logs = make_logs(config, folder)
    with progress_bars() as report:
        prepared = prepare(logs, folder / f"store-{_name(config)}", PrepareConfig(), report=report)
    return MadeNewsroom(logs=logs, store=prepared.store)


def store_of(path: Path | None) -> Store:
    """Open the store at `path`, or by default that of the paper-shaped newsroom."""
    return make_newsroom(paper_shaped(USERS)).store if path is None else open_store(path)


def _name(config: SynthConfig) -> str:
    return config.shape if config.users is None else f"{config.shape}-{config.users}"
