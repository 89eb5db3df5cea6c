"""All benchmarks and one report of them, in a folder named by date and commit.

    benchmarks/results/DATE-COMMIT/
      report.md            machine, claims, and the tables and figures of every benchmark
      NAME.json  NAME.md   figures of one benchmark with machine, commit and command; its tables
      NAME.png ...         its plots

Each benchmark runs in a process of its own. Stopped or killed, the same command continues on the same day: what
was measured is not measured again. A benchmark that fails is named in the report and does not stop the others.
Without --store, a paper-shaped newsroom is made in runs/bench, and a small one for benchmarks that train and
evaluate; all of them take half an hour on two cores. With --quick, every benchmark has its smallest settings.

Example: python -m benchmarks all --store store/ --logs logs/
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

from benchmarks.harness import Machine, command_of, config_type, find_commit, today
from benchmarks.names import BENCHMARKS, load_benchmark
from benchmarks.newsroom import USERS, WORK, make_newsroom, paper_shaped
from speedyfeed.errors import InputError
from speedyfeed.files import new_file
from speedyfeed.markdown import table
from speedyfeed.synthetic import SynthConfig

REPORT = "report.md"
RESULTS = Path("benchmarks/results")
OPTIONS: Mapping[str, Sequence[str]] = {
    "serve": ("--seconds", "10"),
    "quality": ("--runs", "nrms-fast", "lstur-fast", "speed-mini", "--seeds", "0", "--minutes", "1"),
    "cache": ("--gammas", "0", "20", "--minutes", "1", "--validations", "0"),
    "ablation": ("--minutes", "0.5", "--validations", "0"),
}
"""Options that differ from the defaults of a benchmark, so that all of them take half an hour."""
QUICK: Mapping[str, Sequence[str]] = {
    "speedup": ("--rounds", "1"),
    "step": ("--skip", "20", "--warmup", "1", "--steps", "2"),
    "encoder": ("--num-news", "8", "--rounds", "1"),
    "bus": ("--tokens", "960", "--rounds", "1"),
    "prepare": ("--users", "600", "1200", "2400"),
    "loader": ("--copies", "1", "2", "--rounds", "1"),
    "recall": ("--sizes", "2000", "5000", "--queries", "100", "--alone", "20", "--rounds", "1"),
    "serve": ("--news", "2000", "--rate", "20", "--seconds", "3"),
    "quality": ("--runs", "nrms-fast", "speed-mini", "--seeds", "0", "--minutes", "0.1"),
    "cache": ("--gammas", "0", "20", "--minutes", "0.1", "--validations", "0"),
    "ablation": ("--minutes", "0.1", "--validations", "0"),
}
"""Options of --quick: the least that every benchmark can measure."""
QUICK_NEWSROOM = SynthConfig(users=300, news=600)
"""Newsroom of --quick, for all benchmarks that need a store."""
APART = (
    "time-to-quality",
    "growth",
    "defaults",
    "id-models",
    "ranks",
    "kills",
    "faults",
    "fuzz",
    "schema",
    "sudden",
)
"""Benchmarks that start several processes, take longer or need a shop's log; not part of the report."""
LAST_LINES = 12
"""Last lines of a failed benchmark's messages that the report shows."""

Facts = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    store: Path | None = None
    """Folder of a prepared store; by default a paper-shaped newsroom, made in --work."""
    logs: Path | None = None
    """Raw logs of --store, which `ablation` prepares without refinement."""
    out: Path | None = None
    """Folder for the report; by default benchmarks/results/DATE-COMMIT."""
    work: Path = WORK
    """Folder for newsrooms, stores and runs that are made on the way."""
    only: tuple[str, ...] = ()
    """Names of the benchmarks to run; by default all of them."""
    quick: bool = False
    """Measure with the smallest settings on a tiny newsroom: shows in some minutes that every benchmark runs; its
    figures are rough."""
    again: bool = False
    """Measure again what has been measured before."""
    json: bool = False
    """Print the figures of all benchmarks as one JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One figure that summarises a benchmark."""

    benchmark: str
    what: str
    value: Callable[[Facts], float]
    format: str
    target: str = ""
    paper: str = ""


