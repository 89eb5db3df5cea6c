"""Run all steps on a small synthetic newsroom: generate, prepare, train, evaluate and recommend.

Example: speedyfeed demo --out runs/demo
"""

import dataclasses
import shutil
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from speedyfeed.batching.batches import news_lengths
from speedyfeed.cli.prepare import print_summary
from speedyfeed.cli.synth import print_newsroom
from speedyfeed.data.store import Store
from speedyfeed.errors import command
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.progress import progress_bars
from speedyfeed.ranges import MANY, Ranges, check_ranges
from speedyfeed.recipes import recipe
from speedyfeed.sweep.variants import from_minilm
from speedyfeed.synthetic import Newsroom, SynthConfig, synthesize
from speedyfeed.training.config import RunConfig

if TYPE_CHECKING:
    from speedyfeed.evaluation.evaluate import Report
    from speedyfeed.finished_run import FinishedRun
    from speedyfeed.training.loop import Outcome
    from speedyfeed.training.run_folder import RunFolder

CHANCE = 0.5
BASELINE = "naml"
"""Recipe that the trained model is compared with, in as many minutes."""
VALIDATIONS = 1
"""Number of validations of each run: one, at its end."""
MODEL_READS = ("title", "abstract")
"""Fields the demo trains on; bodies are there to be read on the page."""
MIN_MINUTES = 0.01
"""Shortest training of the baseline."""
SHOWN = 5
"""Number of recommendations, and of clicks of a history, to print."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    out: Path = Path("runs/demo")
    """Folder for the logs, the store and the run of the demo."""
    steps: int = 280
    """Number of training steps, of about a second each on two CPU cores."""

    RANGES: ClassVar[Ranges] = {"steps": (1, MANY)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(arguments: Arguments) -> None:
    from speedyfeed.preparation.prepare import prepare

    logs, store_path, path = (arguments.out / name for name in ("newsroom", "store", "run"))
    if (logs / "newsroom.json").exists():
        shutil.rmtree(logs)  # of an earlier demo, and generated again the same
    with progress_bars() as report:
        newsroom = synthesize(logs, dataclasses.replace(SynthConfig(), format="parquet"), report)
    print(f"A synthetic newsroom in {logs}")
    print_newsroom(newsroom)
    with progress_bars() as report:
        store = prepare(logs, store_path, PrepareConfig(fields=MODEL_READS), report=report).store
    print(f"\nPrepared for training in {store_path}")
    print_summary(store)

    top = recipe("speed-top")
    print("\nMiniLM before training")
    untrained = _train(arguments.out / "untrained", _shortened(top, steps=0, validations=0), store)
    print(f"\nTraining speed-top in {path}")
    ours = _train(path, _shortened(top, steps=arguments.steps, validations=VALIDATIONS), store)
    minutes = max(MIN_MINUTES, round(ours.outcome.progress.seconds / 60, 2))
    print(f"\nTraining the baseline NAML for as long, {minutes} minutes")
    baseline = _train(arguments.out / BASELINE, _baseline(minutes), store)
    _print_quality(newsroom, untrained.evaluated, baseline.evaluated, ours)
    _print_speed(ours.config, ours.outcome, path, store)
    _print_user(ours.finished, store)
    print(f"\nAll metrics: {command('evaluate', path)}\nOpen it:     {command('serve', path)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    """A finished run of the demo, and its metrics on the dev split."""

    config: RunConfig
    outcome: "Outcome"
    finished: "FinishedRun"
    evaluated: "Report"


def _baseline(minutes: float) -> RunConfig:
    """Baseline at its best: its words start from the word pieces of MiniLM, and it is validated as often."""
    run = from_minilm(recipe(BASELINE))
    return dataclasses.replace(
        run,
        train=dataclasses.replace(run.train, epochs=MANY, minutes=minutes, validations=VALIDATIONS),
    )


def _shortened(run: RunConfig, *, steps: int, validations: int) -> RunConfig:
    """A run of another length."""
    return dataclasses.replace(run, train=dataclasses.replace(run.train, steps=steps, validations=validations))


def _train(path: Path, config: RunConfig, store: Store) -> _Trained:
    """Train a run, or resume it, and evaluate it on the dev split; exit if a signal stops it."""
    from speedyfeed.finished_run import open_data, open_finished_run
    from speedyfeed.run_evaluation import evaluate_run
    from speedyfeed.training.loop import train

    with progress_bars() as report:
        outcome = train(_open_run(path, config, store), store, report)
    if not outcome.is_finished:
        print("stopped and saved; the same command resumes it", flush=True)
        sys.exit(128 + (outcome.signal or signal.SIGTERM))
    finished = open_finished_run(path)
    with progress_bars() as report, open_data(finished, None, split="dev", report=report) as data:
        evaluated = evaluate_run(finished, data, report=report)
    return _Trained(config=config, outcome=outcome, finished=finished, evaluated=evaluated)


def _open_run(path: Path, config: RunConfig, store: Store) -> "RunFolder":
    """Open the run of an earlier demo on the same store, to resume or to show; else start a new one."""
    from speedyfeed.training.run_folder import is_run_of, open_run, start_run

    if is_run_of(path, config, store):
        return open_run(path)
    shutil.rmtree(path, ignore_errors=True)
    return start_run(path, config, store)


def _print_quality(newsroom: Newsroom, untrained: "Report", baseline: "Report", ours: _Trained) -> None:
    overall = ours.evaluated.overall
    found = overall.metrics["auc"]
    gap = (found.mean - newsroom.popularity_auc) / (newsroom.best_auc - newsroom.popularity_auc)
    print(f"\nAUC on {overall.num_impressions:,} impressions of later days")
    rows = {
        "chance": (CHANCE, ""),
        "popularity": (newsroom.popularity_auc, ""),
        "untrained": (untrained.overall.metrics["auc"].mean, "MiniLM as it was downloaded"),
        "NAML": (baseline.overall.metrics["auc"].mean, "words of MiniLM, trained in the same minutes"),
        "this model": (found.mean, f"95% {found.ci95[0]:.4f} to {found.ci95[1]:.4f}"),
        "best": (newsroom.best_auc, "with every user's true interests"),
    }
    for name, (auc, note) in rows.items():
        print(f"  {name:12}{auc:7.4f}   {note}".rstrip())
    print(f"  {gap:.0%} of the way from popularity to the best possible")
    if ours.outcome.best_is_initial:
        print("  this is the initial model: no model that training reached validated better")


def _print_speed(config: RunConfig, outcome: "Outcome", path: Path, store: Store) -> None:
    """Print the speed of training, and an estimate for the conventional workflow at as many tokens per second."""
    from speedyfeed.training.metrics import load_rates

    rates = load_rates(path)
    clicks_per_second = outcome.progress.clicks / outcome.progress.seconds
    news_per_click = config.batch.max_clicks + 1 + config.batch.negatives
    tokens_per_news = int(news_lengths(store.news).max())
    slow_clicks_per_second = rates["tokens_per_second"] / (news_per_click * tokens_per_news)
    print(f"\nTraining took {outcome.progress.seconds / 60:.1f} minutes for {outcome.progress.clicks:,.0f} clicks")
    print(f"  clicks trained   {clicks_per_second:8.1f} a second")
    print(f"  cache hit rate   {rates['cache_hit_rate']:8.1%}")
    print(f"  data efficiency  {rates['data_efficiency']:8.1%}")
    print(
        f"  about {clicks_per_second / slow_clicks_per_second:.0f} times as fast as the conventional workflow: an "
        f"estimate, from the {news_per_click} articles of {tokens_per_news} tokens it encodes for one click"
    )


def _print_user(finished: "FinishedRun", store: Store) -> None:
    """Print the latest clicks of one user of the dev split, and what the model recommends."""
    import numpy as np

    titles = store.load_titles()
    dev = store.impressions("dev")
    user = int(np.argmax(np.minimum(dev.histories.lengths, 20)))
    clicked = titles.take(dev.histories[user] - 1).to_pylist()
    sections = Counter(news["category"] for news in clicked).most_common(3)
    interests = ", ".join(f"{count} on {section}" for section, count in sections)
    print(f"\nA user who clicked {len(clicked)} articles, {interests}, the latest being")
    for news in clicked[-SHOWN:]:
        print(f"  {news['category']:14.14}{news['title']}")
    print("is recommended")
    for found in finished.model.recommend([news["news_id"] for news in clicked], k=SHOWN):
        print(f"  {found.category:14.14}{found.title}")
