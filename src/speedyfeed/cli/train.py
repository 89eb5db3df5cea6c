"""Train a recommender on a store. Ctrl-C saves a checkpoint and stops; --resume continues.

Example: speedyfeed train store/ runs/first --recipe speed-mini --epochs 3

Example on four GPUs, where the same command resumes an interrupted run:
  torchrun --standalone --nproc-per-node 4 -m speedyfeed train store/ runs/first
"""

import dataclasses
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.data.store import Store, open_store
from speedyfeed.errors import InputError, UnwritableError, command
from speedyfeed.files import remove_folder
from speedyfeed.models.config import NewsEncoderConfig, UserConfig, WordConfig
from speedyfeed.progress import Report, progress_bars, silent
from speedyfeed.recipes import in_workflow, recipe
from speedyfeed.training.config import LossConfig, RunConfig, TrainConfig
from speedyfeed.training.trackers import DEFAULT, parse_trackers

if TYPE_CHECKING:
    from speedyfeed.training.loop import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Folder of the prepared store."""
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run, created unless --resume is given."""
    recipe: str = "speed-mini"
    """Recipe that sets the defaults of all options below: speed-mini, speed-top, speed-unilm, speed-half,
    speed-last, paper-unilm, paper-mini, paper-half, paper-last, plm-conventional, nrms, naml, lstur, npa,
    zero-shot or tiny."""
    workflow: Literal["fast", "conventional"] | None = None
    """Workflow of the run: conventional has no acceleration, fast has all; by default that of the recipe."""
    warm_start: Annotated[Path | None, arg(name="from", metavar="RUN0")] = None
    """Finished run to start from, such as yesterday's when the store is today's: its weights and the biases of its
    articles are the initial ones. Users, categories, words and articles that it does not know are initialized as
    usual."""
    resume: bool = False
    """Resume the run in RUN with the settings it was started with."""
    track: str = DEFAULT
    """Trackers that get the metrics, separated by commas: tensorboard, wandb, mlflow, trackio, or none."""
    json: bool = False
    """Print the outcome of the run as one JSON object."""
    train: Annotated[TrainConfig, arg(name="")] = field(default_factory=TrainConfig)
    news: NewsEncoderConfig = field(default_factory=NewsEncoderConfig)
    words: WordConfig = field(default_factory=WordConfig)
    user: UserConfig = field(default_factory=UserConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    @property
    def config(self) -> RunConfig:
        """Settings of the run that the options describe."""
        return RunConfig(**{part.name: getattr(self, part.name) for part in dataclasses.fields(RunConfig)})


def defaults(rest: Sequence[str]) -> Arguments:
    """Default options: those of the recipe and the workflow on the command line."""
    typed_parts = [part for argument in rest for part in argument.split("=", 1)]
    typed = {option: value for option, value in pairwise(typed_parts) if option in ("--recipe", "--workflow")}
    name = typed.get("--recipe", "speed-mini")
    chosen = in_workflow(recipe(name), typed.get("--workflow"))
    parts = {part.name: getattr(chosen, part.name) for part in dataclasses.fields(RunConfig)}
    return Arguments(store=tyro.MISSING, run=tyro.MISSING, recipe=name, **parts)


def run(arguments: Arguments) -> None:
    trackers = parse_trackers(arguments.track)
    is_rank_0 = os.environ.get("RANK", "0") == "0"  # as torchrun sets it: torch itself is yet to be loaded
    with progress_bars() if is_rank_0 else nullcontext(silent) as report:
        if sys.stderr.isatty():  # elsewhere a mistake is one line, and this would be another
            report("load", 0, 0)
        outcome = _train(arguments, trackers, report)
    if is_rank_0:
        print_outcome(outcome, arguments)
    if not outcome.is_finished:
        sys.exit(128 + (outcome.signal or signal.SIGTERM))  # as a shell expects of a stopped command


def _train(arguments: Arguments, trackers: Sequence[str], report: Report) -> "Outcome":
    from speedyfeed.runtime import choose_device, require_precision
    from speedyfeed.training.distributed.process_group import open_process_group
    from speedyfeed.training.loop import train
    from speedyfeed.training.metrics import METRICS
    from speedyfeed.training.run_folder import open_run

    if not arguments.resume:  # a run that is resumed has its own
        require_precision(arguments.train.precision, choose_device(arguments.train.device))
    with open_process_group() as group:
        store = open_store(arguments.store)
        is_new = group.on_rank_0(lambda: _require_run(arguments, store))
        try:
            return train(open_run(arguments.run), store, report, group=group, trackers=trackers)
        except (InputError, OSError) as error:
            if is_new and not (arguments.run / METRICS).exists():
                remove_folder(arguments.run)  # nothing was trained: a corrected command may create it again
            elif problem := _full_disk(error, arguments.run):
                raise InputError(f"{problem}; make room, then: {_resume(arguments)}") from error
            raise


def _full_disk(error: Exception, run: Path) -> str | None:
    """What could not be written because the disk is full; None for any other error."""
    if isinstance(error, UnwritableError):
        return error.problem
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{run}: cannot be written ({error.strerror})" if is_full and isinstance(error, OSError) else None


def _resume(arguments: Arguments) -> str:
    """Command that resumes the run."""
    return command("train", arguments.store, arguments.run, "--resume")


def _require_run(arguments: Arguments, store: Store) -> bool:
    """Make sure that the run folder exists: create it, or find the run to resume; return whether it is new."""
    from speedyfeed.training.distributed.process_group import is_under_torchrun
    from speedyfeed.training.run_folder import is_run_of, open_run, start_run

    if arguments.resume:
        is_changed = arguments.config != in_workflow(recipe(arguments.recipe), arguments.workflow)
        if is_changed or arguments.warm_start is not None:
            raise InputError("--resume uses the settings the run was started with: leave out the other options")
        open_run(arguments.run)
        return False
    if not (is_under_torchrun() and is_run_of(arguments.run, arguments.config, store)):
        start_run(arguments.run, arguments.config, store, warm_start=arguments.warm_start)
        return True
    return False


def print_outcome(outcome: "Outcome", arguments: Arguments) -> None:
    """Print how far the run came, and the next command."""
    progress = outcome.progress
    if arguments.json:
        facts = dataclasses.asdict(outcome)
        facts["progress"]["best_auc"] = progress.best_auc or None  # 0 before the first validation
        print(json.dumps(facts), flush=True)
        return
    best = f", best validation AUC {progress.best_auc:.4f}" if progress.best_auc else ""
    print(
        f"{progress.step:,} steps, {progress.epochs:.2f} epochs, {progress.clicks:,.0f} clicks in "
        f"{progress.seconds / 60:.1f} minutes{best}"
    )
    if outcome.best_is_initial:
        print(
            "no validation was better than the initial one: the saved model is the initial one. Try more "
            "--epochs, a lower --encoder-lr, or more clicks"
        )
    if outcome.is_finished:
        after = command("evaluate", arguments.run, arguments.store)
        print(f"{arguments.run} is ready; next: {after}", flush=True)
    else:
        print(f"stopped and saved; resume with: {_resume(arguments)}", flush=True)
