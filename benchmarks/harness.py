"""What every bench shares: facts about the machine, times taken in turn, tables, and the way to the user.

A bench is a module with

    measure(config) -> figures      frozen dataclasses both; the command line is made from the config
    tables(figures) -> str          Markdown that reads well in a terminal
    draw(figures, folder) -> files  PNG figures, where there is something to see

Times of several variants are taken round by round, one after the other: on a busy machine a slow moment then hits
all of them, and ratios stay meaningful where seconds do not.
"""

import dataclasses
import json
import os
import platform
import subprocess
import threading
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Self

import torch
from tyro.conf import arg

from benchmarks.drawing import style
from speedyfeed import __version__
from speedyfeed.files import new_file, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where figures were taken, and with what."""

    cores: int = field(default_factory=torch.get_num_threads)
    gigabytes: int = field(
        default_factory=lambda: round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    )
    gpu: str = field(default_factory=lambda: torch.cuda.get_device_name() if torch.cuda.is_available() else "none")
    processor: str = field(default_factory=platform.machine)
    python: str = field(default_factory=platform.python_version)
    torch: str = field(default_factory=lambda: torch.__version__)
    transformers: str = field(default_factory=lambda: version("transformers"))
    speedyfeed: str = __version__
    commit: str = field(default_factory=lambda: find_commit())
    """Of the source that ran, `+` where it was changed since; empty where it is no checkout."""

    def __str__(self) -> str:
        commit = f" ({self.commit})" if self.commit else ""
        return (
            f"{self.cores} cores, {self.gigabytes} GB, GPU {self.gpu}, {self.processor}; Python {self.python}, "
            f"torch {self.torch}, transformers {self.transformers}, speedyfeed {self.speedyfeed}{commit}"
        )


def find_commit(folder: Path = Path(__file__).parent) -> str:
    """The commit of a checkout, `+` where its tracked files have changed; empty where there is none."""

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", ".")  # installed into somebody else's checkout is not theirs
        changed = ask("status", "--porcelain", "--untracked-files=no")
        return ask("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def time_in_turn(variants: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Best seconds of each variant, after one warm-up of each."""
    for run in variants.values():
        run()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            start = now()
            run()
            best[name] = min(best[name], now() - start)
    return best


def now() -> float:
    """Seconds, once the device has done all it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def memory(entry: str) -> int:
    """Bytes of this process: VmRSS is now, VmHWM the highest so far, RssAnon now without mapped files (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {entry}")


class PeakMemory:
    """The most memory of its own that a process takes while this is entered, looked at every few milliseconds."""

    def __enter__(self) -> Self:
        self._before = self._highest = memory("RssAnon")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        """Bytes above what there was before."""
        return self._highest - self._before

    def _watch(self) -> None:
        while True:
            self._highest = max(self._highest, memory("RssAnon"))
            if self._is_over.wait(0.005):
                return


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned to be read as it is: the first column to the left, the others to the right."""
    widths = [max(2, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join([cells[0].ljust(widths[0]), *others])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(line(cells) for cells in (header, rule, *rows))


def config_type(module: ModuleType) -> type[Any]:
    """What `measure` of a bench takes."""
    kind: type[Any] = typing.get_type_hints(module.measure)["config"]
    return kind


def command_of(name: str, facts: Mapping[str, Any]) -> str:
    """What measures the same again: the bench and all its settings, defaults included."""
    words = [f"python -m benchmarks {name}"]
    for option, value in facts["config"].items():
        if value is None or value is False or value == []:
            continue
        values = value if isinstance(value, list) else [] if value is True else [value]
        words.append(" ".join([f"--{option.replace('_', '-')}", *map(str, values)]))
    return " ".join(words)


def as_command(module: ModuleType, name: str) -> SimpleNamespace:
    """A bench as the command line knows commands; its options are those of its config, and where figures go.

    A config that has an `out` of its own, for what is made while measuring, has the figures there too.
    """
    config = config_type(module)
    options: list[tuple[str, Any, Any]] = [
        ("config", Annotated[config, arg(name="")], field()),
        ("json", Annotated[bool, arg(help="Print the figures as one JSON object.")], False),
    ]
    if not any(option.name == "out" for option in dataclasses.fields(config)):
        help = "Folder to keep figures, tables and PNG files in."
        options.append(("out", Annotated[Path | None, arg(help=help)], None))
    arguments = dataclasses.make_dataclass("Arguments", options, frozen=True, kw_only=True)
    return SimpleNamespace(__doc__=module.__doc__, Arguments=arguments, run=partial(_run, module, name))


def _run(module: ModuleType, name: str, arguments: Any) -> None:
    """Measure, print, and keep where asked; NAME.json comes last, so that it tells that all is there."""
    out = arguments.out if hasattr(arguments, "out") else arguments.config.out
    drawing = style() if out is not None and hasattr(module, "draw") else None  # fails now or never
    started = time.perf_counter()
    figures = module.measure(arguments.config)
    facts = {
        **asdict(figures),
        "config": json.loads(json.dumps(asdict(arguments.config), default=str)),
        "machine": asdict(Machine()),
        "bench_seconds": time.perf_counter() - started,
    }
    told = module.tables(figures)
    if out is not None:
        with new_file(out / f"{name}.md") as file:
            file.write_text(told + "\n", encoding="utf-8")
        if drawing is not None:
            with drawing:
                module.draw(figures, out)
        with new_file(out / f"{name}.json") as file:
            write_json(file, facts)
    if arguments.json:
        print(json.dumps(facts))
    else:
        print(f"{Machine()}\n{command_of(name, facts)}\n\n{told}")
