"""Shared parts of all benchmarks: facts about the machine, timing, memory, and the command line.

A benchmark is a module with

    measure(config) -> figures      frozen dataclasses both; the command line is made from the config
    tables(figures) -> str          Markdown that reads well in a terminal
    draw(figures, folder) -> files  PNG or SVG figures; optional

Variants are timed round by round, one after the other: a slow moment of a busy machine then affects all of them,
and ratios stay meaningful where seconds do not.
"""

import dataclasses
import json
import os
import platform
import subprocess
import threading
import time
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Self

import torch
from tyro.conf import arg

from speedyfeed import __version__
from speedyfeed.drawing import style
from speedyfeed.files import new_file, write_json
from speedyfeed.profile import now


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine and the versions that figures were measured with."""

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
    """Commit of the source, with `+` if tracked files were changed; empty outside a checkout."""

    def __str__(self) -> str:
        commit = f" ({self.commit})" if self.commit else ""
        return (
            f"{self.cores} cores, {self.gigabytes} GB, GPU {self.gpu}, {self.processor}; Python {self.python}, "
            f"torch {self.torch}, transformers {self.transformers}, speedyfeed {self.speedyfeed}{commit}"
        )


def find_commit(folder: Path = Path(__file__).parent) -> str:
    """Commit of a checkout, with `+` if tracked files were changed; empty outside a checkout."""

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", ".")  # a folder inside another project's checkout is not part of it
        changed = ask("status", "--porcelain", "--untracked-files=no")
        return ask("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def time_in_turn(variants: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Time all variants in turn, after one warm-up of each; returns the best seconds of each."""
    for run in variants.values():
        run()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            start = now()
            run()
            best[name] = min(best[name], now() - start)
    return best


def memory(entry: str) -> int:
    """Memory of this process in bytes (Linux): VmRSS is current, VmHWM the peak, RssAnon without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {entry}")


class PeakMemory:
    """Peak private memory of this process inside a `with` block, sampled every 5 ms."""

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
        """Peak bytes above those at the start of the block."""
        return self._highest - self._before

    def _watch(self) -> None:
        while True:
            self._highest = max(self._highest, memory("RssAnon"))
            if self._is_over.wait(0.005):
                return


def config_type(module: ModuleType) -> type[Any]:
    """The config dataclass that `measure` of a benchmark takes."""
    kind: type[Any] = typing.get_type_hints(module.measure)["config"]
    return kind


def command_of(name: str, facts: Mapping[str, Any]) -> str:
    """The command that repeats a measurement: the benchmark and all its settings, defaults included."""
    words = [f"python -m benchmarks {name}"]
    for option, value in facts["config"].items():
        if value is None or value is False or value == []:
            continue
        values = value if isinstance(value, list) else [] if value is True else [value]
        words.append(" ".join([f"--{option.replace('_', '-')}", *map(str, values)]))
    return " ".join(words)


def as_command(module: ModuleType, name: str) -> SimpleNamespace:
    """Turn a benchmark into a command whose options are those of its config, --json and --out."""
    options: list[tuple[str, Any, Any]] = [
        ("config", Annotated[config_type(module), arg(name="")], field()),
        ("json", Annotated[bool, arg(help="Print the figures as one JSON object.")], False),
        ("out", Annotated[Path | None, arg(help="Folder to write NAME.json, NAME.md and figures to.")], None),
    ]
    arguments = dataclasses.make_dataclass("Arguments", options, frozen=True, kw_only=True)
    return SimpleNamespace(__doc__=module.__doc__, Arguments=arguments, run=partial(_run, module, name))


def _run(module: ModuleType, name: str, arguments: Any) -> None:
    """Measure, print, and write to --out; NAME.json is written last, so that its presence means complete."""
    out = arguments.out
    drawing = style() if out is not None and hasattr(module, "draw") else None  # fail before measuring
    started = time.perf_counter()
    figures = module.measure(arguments.config)
    facts = {
        **asdict(figures),
        "config": json.loads(json.dumps(asdict(arguments.config), default=str)),
        "machine": asdict(Machine()),
        "date": today(),
        "benchmark_seconds": time.perf_counter() - started,
    }
    text = module.tables(figures)
    if out is not None:
        with new_file(out / f"{name}.md") as file:
            file.write_text(text + "\n", encoding="utf-8")
        if drawing is not None:
            with drawing:
                module.draw(figures, out)
        with new_file(out / f"{name}.json") as file:
            write_json(file, facts)
    if arguments.json:
        print(json.dumps(facts))
    else:
        print(f"{Machine()}\n{command_of(name, facts)}\n\n{text}")


def today() -> str:
    """The current date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()
