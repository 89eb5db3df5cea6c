"""The library as a few functions that take paths as `str` or `Path`; `import speedyfeed` offers them.

synthesize -> logs -> prepare -> store -> train -> run -> evaluate, Recommender.from_pretrained

`progress` is a callback as of `speedyfeed.progress`; without one, progress shows in notebooks and nowhere else.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from speedyfeed import recipes
from speedyfeed.data import store as stores
from speedyfeed.data.store import Store
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import Report
from speedyfeed.evaluation.metrics import Pool
from speedyfeed.finished_run import open_data, open_finished_run
from speedyfeed.preparation import prepare as preparation
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.frames import prepare_frames
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import Report as Progress
from speedyfeed.progress import choose_progress
from speedyfeed.run_evaluation import evaluate_run
from speedyfeed.synthetic import newsroom
from speedyfeed.synthetic.newsroom import Newsroom, SynthConfig
from speedyfeed.training import loop
from speedyfeed.training.config import RunConfig
from speedyfeed.training.loop import Callback, Outcome
from speedyfeed.training.metrics import load_history
from speedyfeed.training.run_folder import is_run_of, open_run, start_run
from speedyfeed.training.trackers import DEFAULT, parse_trackers

if TYPE_CHECKING:
    import pandas


def synthesize(
    folder: str | Path, config: SynthConfig | None = None, *, progress: Progress | None = None
) -> Newsroom:
    """Write the logs of a synthetic newsroom, with articles, users and clicks, into a new folder.

    >>> newsroom = speedyfeed.synthesize("logs")
    >>> newsroom.best_auc  # what a perfect ranking would score on the dev split
    """
    return newsroom.synthesize(folder, config or SynthConfig(), choose_progress(progress))


@overload
def prepare(
    logs: str | Path,
    store: str | Path,
    config: PrepareConfig | None = None,
    *,
    like: str | Path | None = None,
    progress: Progress | None = None,
) -> Store: ...
@overload
def prepare(
    logs: Any,
    store: Any,
    config: str | Path,
    settings: PrepareConfig | None = None,
    *,
    like: str | Path | None = None,
    progress: Progress | None = None,
) -> Store: ...
def prepare(
    logs: Any,
    store: Any,
    config: Any = None,
    settings: PrepareConfig | None = None,
    *,
    like: str | Path | None = None,
    progress: Progress | None = None,
) -> Store:
    """Refine and tokenize raw logs into a store that training maps; a store that is up to date is only opened.

    Logs are a folder, `prepare(logs, store, config)`, or two frames of pandas, Polars, Arrow or DuckDB: articles,
    and clicks or impressions, `prepare(news, clicks, store, config)`. Clicks have the columns of the format
    interactions; impressions those of the format parquet, with `clicked` among them.

    With `like`, text rules and word vocabulary are those of an earlier store, so that its models can read it.

    >>> store = speedyfeed.prepare("MINDsmall", "store")
    >>> store = speedyfeed.prepare(news_frame, clicks_frame, "store")
    >>> store.num_news, store.splits
    """
    report = choose_progress(progress)
    if isinstance(logs, str | Path):
        return preparation.prepare(logs, store, config or PrepareConfig(), report=report, like=like).store
    return prepare_frames(logs, store, Path(config), settings or PrepareConfig(), report=report, like=like).store


def open_store(path: str | Path) -> Store:
    """Open a store that `prepare` made; its arrays are mapped, not loaded.

    >>> store = speedyfeed.open_store("store")
    """
    return stores.open_store(path)


@dataclass(frozen=True, kw_only=True)
class Run(Outcome):
    """A run that `train` has trained: how far it came, its recommender, its metrics and its history."""

    path: Path
    """Folder of the run."""

    @cached_property
    def model(self) -> Recommender:
        """The trained recommender, loaded when it is first used; the run must be finished.

        >>> run.model.recommend(["N1", "N2"], k=5)
        """
        return Recommender.from_pretrained(self.path)

    @property
    def history(self) -> "pandas.DataFrame":
        """All lines of metrics as a frame of pandas: a row per line, NaN where a line has no such value.

        >>> run.history.plot(x="step", y="loss")
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise InputError(
                f"history of {self.path}: found no pandas, expected it installed; pip install pandas, or read "
                "metrics.jsonl"
            ) from error
        return pandas.DataFrame(load_history(self.path))

    def evaluate(self, data: str | Path | None = None, **options: Any) -> Report:
        """Measure ranking and recall of the run, with the options of `speedyfeed.evaluate`.

        >>> run.evaluate().overall.metrics["auc"].mean
        """
        return evaluate(self.path, data, **options)


def train(
    store: str | Path,
    run: str | Path,
    config: RunConfig | str = "speed-mini",
    *,
    warm_start: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    track: str = DEFAULT,
    progress: Progress | None = None,
) -> Run:
    """Train a recommender on a store into a run folder; `config` is a `RunConfig` or the name of a recipe.

    `warm_start` is a finished run whose weights a new run begins with, as yesterday's on today's store. A run of
    the same settings on the same store is resumed from its newest checkpoint. Ctrl-C saves a checkpoint and
    returns with `is_finished` False. `callbacks` are called with a `StepReport` after every step: loss, progress
    and the AUC of a validation; one that returns True stops the run as Ctrl-C does. `track` names trackers that
    get the metrics: tensorboard, wandb, mlflow, trackio, or none. A finished run holds the recommender:

    >>> run = speedyfeed.train("store", "runs/first", "speed-mini")
    >>> run.is_finished, run.evaluate().overall.metrics["auc"].mean
    >>> run.model.recommend(["N1", "N2"], k=5)
    >>> run.history.plot(x="step", y="loss")
    """
    trackers = parse_trackers(track)
    config = recipes.recipe(config) if isinstance(config, str) else config
    prepared, path = stores.open_store(store), Path(run)
    if is_run_of(path, config, prepared):
        folder = open_run(path)
    else:
        folder = start_run(path, config, prepared, warm_start=warm_start)
    outcome = loop.train(folder, prepared, choose_progress(progress), callbacks=callbacks, trackers=trackers)
    facts = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    return Run(path=path, **facts)


def evaluate(
    run: str | Path,
    data: str | Path | None = None,
    *,
    split: Literal["dev", "test", "valid"] | None = None,
    pool: Pool | None = None,
    exact: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Measure how well a finished run ranks a split and retrieves its clicks, with 95% intervals.

    `data` is a store or raw logs, by default the store of the run. `split` is by default dev, or test where there
    is no dev; valid is the split by which training chose the model. Recall searches a pool, less what the user has
    clicked before: the candidates of the day, those of the split, or all articles; by default the day, or all
    articles in a log of clicks without impressions. It uses an HNSW index or, if `exact`, scores all of them.

    >>> report = speedyfeed.evaluate("runs/first")
    >>> report.overall.metrics["auc"].mean
    """
    finished, report = open_finished_run(run), choose_progress(progress)
    with open_data(finished, data, split=split, report=report) as opened:
        return evaluate_run(finished, opened, pool=pool, exact=exact, report=report)