CLAIMS = (
    Claim(
        benchmark="speedup",
        what="clicks learned per second, against the conventional workflow",
        value=lambda facts: facts["overall"],
        format="{:.0f}x",
        target="150x",
        paper="128.7x",
    ),
    Claim(
        benchmark="speedup",
        what="the same, against conventional training that encodes each article of a batch once",
        value=lambda facts: facts["over_deduplicated"],
        format="{:.0f}x",
    ),
    Claim(
        benchmark="data-efficiency",
        what="encoded tokens that are text",
        value=lambda facts: min(facts["packed"].values()),
        format="{:.1%}",
        target="99%",
        paper="above 70%",
    ),
    Claim(
        benchmark="step",
        what="encoder's share of a training step",
        value=lambda facts: facts["encoder_share"],
        format="{:.1%}",
        target="85%",
    ),
    Claim(
        benchmark="step",
        what="waiting for data",
        value=lambda facts: facts["waiting_share"],
        format="{:.2%}",
        target="below 2%",
    ),
    Claim(
        benchmark="encoder",
        what="packed encoder against the stock padded one",
        value=lambda facts: facts["packed_over_padded"],
        format="{:.2f}x",
    ),
    Claim(
        benchmark="encoder",
        what="share of the matrix-multiply peak",
        value=lambda facts: facts["peak_share"],
        format="{:.0%}",
    ),
    Claim(
        benchmark="loader",
        what="tokens the loader supplies, against those the trainer consumes",
        value=lambda facts: min(row["times_trainer"] for row in facts["rows"]),
        format="{:,.0f}x",
    ),
    Claim(
        benchmark="loader",
        what="tokens per click when users and articles grow tenfold",
        value=lambda facts: facts["cost_growth"],
        format="{:.2f}x",
        target="1.2x or less",
    ),
    Claim(
        benchmark="cache",
        what="AUC with the cache minus AUC without, upper end of the 95% interval",
        value=lambda facts: min(row["difference"]["ci95"][1] for row in facts["rows"] if row["gamma"]),
        format="{:+.4f}",
        target="0 or more",
    ),
    Claim(
        benchmark="recall",
        what="recall of HNSW search against exact search",
        value=lambda facts: min(row["recall"] for row in facts["rows"]),
        format="{:.1%}",
    ),
)


def run(arguments: Arguments) -> None:
    names = _choose(arguments.only)
    made = results_name(today(), find_commit()) + ("-quick" if arguments.quick else "")
    out = arguments.out or RESULTS / made
    inputs = _inputs(arguments, names)
    measured: dict[str, Facts] = {}
    failures: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        if arguments.again:
            _forget(name, out, arguments.work)
        if _is_measured(out / f"{name}.json", inputs[name]):
            print(f"{name} ({number} of {len(names)}): measured before", file=sys.stderr)
        else:
            print(f"{name} ({number} of {len(names)}) ...", file=sys.stderr)
            options = [word for option, path in inputs[name].items() for word in (f"--{option}", str(path))]
            chosen = QUICK if arguments.quick else OPTIONS
            failure = _measure(name, out, [*options, *chosen.get(name, ())])
            if failure is not None:
                failures[name] = failure
                continue
        measured[name] = json.loads((out / f"{name}.json").read_text("utf-8"))
        write_report(out, measured, failures)
    write_report(out, measured, failures)
    failed = f"; failed: {', '.join(failures)}" if failures else ""
    print(json.dumps(measured) if arguments.json else f"{out / REPORT} is ready{failed}")
    if failures:
        sys.exit(1)


def results_name(date: str, commit: str) -> str:
    """Name of a results folder: date and commit, with `-changed` if tracked files were changed."""
    return f"{date}-{commit.replace('+', '-changed') or 'no-commit'}"


