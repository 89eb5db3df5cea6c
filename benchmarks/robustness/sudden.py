"""Every command killed (SIGKILL) at random moments: nothing is lost, nothing is half-made.

After a kill, what the command writes is whole or not there, and its input is as before. The same command, or
--resume where a run exists, then ends with the bytes of an undisturbed one. The journal of a service holds all
that was acknowledged.

Example: python -m benchmarks sudden --rounds 100 --json
"""

import logging
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.robustness.sandbox import ACKNOWLEDGED, WRITES, Answer, World, ask_service, make_world, run_forked
from speedyfeed.checksums import sha256
from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges
from speedyfeed.serving.journal import Journal

log = logging.getLogger(__name__)


def contents(path: Path) -> dict[str, str]:
    """Checksums of a file, or of all files of a folder; none where there is nothing."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path.parent).as_posix(): sha256(file) for file in files}


def read_journal(path: Path) -> dict[str, str]:
    """Rows of a journal by table and id, once no process serves from it."""
    if not path.exists():
        return {}
    while True:
        try:
            journal = Journal(path.parent)
            break
        except InputError as error:
            if "another process" not in str(error):
                raise
            time.sleep(0.05)
    rows = {one.news_id: one.news.title for one in journal.read() if one.news}
    rows |= {f"feedback {number}": str(one["actions"]) for number, one in journal.read_feedback(limit=1)}
    rows |= {f"rule for {rule['category']}": rule["kind"] for rule in journal.read_rules()}
    journal.close()
    return rows


def _has_acknowledged(out: Path, left: dict[str, str], expected: dict[str, str]) -> bool:
    file = out / ACKNOWLEDGED
    num_acknowledged = len(file.read_text().splitlines()) if file.exists() else 0
    return left.items() <= expected.items() and len(left) >= num_acknowledged


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A command that writes something."""

    arguments: Callable[[World, Path], list[object]]
    """The command, and --resume where it goes on."""
    result: Callable[[Path], Path]
    """The file or folder that is whole or not there."""
    run: Callable[[list[str]], None] = main
    """Runs the command with its arguments."""
    read: Callable[[Path], dict[str, str]] = contents
    """What is in the result, by name."""
    is_whole: Callable[[Path, dict[str, str], dict[str, str]], bool] = lambda out, left, expected: (
        left
        in (
            {},
            expected,
        )
    )
    """Whether what a killed command left is allowed, given what an undisturbed one leaves."""


def _train(world: World, out: Path, *options: object) -> list[object]:
    if (out / "run" / "run.json").exists():
        return ["train", world.store, out / "run", "--resume"]
    return ["train", world.store, out / "run", *world.training, "--steps", "4", *options]


def _serve(*options: str) -> Task:
    return Task(
        arguments=lambda world, out: ["serve", world.run, "--data", out / "feed", "--precision", "fp32", *options],
        result=lambda out: out / "feed" / "journal.sqlite",
        run=partial(ask_service, writes=WRITES, has_graphs=True),
        read=read_journal,
        is_whole=_has_acknowledged,
    )


