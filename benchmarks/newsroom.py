"""What benches measure on where no store is given: a newsroom of the paper's proportions, made once and kept."""

from dataclasses import dataclass
from pathlib import Path

from speedyfeed.data.store import Store, open_store
from speedyfeed.preparation.prepare import PrepareConfig, prepare
from speedyfeed.progress import progress_bars
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.synthetic.newsroom import SHAPES

BENCH = Path("runs/bench")
USERS = 50_000
DAYS = 16


def paper_shaped(users: int) -> SynthConfig:
    """The paper's log with fewer users, fewer news in proportion, and fewer days; with bodies.

    Over the paper's 123 days so few news would be too thin: users would run out of news to click.
    """
    paper = SHAPES["paper"]
    news = round(users * paper.news / paper.users)
    return SynthConfig(shape="paper", format="parquet", users=users, news=news, days=DAYS)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeNewsroom:
    """Raw logs, and the store they were prepared to."""

    logs: Path
    store: Store


def make_logs(config: SynthConfig, folder: Path = BENCH) -> Path:
    """The raw logs of a newsroom; made where they are not there yet."""
    logs = folder / f"newsroom-{_name(config)}"
    if not logs.exists():
        with progress_bars() as report:
            synthesize(logs, config, report)
    return logs


def make_newsroom(config: SynthConfig, folder: Path = BENCH) -> MadeNewsroom:
    """The same, prepared."""
    logs = make_logs(config, folder)
    with progress_bars() as report:
        prepared = prepare(logs, folder / f"store-{_name(config)}", PrepareConfig(), report=report)
    return MadeNewsroom(logs=logs, store=prepared.store)


def store_of(path: Path | None) -> Store:
    """The store at `path`, or that of a newsroom of our own."""
    return make_newsroom(paper_shaped(USERS)).store if path is None else open_store(path)


def _name(config: SynthConfig) -> str:
    return config.shape if config.users is None else f"{config.shape}-{config.users}"
