"""What benches measure on where no store is given: a newsroom of the paper's proportions, made once and kept."""

from pathlib import Path

from speedyfeed.data.prepare import PrepareConfig, prepare
from speedyfeed.data.store import Store, open_store
from speedyfeed.data.synthetic import SynthConfig, synthesize
from speedyfeed.data.synthetic.newsroom import SHAPES
from speedyfeed.progress import progress_bars

BENCH = Path("runs/bench")
READERS = 50_000
DAYS = 16


def paper_shaped(readers: int) -> SynthConfig:
    """The paper's log with fewer readers, fewer news in proportion, and fewer days; with bodies.

    Over the paper's 123 days so few news would be too thin: readers would run out of news to click.
    """
    paper = SHAPES["paper"]
    news = round(readers * paper.news / paper.users)
    return SynthConfig(shape="paper", format="parquet", users=readers, news=news, days=DAYS)


def make_logs(readers: int, folder: Path = BENCH) -> Path:
    """The raw logs of a newsroom of so many readers; made where they are not there yet."""
    logs = folder / f"newsroom-{readers}"
    if not logs.exists():
        with progress_bars() as report:
            synthesize(logs, paper_shaped(readers), report)
    return logs


def make_store(readers: int = READERS, folder: Path = BENCH) -> Store:
    """The same, prepared."""
    path = folder / f"store-{readers}"
    logs = make_logs(readers, folder)
    with progress_bars() as report:
        return prepare(logs, path, PrepareConfig(), report=report).store


def store_of(path: Path | None) -> Store:
    """The store at `path`, or that of a newsroom of our own."""
    return make_store() if path is None else open_store(path)
