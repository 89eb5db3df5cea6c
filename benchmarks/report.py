"""All benches and one report of them: Markdown, JSON and figures.

Each bench runs in a process of its own and leaves its figures in a folder of its own below --out. Stopped or
killed, the same command goes on: what was measured is not measured again. A bench that fails is named in the
report, and the others stand. Without --store they measure on a paper-shaped newsroom made in --out, those that
train and evaluate on a small one: half an hour.

Example: python -m benchmarks all --store store/ --out runs/bench
"""

import json
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.harness import Machine, command_of, config_type, table
from benchmarks.names import BENCHMARKS, load_benchmark
from benchmarks.newsroom import BENCH, USERS, make_newsroom, paper_shaped
from speedyfeed.errors import InputError
from speedyfeed.files import new_file, write_json
from speedyfeed.synthetic import SynthConfig

REPORT = "report"
OPTIONS: Mapping[str, Sequence[str]] = {
    "serve": ("--seconds", "10"),
    "quality": ("--runs", "nrms-fast", "lstur-fast", "speed-mini", "--seeds", "0", "--minutes", "1"),
    "cache": ("--gammas", "0", "20", "--minutes", "1", "--validations", "0"),
    "ablation": ("--minutes", "0.5", "--validations", "0"),
}
"""What differs from a bench's own defaults, so that all of them take half an hour."""
APART = ("ranks", "kills")
"""Those that want the machine's cores for several processes, and more time."""
LAST_LINES = 12
"""Of what a failed bench said."""

Facts = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    store: Path | None = None
    """Prepared log; without one, a paper-shaped newsroom is made and kept in --out."""
    logs: Path | None = None
    """The raw logs of --store: `ablation` prepares them without refinement."""
    out: Path = BENCH
    """Folder for the report and everything it is made of."""
    only: tuple[str, ...] = ()
    """Benches to run, by name; without, all of them."""
    again: bool = False
    """Measure again what was measured before."""
    json: bool = False
    """Print the figures of all benches as one JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One figure that stands for a bench."""

    bench: str
    what: str
    value: Callable[[Facts], float]
    format: str
    target: str = ""
    paper: str = ""


CLAIMS = (
    Claim(
        bench="speedup",
        what="a click is learned, against the conventional workflow",
        value=lambda facts: facts["overall"],
        format="{:.0f}x",
        target="150x",
        paper="128.7x",
    ),
    Claim(
        bench="data-efficiency",
        what="encoded tokens that are text",
        value=lambda facts: min(facts["packed"].values()),
        format="{:.1%}",
        target="99%",
        paper="above 70%",
    ),
    Claim(
        bench="step",
        what="encoder's share of a training step",
        value=lambda facts: facts["encoder_share"],
        format="{:.1%}",
        target="85%",
    ),
    Claim(
        bench="step",
        what="waiting for data",
        value=lambda facts: facts["waiting_share"],
        format="{:.2%}",
        target="below 2%",
    ),
    Claim(
        bench="encoder",
        what="packed encoder against the stock padded one",
        value=lambda facts: facts["packed_over_padded"],
        format="{:.2f}x",
    ),
    Claim(
        bench="encoder",
        what="share of the matrix-multiply peak",
        value=lambda facts: facts["peak_share"],
        format="{:.0%}",
    ),
    Claim(
        bench="loader",
        what="batches made, against what the trainer consumes",
        value=lambda facts: min(row["times_appetite"] for row in facts["rows"]),
        format="{:,.0f}x",
    ),
    Claim(
        bench="loader",
        what="tokens a click as users grow tenfold",
        value=lambda facts: facts["cost_growth"],
        format="{:.2f}x",
        target="1x or less",
    ),
    Claim(
        bench="cache",
        what="AUC with the cache less that without, upper end of the 95% interval",
        value=lambda facts: min(row["difference"]["ci95"][1] for row in facts["rows"] if row["gamma"]),
        format="{:+.4f}",
        target="0 or more",
    ),
    Claim(
        bench="recall",
        what="what graphs find of exact search's news",
        value=lambda facts: min(row["recall"] for row in facts["rows"]),
        format="{:.1%}",
    ),
)


