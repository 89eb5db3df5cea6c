"""Fault injection: random damage to a file of a store, a run or a feed, then a command on it.

A command must either answer as if nothing had happened, or end with exit code 2 and one line. A traceback is a
fault of ours, and so is an answer that differs without a word. Every command meets every file it may read before
any meets one twice; the files of every other store are taken for large ones, which are not read when it is opened.

Example: python -m benchmarks faults --cases 1000 --json
"""

import logging
import random
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.robustness.sandbox import Answer, World, ask_service, copy_folder, make_world, run_forked
from speedyfeed.checksums import sha256
from speedyfeed.cli.main import main
from speedyfeed.data import store as stores
from speedyfeed.markdown import table
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges

log = logging.getLogger(__name__)

CASES_PER_REPORT = 50
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
    feed: Path
    out: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command, what it may suffer from, and what it answers."""

    arguments: Callable[[Place], list[object]]
    suffers: tuple[str, ...]
    """Folders whose damage it must notice: store, run, feed."""
    answer: Callable[[Place, Answer], object] = lambda place, answer: answer.out
    """What is compared with the undamaged answer; by default what it prints."""
    before: Callable[[Place], None] = lambda place: None
    run: Callable[[list[str]], None] = main
    """Runs the command with its arguments."""


def _weights(folder: Path) -> str:
    return sha256(folder / "model" / "model.safetensors")


def _ranking(place: Place, answer: Answer) -> object:
    with zipfile.ZipFile(place.out / "ranking.zip") as file:
        return [file.read(name) for name in file.namelist()]


COMMANDS: Mapping[str, Command] = {
    "check store": Command(arguments=lambda at: ["check", at.store], suffers=("store",)),
    "check run": Command(arguments=lambda at: ["check", at.run], suffers=("run",)),
    "prepare": Command(arguments=lambda at: ["prepare", at.world.logs, at.store], suffers=("store",)),
    "prepare --like": Command(
        arguments=lambda at: ["prepare", at.world.logs, at.out / "later", "--like", at.store],
        suffers=("store",),
        answer=lambda at, _: sha256(at.out / "later" / "manifest.json"),  # it names the checksums of all files
    ),
    "recommend": Command(arguments=lambda at: ["recommend", at.run, "--json"], suffers=("run",)),
    "evaluate": Command(arguments=lambda at: ["evaluate", at.run, at.store, "--json"], suffers=("store", "run")),
    "compare": Command(arguments=lambda at: ["compare", at.world.run, at.run, at.store], suffers=("store", "run")),
    "rank": Command(
        arguments=lambda at: ["rank", at.run, at.store, at.out / "ranking.zip"],
        suffers=("store", "run"),
        answer=_ranking,
    ),
    "export": Command(
        arguments=lambda at: ["export", at.run, at.out / "vectors", "--embeddings"],
        suffers=("run",),
        answer=lambda at, _: sha256(at.out / "vectors" / "embeddings.npy"),
    ),
    "serve": Command(
        arguments=lambda at: ["serve", at.run, "--data", at.out / "feed", "--precision", "fp32"],
        suffers=("run",),
        run=ask_service,
    ),
    "serve with graphs": Command(
        arguments=lambda at: ["serve", at.run, "--data", at.feed, "--precision", "fp32"],
        suffers=("run", "feed"),
        run=partial(ask_service, has_graphs=True),
    ),
    "serve --workers": Command(
        arguments=lambda at: ["serve", at.run, "--data", at.feed, "--precision", "fp32", "--workers", "2"],
        suffers=("run", "feed"),
        run=partial(ask_service, has_graphs=True),
    ),
    "profile": Command(
        arguments=lambda at: [
            *("profile", at.store, "--encoder", at.world.encoder, "--skip", "0", "--warmup", "0", "--steps", "1"),
        ],
        suffers=("store",),
        answer=lambda at, _: None,  # times, which always differ
    ),
    "sweep": Command(
        arguments=lambda at: [
            *("sweep", at.store, at.out / "sweep", "--runs", at.world.encoder, "--seeds", "0"),
            *("--steps", "1", "--minutes", "None", "--validations", "1"),
        ],
        suffers=("store",),
        answer=lambda at, _: [sha256(file) for file in (at.out / "sweep").glob("*/model/model.safetensors")],
    ),
    "train": Command(
        arguments=lambda at: ["train", at.store, at.out / "new", *at.world.training, "--steps", "1"],
        suffers=("store",),
        answer=lambda at, _: _weights(at.out / "new"),
    ),
    "train --from": Command(
        arguments=lambda at: [
            *("train", at.store, at.out / "new", *at.world.training, "--steps", "0", "--from", at.run),
        ],
        suffers=("store", "run"),
        answer=lambda at, _: _weights(at.out / "new"),
    ),
    "train --resume": Command(
        arguments=lambda at: ["train", at.store, at.run, "--resume"],
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
    is_large: bool
    """Whether files of a store were taken for large ones."""
    message: str
    """Last line of the errors."""

    def __str__(self) -> str:
        kind = " of a large store" if self.is_large else ""
        return f"{self.number}: {self.command}, {self.damage} {self.file}{kind}: {self.verdict}: {self.message}"


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
        world = make_world(Path(scratch) / "world")
        cases = inject(world, Path(scratch) / "case", config)
    return summarize(cases)


def summarize(cases: Sequence[Case]) -> FaultsFigures:
    """Count the cases by command and verdict."""
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        counts.setdefault(case.command, Counter())[case.verdict] += 1
    return FaultsFigures(
        counts={name: dict(found) for name, found in counts.items()},
        faults=[case for case in cases if case.verdict in (TRACEBACK, SILENT)],
    )


def inject(world: World, scratch: Path, config: FaultsConfig) -> list[Case]:
    """Run all cases on copies of a world below `scratch`; faults and counts are logged as they are found."""
    expected, targets = {}, []
    for name in config.commands:
        command, place = COMMANDS[name], _open(world, scratch)
        command.before(place)
        targets += [(name, folder, file) for folder in command.suffers for file in _files(getattr(place, folder))]
        answer = _ask(command, place)
        assert answer.code == 0, f"{name}: {answer.errors}"
        expected[name] = command.answer(place, answer)
    random.Random(config.seed).shuffle(targets)
    cases = []
    for number in range(config.cases):
        name, folder, file = targets[number % len(targets)]
        rng = random.Random(f"{config.seed}-{number}")
        case = _case(number, COMMANDS[name], name, _open(world, scratch), folder, file, expected[name], rng)
        cases.append(case)
        if case.verdict in (TRACEBACK, SILENT):
            log.warning("%s", case)
        if not len(cases) % CASES_PER_REPORT:  # a run that is stopped has then said what it saw
            done = f"{len(cases)} of {config.cases} cases, {len(targets)} pairs of command and file"
            log.info("%s\n%s", done, tables(summarize(cases)))
    return cases


def _case(
    number: int,
    command: Command,
    name: str,
    place: Place,
    folder: str,
    file: str,
    expected: object,
    rng: random.Random,
) -> Case:
    command.before(place)
    damage, is_large = rng.choice(list(DAMAGES)), rng.random() < 0.5
    DAMAGES[damage](getattr(place, folder) / file, rng)
    answer = _ask(command, place, is_large=is_large, obeys_permissions=damage == "forbid")
    if answer.code == 0:
        verdict = SAME if command.answer(place, answer) == expected else SILENT
    else:
        verdict = REFUSED if answer.is_refusal else TRACEBACK
    return Case(
        number=number,
        command=name,
        file=f"{folder}/{file}",
        damage=damage,
        verdict=verdict,
        is_large=is_large,
        message=(answer.errors.strip().splitlines() or [""])[-1],
    )


def _ask(command: Command, place: Place, *, is_large: bool = False, obeys_permissions: bool = False) -> Answer:
    def work() -> None:
        if is_large:
            stores.VERIFIED_BYTES = 0
        command.run([str(part) for part in command.arguments(place)])

    return run_forked(work, obeys_permissions=obeys_permissions)


def _files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _open(world: World, scratch: Path) -> Place:
    """Copy store and run anew."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    place = Place(
        world=world, store=scratch / "store", run=scratch / "run", feed=scratch / "feed", out=scratch / "out"
    )
    copy_folder(world.store, place.store)
    copy_folder(world.run, place.run)
    shutil.copytree(world.feed, place.feed)  # no links: a journal is changed in place
    place.out.mkdir()
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
    return "\n".join([text, *map(str, figures.faults)])