TASKS: Mapping[str, Task] = {
    "synth": Task(
        arguments=lambda world, out: ["synth", out / "logs", "--users", "60", "--news", "80", "--days", "4"],
        result=lambda out: out / "logs",
    ),
    "prepare": Task(
        arguments=lambda world, out: ["prepare", world.logs, out / "store"], result=lambda out: out / "store"
    ),
    "prepare --workers": Task(
        arguments=lambda world, out: ["prepare", world.logs, out / "store", "--workers", "2"],
        result=lambda out: out / "store",
    ),
    "prepare --like": Task(
        arguments=lambda world, out: ["prepare", world.logs, out / "later", "--like", world.store],
        result=lambda out: out / "later",
    ),
    "train": Task(arguments=_train, result=lambda out: out / "run" / "model"),
    "train --from": Task(
        arguments=lambda world, out: _train(world, out, "--from", world.run),
        result=lambda out: out / "run" / "model",
    ),
    "sweep": Task(
        arguments=lambda world, out: [
            *("sweep", world.store, out / "sweep", "--runs", world.encoder, "--seeds", "0"),
            *("--steps", "2", "--minutes", "None", "--validations", "1"),
        ],
        result=lambda out: next((out / "sweep").glob("*/model"), out / "sweep" / "model"),
    ),
    "evaluate": Task(
        arguments=lambda world, out: ["evaluate", world.run, "--per-impression", out / "values.parquet"],
        result=lambda out: out / "values.parquet",
    ),
    "rank": Task(
        arguments=lambda world, out: ["rank", world.run, world.store, out / "ranking.zip"],
        result=lambda out: out / "ranking.zip",
    ),
    "export": Task(
        arguments=lambda world, out: ["export", world.run, out / "vectors", "--embeddings"],
        result=lambda out: out / "vectors",
    ),
    "serve": _serve(),
    "serve --workers": _serve("--workers", "2"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SuddenConfig:
    """How many kills."""

    rounds: int = 100
    """Number of kills, over all commands in turn."""
    seed: int = 0
    """Seed of the moments."""

    RANGES: ClassVar[Ranges] = {"rounds": (1, MANY), "seed": (0, MAX_SEED)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One kill, and the state after it."""

    command: str
    after: float
    """Seconds of the command's processor time until the kill."""
    was_killed: bool
    """Whether the command was still running then."""
    is_whole: bool
    """Whether its result was whole or not there."""
    is_same: bool
    """Whether the command, run again, ended with the bytes of the undisturbed one."""
    message: str = ""
    """Errors of the command that was run again, if it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuddenFigures:
    rounds: list[Round] = field(default_factory=list)
    is_input_intact: bool = True
    """Whether logs, store and run are as they were before all rounds."""


def measure(config: SuddenConfig) -> SuddenFigures:
    """Make a world and run every command undisturbed, then kill them one by one."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sudden-") as scratch:
        world = make_world(Path(scratch) / "world")
        inputs = contents(world.logs) | contents(world.store) | contents(world.run / "model")
        rounds = kill_in_turn(world, Path(scratch) / "out", config)
        after = contents(world.logs) | contents(world.store) | contents(world.run / "model")
    return SuddenFigures(rounds=rounds, is_input_intact=inputs == after)


def kill_in_turn(world: World, scratch: Path, config: SuddenConfig) -> list[Round]:
    """Run all rounds."""
    rng = random.Random(config.seed)
    undisturbed = {}
    for name in list(TASKS)[: config.rounds]:
        out = _fresh(scratch)
        answer = _run(TASKS[name], world, out)
        assert answer.code == 0, answer.errors
        undisturbed[name] = (answer.seconds, TASKS[name].read(TASKS[name].result(out)))
    names = list(undisturbed)
    rounds = []
    for number in range(config.rounds):
        name = names[number % len(names)]
        seconds, expected = undisturbed[name]
        rounds.append(_round(world, _fresh(scratch), name, rng.uniform(0, seconds), expected))
        log.info("%d of %d: %s", number + 1, config.rounds, rounds[-1])
    return rounds


def _run(task: Task, world: World, out: Path, *, kill_after: float | None = None) -> Answer:
    return run_forked(lambda: task.run([str(part) for part in task.arguments(world, out)]), kill_after=kill_after)


def _round(world: World, out: Path, name: str, after: float, expected: dict[str, str]) -> Round:
    task = TASKS[name]
    killed = _run(task, world, out, kill_after=after)
    left = task.read(task.result(out))
    is_whole = task.is_whole(out, left, expected)
    again = killed
    if killed.code:
        done = left == expected and name in ("synth", "export")  # these refuse a folder that is there
        again = killed if done else _run(task, world, out)
    return Round(
        command=name,
        after=after,
        was_killed=killed.code < 0,
        is_whole=is_whole,
        is_same=task.read(task.result(out)) == expected,
        message="" if again.code <= 0 else again.errors.strip(),
    )


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def tables(figures: SuddenFigures) -> str:
    """A row per command."""
    rows = []
    for name in TASKS:
        some = [one for one in figures.rounds if one.command == name]
        counts = [sum(getattr(one, kind) for one in some) for kind in ("was_killed", "is_whole", "is_same")]
        rows.append([name, str(len(some)), *map(str, counts)])
    text = table(["command", "rounds", "killed in time", "whole or not there", "same bytes after"], rows)
    wrong = [one for one in figures.rounds if not (one.is_whole and one.is_same)]
    lines = [f"{one.command} after {one.after:.2f} s: {one.message or 'differs'}" for one in wrong]
    return "\n".join([text, f"input intact: {'yes' if figures.is_input_intact else 'no'}", *lines])