def run(arguments: Arguments) -> None:
    names = _choose(arguments.only)
    places = _places(arguments, names)
    measured: dict[str, Facts] = {}
    failures: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        folder = arguments.out / name
        if arguments.again:
            shutil.rmtree(folder, ignore_errors=True)
        options = [word for option, place in places[name].items() for word in (f"--{option}", str(place))]
        if _is_measured(folder / f"{name}.json", places[name]):
            print(f"{name} ({number} of {len(names)}): measured before", file=sys.stderr)
        else:
            print(f"{name} ({number} of {len(names)}) ...", file=sys.stderr)
            failure = _measure(name, folder, [*options, *OPTIONS.get(name, ())])
            if failure is not None:
                failures[name] = failure
                continue
        measured[name] = json.loads((folder / f"{name}.json").read_text("utf-8"))
        write_report(arguments.out, measured, failures)
    write_report(arguments.out, measured, failures)
    if arguments.json:
        print(json.dumps(measured))
    else:
        print(f"{arguments.out / REPORT}.md is ready" + _told(failures))
    if failures:
        sys.exit(1)


def write_report(folder: Path, measured: Mapping[str, Facts], failures: Mapping[str, str]) -> None:
    """`report.md` and `report.json` of what there is so far."""
    with new_file(folder / f"{REPORT}.json") as file:
        write_json(file, {**measured, **{name: {"failed": failure} for name, failure in failures.items()}})
    parts = ["# SpeedyFeed, measured", str(Machine()), _claims(measured)]
    parts += [_section(folder, name, facts) for name, facts in measured.items()]
    parts += [f"## {name}\n\nFailed:\n\n```\n{failure}\n```" for name, failure in failures.items()]
    with new_file(folder / f"{REPORT}.md") as file:
        file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _claims(measured: Mapping[str, Facts]) -> str:
    rows = [
        [claim.what, claim.format.format(claim.value(measured[claim.bench])), claim.target, claim.paper]
        for claim in CLAIMS
        if claim.bench in measured
    ]
    return table(["", "found", "target", "paper"], rows)


def _section(folder: Path, name: str, facts: Facts) -> str:
    """What the bench says of itself, its tables and its figures."""
    about = (load_benchmark(name).__doc__ or "").split("\n\nExample:")[0]
    origin = f"`{command_of(name, facts)}`: {facts['bench_seconds']:.0f} s"
    machine = Machine(**facts["machine"])
    if machine != Machine():
        origin += f"; measured on: {machine}"
    told = (folder / name / f"{name}.md").read_text("utf-8").strip()
    drawn = [f"![{path.stem}]({name}/{path.name})" for path in sorted((folder / name).glob("*.png"))]
    return "\n\n".join([f"## {name}", about, origin, told, *drawn])


def _choose(only: Sequence[str]) -> list[str]:
    every = [name for name in BENCHMARKS if name not in ("all", *APART)]
    for name in only:
        if name not in every:
            raise InputError(f"--only {name}: no such bench; there are {', '.join(every)}")
    return [name for name in every if name in only] if only else every


def _places(arguments: Arguments, names: Sequence[str]) -> dict[str, dict[str, Path]]:
    """For each bench the options that tell it where the data are, as far as it takes them."""
    places = {}
    for name in names:
        taken = {field.name for field in fields(config_type(load_benchmark(name)))}
        known = {"folder": arguments.out}
        if arguments.store is not None:
            known["store"] = arguments.store
            if arguments.logs is not None:
                known["logs"] = arguments.logs
        elif "store" in taken:
            config = SynthConfig() if "seeds" in taken else paper_shaped(USERS)  # evaluating encodes every news
            made = make_newsroom(config, arguments.out)
            known |= {"store": made.store.path, "logs": made.logs}
        places[name] = {key: place for key, place in known.items() if key in taken}
    return places


def _is_measured(file: Path, places: Mapping[str, Path]) -> bool:
    """Whether the figures are there, and of the same data."""
    if not file.exists():
        return False
    config = json.loads(file.read_text("utf-8"))["config"]
    return all(config[key] == str(place) for key, place in places.items())


def _measure(name: str, folder: Path, options: Sequence[str]) -> str | None:
    """Run a bench; returns the last it said where it failed."""
    command = [sys.executable, "-m", "benchmarks", name, "--out", str(folder), *options]
    said: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(f"  {line}")
            said.append(line)
    return None if process.returncode == 0 else f"exit code {process.returncode}\n{''.join(said).rstrip()}"


def _told(failures: Mapping[str, str]) -> str:
    return f"; failed: {', '.join(failures)}" if failures else ""