def write_report(folder: Path, measured: Mapping[str, Facts], failures: Mapping[str, str]) -> None:
    """Write `report.md` of what has been measured so far."""
    parts = ["# SpeedyFeed benchmarks", f"{today()}; {Machine()}", _claims(measured)]
    parts += [_section(folder, name, facts) for name, facts in measured.items()]
    parts += [f"## {name}\n\nFailed:\n\n```\n{failure}\n```" for name, failure in failures.items()]
    with new_file(folder / REPORT) as file:
        file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _claims(measured: Mapping[str, Facts]) -> str:
    rows = [
        [claim.what, claim.format.format(claim.value(measured[claim.benchmark])), claim.target, claim.paper]
        for claim in CLAIMS
        if claim.benchmark in measured
    ]
    return table(["", "found", "target", "paper"], rows)


def _section(folder: Path, name: str, facts: Facts) -> str:
    """The description of a benchmark, its command, its tables and its plots."""
    about = (load_benchmark(name).__doc__ or "").split("\n\nExample:")[0]
    origin = f"`{command_of(name, facts)}`: {facts['benchmark_seconds']:.0f} s"
    machine = Machine(**facts["machine"])
    if machine != Machine():
        origin += f"; measured on {facts['date']}: {machine}"
    tables = (folder / f"{name}.md").read_text("utf-8").strip()
    plots = [f"![{path.stem}]({path.name})" for path in _plots(folder, name)]
    return "\n\n".join([f"## {name}", about, origin, tables, *plots])


def _plots(folder: Path, name: str) -> list[Path]:
    return sorted([*folder.glob(f"{name}.png"), *folder.glob(f"{name}-*.png")])


def _choose(only: Sequence[str]) -> list[str]:
    every = [name for name in BENCHMARKS if name not in ("all", *APART)]
    for name in only:
        if name not in every:
            raise InputError(f"--only {name}: no such benchmark; there are {', '.join(every)}")
    return [name for name in every if name in only] if only else every


def _inputs(arguments: Arguments, names: Sequence[str]) -> dict[str, dict[str, Path]]:
    """The folders that each benchmark is given, by option, as far as it has these options."""
    inputs = {}
    for name in names:
        options = {field.name for field in fields(config_type(load_benchmark(name)))}
        trains = "seeds" in options
        known = {"work": arguments.work / name if trains else arguments.work}
        if arguments.store is not None:
            known["store"] = arguments.store
            if arguments.logs is not None:
                known["logs"] = arguments.logs
        elif "store" in options:
            config = SynthConfig() if trains else paper_shaped(USERS)  # an evaluation encodes every article
            made = make_newsroom(QUICK_NEWSROOM if arguments.quick else config, arguments.work)
            known |= {"store": made.store.path, "logs": made.logs}
        inputs[name] = {option: path for option, path in known.items() if option in options}
    return inputs


def _forget(name: str, out: Path, work: Path) -> None:
    """Remove the figures of a benchmark and the runs it trained."""
    for path in (out / f"{name}.json", out / f"{name}.md", *_plots(out, name)):
        path.unlink(missing_ok=True)
    shutil.rmtree(work / name, ignore_errors=True)


def _is_measured(file: Path, inputs: Mapping[str, Path]) -> bool:
    """Whether figures on the same data exist."""
    if not file.exists():
        return False
    config = json.loads(file.read_text("utf-8"))["config"]
    return all(config[option] == str(path) for option, path in inputs.items())


def _measure(name: str, folder: Path, options: Sequence[str]) -> str | None:
    """Run a benchmark in a process of its own; returns its last messages if it failed."""
    command = [sys.executable, "-m", "benchmarks", name, "--out", str(folder), *options]
    messages: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(f"  {line}")
            messages.append(line)
    return None if process.returncode == 0 else f"exit code {process.returncode}\n{''.join(messages).rstrip()}"
