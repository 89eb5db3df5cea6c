"""Fault injection: random damage to a file of a store or a run, then a command on it.

A command must either answer as if nothing had happened, or end with exit code 2 and one line. A traceback is a
fault of ours, and so is an answer that differs without a word.

Example: python -m benchmarks faults --cases 1000 --json
"""

import os
import random
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.robustness.sandbox import Answer, World, copy_folder, make_world, run_command
from speedyfeed.checksums import sha256
from speedyfeed.markdown import table
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges

SAME, REFUSED, TRACEBACK, SILENT = "same answer", "refused in one line", "traceback", "silent difference"


def flip(path: Path, rng: random.Random) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    _rewrite(path, bytes(content))


def blank(path: Path, rng: random.Random) -> None:
    """Set a block to zero, as a lost sector is."""
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.randrange(1, 513))
    content[start:end] = bytes(end - start)
    _rewrite(path, bytes(content))


def cut(path: Path, rng: random.Random) -> None:
    """Lose the end."""
    content = path.read_bytes()
    _rewrite(path, content[: rng.randrange(len(content) + 1)])


def extend(path: Path, rng: random.Random) -> None:
    """Add some bytes."""
    _rewrite(path, path.read_bytes() + rng.randbytes(rng.randrange(1, 100)))


def remove(path: Path, rng: random.Random) -> None:
    """Remove the file."""
    path.unlink()


def forbid(path: Path, rng: random.Random) -> None:
    """Take away all permissions."""
    _rewrite(path, path.read_bytes())  # not those of the file it may be linked to
    path.chmod(0)


