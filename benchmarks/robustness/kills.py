"""Runs in which a random rank is killed (SIGKILL) at a random moment, compared with an undisturbed run.

torchrun restarts the ranks, which resume from the last checkpoint. Every run must finish, learn from every click
once, and have the AUC of the undisturbed run.

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
from speedyfeed.finished_run import open_data, open_finished_run
from speedyfeed.markdown import table
from speedyfeed.run_evaluation import evaluate_run
from speedyfeed.saved_model import WEIGHTS
from speedyfeed.training.checkpoint import newest_step

CHECKPOINT_EVERY = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class KillsConfig:
    """How many runs are disturbed, and what they train."""

    store: Path | None = None
    """Folder of a prepared store; by default a small newsroom in a temporary folder."""
    runs: int = 10
    """Number of runs in which one rank is killed."""
    world: int = 2
    """Number of ranks of each run."""
    recipe: str = "tiny"
    """Recipe that every run trains."""
    steps: int = 30
    """Training steps of each run."""
    seed: int = 0
    """Seed of the killed ranks and the moments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """The end of one run, and its AUC."""

    killed_rank: int
    """Rank that was killed; -1 in the undisturbed run."""
    killed_step: int
    """Step during which it was killed; -1 in the undisturbed run."""
    seconds: float
    """Seconds from start to end, restarts included."""
    training_seconds: float
    """Training time in seconds, without steps that were repeated."""
    steps: int
    clicks: int
    auc: float
    auc_ci95: tuple[float, float]
    is_same: bool
    """Whether every weight equals that of the undisturbed run, bit for bit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillsFigures:
    runs: list[RunFigures]
    """All runs; the undisturbed one is the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """The rank to kill, and the moment."""

    rank: int
    step: int
    step_seconds: float
    """Seconds of a step, to estimate the moment between two checkpoints."""


def measure(config: KillsConfig) -> KillsFigures:
    """Train the undisturbed run, then the others."""
    rng = random.Random(config.seed)
    with some_store(config.store) as store, tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        figures = [_run(config, store, whole, whole)]
        for number in range(config.runs):
            kill = Kill(
                rank=rng.randrange(config.world),
                step=rng.randrange(config.steps),
                step_seconds=figures[0].training_seconds / config.steps,
            )
            figures.append(_run(config, store, Path(scratch) / f"killed-{number}", whole, kill))
    return KillsFigures(runs=figures)


def _run(config: KillsConfig, store: Path, path: Path, whole: Path, kill: Kill | None = None) -> RunFigures:
    """Train and evaluate one run."""
    settings = ("--recipe", config.recipe, "--steps", config.steps, "--checkpoint-every", CHECKPOINT_EVERY)
    started = time.perf_counter()
    launched = start_ranks(config.world, "speedyfeed", "train", store, path, *settings, "--json", restarts=3)
    if kill is not None:
        _strike(launched, kill, path / "checkpoints")
    progress = json.loads(printed_by(launched))["progress"]
    seconds = time.perf_counter() - started
    finished = open_finished_run(path)
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
    """Wait for the last checkpoint before the moment, then for the moment, and kill the rank."""
    since = kill.step - kill.step % CHECKPOINT_EVERY
    while launched.poll() is None and newest_step(folder) < since:
        time.sleep(0.01)
    time.sleep((kill.step - since) * kill.step_seconds)
    ranks = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    os.kill(int(ranks[kill.rank]), signal.SIGKILL)


def tables(figures: KillsFigures) -> str:
    """A row per run, the undisturbed one first."""
    rows = [
        [
            "none" if row.killed_rank < 0 else f"rank {row.killed_rank}, step {row.killed_step}",
            f"{row.seconds:.1f}",
            str(row.steps),
            f"{row.clicks:,}",
            f"{row.auc:.4f}",
            "yes" if row.is_same else "no",
        ]
        for row in figures.runs
    ]
    return table(["killed", "seconds", "steps", "clicks", "AUC", "same weights"], rows)
