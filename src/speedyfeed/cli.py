"""The `speedyfeed` command: finds the asked command, runs it, and turns a user's mistake into one line.

Each command is a module of `speedyfeed.commands`: its `Arguments` dataclass is its command line, its `run` does
the work; `defaults`, where it has one, gives defaults that depend on what was typed. Only the module of the
command at hand is imported, so that help comes at once.
"""

import contextlib
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from speedyfeed import __version__
from speedyfeed.errors import InputError, LostRanks

COMMANDS = {
    "synth": "make a synthetic newsroom: articles and click logs to try everything on",
    "prepare": "turn raw logs into a refined, tokenized, memory-mapped store",
    "train": "train a recommender on a store; resumable",
    "evaluate": "measure how well a trained recommender ranks and recalls",
    "rank": "write, or check, a leaderboard file",
    "compare": "tell which of two runs ranks better, and whether the data can tell",
    "recommend": "the best news for one reader",
    "serve": "recommendations over HTTP, and a page to try them on",
    "bench": "measure one claim on this machine, or all of them",
    "demo": "all of it in one go, on a small synthetic newsroom",
}
BENCHES = {
    "speedup": "how many times as fast a click is learned as conventionally, and what each technique gives",
    "step": "where the time of a training step goes",
    "data-efficiency": "how much of what is encoded is padding",
    "encoder": "the packed encoder against the stock padded one, and the share of the machine's peak",
    "bus": "what segments cost: time and memory",
    "prepare": "how fast logs become a store, at three sizes",
    "loader": "batches against the trainer's appetite, the cost of a click and memory, at three sizes",
    "recall": "graphs against exact search, at three sizes",
    "serve": "what the service bears",
    "quality": "the main table: baselines and ours, over seeds",
    "cache": "what gamma costs and gives: quality, time, hit rate, drift",
    "ablation": "the same recommender without bus, cache or refinement",
    "ranks": "what a step costs on 1, 2 and 4 ranks, and would cost on many devices",
    "kills": "a rank killed again and again: what it costs, and that nothing is lost",
    "all": "all of these, as one report with figures",
}
BENCH_EXAMPLE = "Example: speedyfeed bench speedup --store store/ --json"


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits 2 with one line on stderr when the user can fix what went wrong."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(_help())
    elif command == "--version":
        print(f"speedyfeed {__version__}")
    elif command not in COMMANDS:
        _fail(f"{command!r} is no command; there are {', '.join(COMMANDS)}")
    elif command == "bench":
        _run_bench(rest)
    else:
        _run(importlib.import_module(f"speedyfeed.commands.{command}"), command, rest)


def _run_bench(rest: Sequence[str]) -> None:
    """Each bench is a module that measures; what makes a report of all is one like a command."""
    name = rest[0] if rest else "--help"
    if name in ("-h", "--help"):
        print(f"usage: speedyfeed bench NAME ...\n\n{_list(BENCHES)}\n\n{BENCH_EXAMPLE}")
    elif name not in BENCHES:
        _fail(f"no bench {name!r}; there are {', '.join(BENCHES)}")
    elif name == "all":
        _run(importlib.import_module("speedyfeed.bench.report"), "bench all", rest[1:])
    else:
        from speedyfeed.bench.harness import as_command

        module = importlib.import_module(f"speedyfeed.bench.{name.replace('-', '_')}")
        _run(as_command(module, name), f"bench {name}", rest[1:])


def _run(module: Any, command: str, rest: Sequence[str]) -> None:
    arguments = _parse(module, command, rest)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if os.environ.get("RANK", "0") == "0":  # of those that torchrun starts, the first speaks
        logging.getLogger("speedyfeed").setLevel(logging.INFO)
    try:
        module.run(arguments)
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        # A full disk or a missing permission; the system's own words say it best.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    except LostRanks as error:
        print(f"speedyfeed: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly exit may wait for those that are gone
    except KeyboardInterrupt:
        print("speedyfeed: stopped", file=sys.stderr)
        sys.exit(130)


def _parse(module: Any, command: str, rest: Sequence[str]) -> Any:
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                module.Arguments,
                prog=f"speedyfeed {command}",
                description=module.__doc__,
                args=rest,
                default=module.defaults(rest) if hasattr(module, "defaults") else None,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except InputError as error:
        _fail(str(error))
    except SystemExit as stop:
        if not stop.code:
            raise
        # The parser draws a box over several lines; the words in it make our one line.
        words = re.sub(r"[─│╭╮╰╯]|\x1b\[[0-9;]*m", " ", said.getvalue())
        _fail(words.replace("For full helptext, run", "; see"))


def _help() -> str:
    usage = "usage: speedyfeed COMMAND ...   (speedyfeed COMMAND --help tells more)"
    return f"{usage}\n\n{_list(COMMANDS)}\n\nStart with: speedyfeed demo"


def _list(names: Mapping[str, str]) -> str:
    width = max(map(len, names))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in names.items())


def _fail(message: str) -> NoReturn:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of a host fail alike: once will do
        print(f"speedyfeed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
