"""What a kill costs: runs in which a random rank gets SIGKILL at a random moment, beside one that was left alone.

torchrun starts the ranks again and they go on from the last checkpoint, without a hand. Every run must end, must
have learned from every click once, and must rank as well as the undisturbed one.

Example: python -m benchmarks kills --store runs/demo/store --runs 10 --json
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.launch import printed_by, some_store, start_ranks
from speedyfeed.markdown import table
from speedyfeed.pretrained import WEIGHTS
from speedyfeed.run_evaluation import evaluate_run, open_data, open_finished
from speedyfeed.training.checkpoint import newest_step

CHECKPOINT_EVERY = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class KillsConfig:
    """How much is killed."""

    store: Path | None = None
    """Prepared log; without one a small newsroom is made."""
    runs: int = 10
    """Runs with a kill each."""
    world: int = 2
    """ProcessGroup."""
    recipe: str = "tiny"
    steps: int = 30
    """Of each run."""
    seed: int = 0
    """Of the moments and the victims."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """How a run ended."""

    killed_rank: int
    """-1 in the run that was left alone."""
    killed_step: int
    seconds: float
    """From its start to its end, restarts included."""
    training_seconds: float
    """Of steps that count."""
    steps: int
    clicks: int
    auc: float
    auc_ci95: tuple[float, float]
    is_same: bool
    """Whether every weight is that of the undisturbed run, bit for bit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillsFigures:
    runs: list[RunFigures]
    """The undisturbed one first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """Who, and when."""

    rank: int
    step: int
    step_seconds: float
    """What a step takes, to tell the moment between two checkpoints."""


def measure(config: KillsConfig) -> KillsFigures:
    """The undisturbed run, then the others."""
    draws = random.Random(config.seed)
    with some_store(config.store) as store, tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        figures = [_run(config, store, whole, whole)]
        for number in range(config.runs):
            kill = Kill(
                rank=draws.randrange(config.world),
                step=draws.randrange(config.steps),
                step_seconds=figures[0].training_seconds / config.steps,
            )
            figures.append(_run(config, store, Path(scratch) / f"killed-{number}", whole, kill))
    return KillsFigures(runs=figures)


def _run(config: KillsConfig, store: Path, path: Path, whole: Path, kill: Kill | None = None) -> RunFigures:
    """One run, from its start to its judgement."""
    settings = ("--recipe", config.recipe, "--steps", config.steps, "--checkpoint-every", CHECKPOINT_EVERY)
    started = time.perf_counter()
    launched = start_ranks(config.world, "speedyfeed", "train", store, path, *settings, "--json", restarts=3)
    if kill is not None:
        _strike(launched, kill, path / "checkpoints")
    progress = json.loads(printed_by(launched))["progress"]
    seconds = time.perf_counter() - started
    finished = open_finished(path)
    with open_data(finished, None, split="dev") as data:
        auc = evaluate_run(finished, data).overall.metrics["auc"]
    ours, twin = (load_file(folder / "model" / WEIGHTS) for folder in (path, whole))
    return RunFigures(
        killed_rank=-1 if kill is None else kill.rank,
        killed_step=-1 if kill is None else kill.step,
        seconds=seconds,
        training_seconds=progress["seconds"],
        steps=progress["step"],
        clicks=progress["clicks"],
        auc=auc.mean,
        auc_ci95=auc.ci95,
        is_same=all(np.array_equal(ours[name], weight) for name, weight in twin.items()),
    )


def _strike(launched: subprocess.Popen[str], kill: Kill, folder: Path) -> None:
    """Wait for the checkpoint before the moment, then for the moment."""
    since = kill.step - kill.step % CHECKPOINT_EVERY
    while launched.poll() is None and newest_step(folder) < since:
        time.sleep(0.01)
    time.sleep((kill.step - since) * kill.step_seconds)
    ranks = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    os.kill(int(ranks[kill.rank]), signal.SIGKILL)


def tables(figures: KillsFigures) -> str:
    """How every run ended, the undisturbed one first."""
    rows = [
        [
            "nobody" if row.killed_rank < 0 else f"rank {row.killed_rank}, step {row.killed_step}",
            f"{row.seconds:.1f}",
            str(row.steps),
            f"{row.clicks:,}",
            f"{row.auc:.4f}",
            "yes" if row.is_same else "no",
        ]
        for row in figures.runs
    ]
    return table(["killed", "seconds", "steps", "clicks", "AUC", "same weights"], rows)