DAMAGES = {one.__name__: one for one in (flip, blank, cut, extend, remove, forbid)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Copies that a case may damage, and a folder for what its command writes."""

    world: World
    store: Path
    run: Path
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command, what it may suffer from, and what it answers."""

    words: Callable[[Place], list[object]]
    suffers: tuple[str, ...]
    """Folders whose damage it must notice: store, run."""
    answer: Callable[[Place, Answer], object] = lambda place, answer: answer.out
    """What is compared with the undamaged answer; by default what it prints."""
    before: Callable[[Place], None] = lambda place: None


def _weights(folder: Path) -> str:
    return sha256(folder / "model" / "model.safetensors")


def _ranking(place: Place, answer: Answer) -> object:
    with zipfile.ZipFile(place.out / "ranking.zip") as file:
        return [file.read(name) for name in file.namelist()]


COMMANDS: Mapping[str, Command] = {
    "check store": Command(words=lambda at: ["check", at.store], suffers=("store",)),
    "check run": Command(words=lambda at: ["check", at.run], suffers=("run",)),
    "recommend": Command(words=lambda at: ["recommend", at.run, "--json"], suffers=("run",)),
    "evaluate": Command(words=lambda at: ["evaluate", at.run, at.store, "--json"], suffers=("store", "run")),
    "compare": Command(words=lambda at: ["compare", at.world.run, at.run, at.store], suffers=("store", "run")),
    "rank": Command(
        words=lambda at: ["rank", at.run, at.store, at.out / "ranking.zip"],
        suffers=("store", "run"),
        answer=_ranking,
    ),
    "export": Command(
        words=lambda at: ["export", at.run, at.out / "vectors", "--embeddings"],
        suffers=("run",),
        answer=lambda at, _: sha256(at.out / "vectors" / "embeddings.npy"),
    ),
    "train": Command(
        words=lambda at: ["train", at.store, at.out / "new", *at.world.training, "--steps", "1"],
        suffers=("store",),
        answer=lambda at, _: _weights(at.out / "new"),
    ),
    "train --from": Command(
        words=lambda at: [
            *("train", at.store, at.out / "new", *at.world.training, "--steps", "0", "--from", at.run),
        ],
        suffers=("store", "run"),
        answer=lambda at, _: _weights(at.out / "new"),
    ),
    "train --resume": Command(
        words=lambda at: ["train", at.store, at.run, "--resume"],
        suffers=("store", "run"),
        answer=lambda at, _: _weights(at.run),
        before=lambda at: shutil.rmtree(at.run / "model"),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultsConfig:
    """How many cases, and which."""

    cases: int = 1000
    """Number of damaged files, each with one command."""
    seed: int = 0
    """Seed of files, damages and commands."""
    commands: tuple[str, ...] = tuple(COMMANDS)
    """Commands to run, by default all."""

    RANGES: ClassVar[Ranges] = {"cases": (1, MANY), "seed": (0, MAX_SEED)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One damaged file, and what the command made of it."""

    number: int
    command: str
    file: str
    damage: str
    verdict: str
    message: str
    """Last line of the errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultsFigures:
    counts: dict[str, dict[str, int]]
    """Number of cases of each verdict, by command."""
    faults: list[Case] = field(default_factory=list)
    """Cases that ended in a traceback or in a silent difference."""


def measure(config: FaultsConfig) -> FaultsFigures:
    """Make a world, ask every command once, then once per case."""
    torch.set_num_threads(1)  # forked processes must not wait for threads that they do not have
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        os.chmod(scratch, 0o755)
        world = make_world(Path(scratch) / "world")
        cases = inject(world, Path(scratch) / "case", config)
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        counts.setdefault(case.command, Counter())[case.verdict] += 1
    return FaultsFigures(
        counts={name: dict(found) for name, found in counts.items()},
        faults=[case for case in cases if case.verdict in (TRACEBACK, SILENT)],
    )


def inject(world: World, scratch: Path, config: FaultsConfig) -> list[Case]:
    """Run all cases on copies of a world below `scratch`."""
    expected = {}
    for name in config.commands:
        place = _open(world, scratch)
        answer = _ask(name, place)
        assert answer.code == 0, f"{name}: {answer.errors}"
        expected[name] = COMMANDS[name].answer(place, answer)
    return [_case(number, world, scratch, config, expected) for number in range(config.cases)]


def _case(number: int, world: World, scratch: Path, config: FaultsConfig, expected: Mapping[str, object]) -> Case:
    rng = random.Random(f"{config.seed}-{number}")
    name = config.commands[number % len(config.commands)]
    place = _open(world, scratch)
    COMMANDS[name].before(place)
    target = getattr(place, rng.choice(COMMANDS[name].suffers))
    files = sorted(file for file in target.rglob("*") if file.is_file())
    file, damage = rng.choice(files), rng.choice(list(DAMAGES))
    relative = f"{target.name}/{file.relative_to(target)}"
    DAMAGES[damage](file, rng)
    answer = run_command(COMMANDS[name].words(place), as_nobody=damage == "forbid")
    if answer.code == 0:
        verdict = SAME if COMMANDS[name].answer(place, answer) == expected[name] else SILENT
    else:
        verdict = REFUSED if answer.is_refusal else TRACEBACK
    message = (answer.errors.strip().splitlines() or [""])[-1]
    return Case(number=number, command=name, file=relative, damage=damage, verdict=verdict, message=message)


def _ask(name: str, place: Place) -> Answer:
    COMMANDS[name].before(place)
    return run_command(COMMANDS[name].words(place))


def _open(world: World, scratch: Path) -> Place:
    """Copy store and run anew."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    place = Place(world=world, store=scratch / "store", run=scratch / "run", out=scratch / "out")
    copy_folder(world.store, place.store)
    copy_folder(world.run, place.run)
    place.out.mkdir()
    for folder in (scratch, place.store, place.run, place.out):
        folder.chmod(0o777)  # for a user without rights
    for folder in place.run.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o777)
    return place


def _rewrite(path: Path, content: bytes) -> None:
    """Replace a file, which may be a link to the original."""
    path.unlink()
    path.write_bytes(content)


def tables(figures: FaultsFigures) -> str:
    """A row per command, then every case that is a fault."""
    verdicts = (SAME, REFUSED, SILENT, TRACEBACK)
    total = Counter(dict.fromkeys(verdicts, 0))
    for found in figures.counts.values():
        total.update(found)
    counts = {**figures.counts, "all": total}
    rows = [[name, *(str(found.get(verdict, 0)) for verdict in verdicts)] for name, found in counts.items()]
    text = table(["command", *verdicts], rows)
    for case in figures.faults:
        text += f"\n{case.number}: {case.command}, {case.damage} {case.file}: {case.verdict}: {case.message}"
    return text
