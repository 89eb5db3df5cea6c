"""The `speedyfeed` command: finds the asked command, runs it, and turns a user's mistake into one line.

Each command is a module of `speedyfeed.commands`: its `Arguments` dataclass is its command line, its `run` does
the work; `defaults`, where it has one, gives defaults that depend on what was typed. Only the module of the
command at hand is imported, so that help comes at once.
"""

import contextlib
import importlib
import io
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from speedyfeed import __version__
from speedyfeed.errors import InputError

COMMANDS = {
    "synth": "make a synthetic newsroom: articles and click logs to try everything on",
    "prepare": "turn raw logs into a refined, tokenized, memory-mapped store",
    "train": "train a recommender on a store; resumable",
    "evaluate": "measure how well a trained recommender ranks and recalls",
    "rank": "write, or check, a leaderboard file",
    "compare": "tell which of two runs ranks better, and whether the data can tell",
    "recommend": "the best news for one reader",
    "serve": "recommendations over HTTP, and a page to try them on",
    "bench": "measure one claim on this machine: encoder, bus, recall, serve, quality, cache, ablation",
    "demo": "all of it in one go, on a small synthetic newsroom",
}
BENCHES = ("encoder", "bus", "recall", "serve", "quality", "cache", "ablation")
BENCH_EXAMPLE = "Example: speedyfeed bench encoder --json"


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
    """Each bench is a module like a command."""
    name = rest[0] if rest else "--help"
    if name in ("-h", "--help"):
        print(f"usage: speedyfeed bench NAME ...\n\n  NAME is {' or '.join(BENCHES)}\n\n{BENCH_EXAMPLE}")
    elif name not in BENCHES:
        _fail(f"no bench {name!r}; there are {', '.join(BENCHES)}")
    else:
        from speedyfeed.bench.harness import as_command

        module: Any = importlib.import_module(f"speedyfeed.bench.{name}")
        _run(module if hasattr(module, "Arguments") else as_command(module, name), f"bench {name}", rest[1:])


def _run(module: Any, command: str, rest: Sequence[str]) -> None:
    arguments = _parse(module, command, rest)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("speedyfeed").setLevel(logging.INFO)
    try:
        module.run(arguments)
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        # A full disk or a missing permission; the system's own words say it best.
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
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
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    usage = "usage: speedyfeed COMMAND ...   (speedyfeed COMMAND --help tells more)"
    return f"{usage}\n\n{rows}\n\nStart with: speedyfeed demo"


def _fail(message: str) -> NoReturn:
    print(f"speedyfeed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
