"""The `speedyfeed` command: finds the asked command, runs it, and turns a user's mistake into one line.

Each command is a module of `speedyfeed.cli`: its `Arguments` dataclass is its command line, its `run` does
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
from speedyfeed.errors import InputError, LostRanksError

COMMANDS = {
    "synth": "make a synthetic newsroom: articles and click logs to try everything on",
    "prepare": "turn raw logs into a refined, tokenized, memory-mapped store",
    "train": "train a recommender on a store; resumable",
    "evaluate": "measure how well a trained recommender ranks and recalls",
    "rank": "write, or check, a leaderboard file",
    "sweep": "train and evaluate several recipes over several seeds, as one table",
    "profile": "measure where the time of a training step goes",
    "compare": "tell which of two runs ranks better, and whether the data can tell",
    "recommend": "the best news for one user",
    "serve": "recommendations over HTTP, and a page to try them on",
    "demo": "all of it in one go, on a small synthetic newsroom",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits 2 with one line on stderr when the user can fix what went wrong."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(_help())
    elif command == "--version":
        print(f"speedyfeed {__version__}")
    elif command not in COMMANDS:
        fail(f"{command!r} is no command; there are {', '.join(COMMANDS)}")
    else:
        run_command(importlib.import_module(f"speedyfeed.cli.{command}"), f"speedyfeed {command}", rest)


def run_command(module: Any, program: str, rest: Sequence[str]) -> None:
    """Parse the words that follow a program's name, run its module, and turn a user's mistake into one line."""
    arguments = _parse(module, program, rest)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if os.environ.get("RANK", "0") == "0":  # of those that torchrun starts, the first speaks
        logging.getLogger("speedyfeed").setLevel(logging.INFO)
    try:
        module.run(arguments)
    except InputError as error:
        fail(str(error))
    except OSError as error:
        # A full disk or a missing permission; the system's own words say it best.
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    except LostRanksError as error:
        print(f"speedyfeed: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly exit may wait for those that are gone
    except KeyboardInterrupt:
        print("speedyfeed: stopped", file=sys.stderr)
        sys.exit(130)


def _parse(module: Any, program: str, rest: Sequence[str]) -> Any:
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                module.Arguments,
                prog=program,
                description=module.__doc__,
                args=rest,
                default=module.defaults(rest) if hasattr(module, "defaults") else None,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except InputError as error:
        fail(str(error))
    except SystemExit as stop:
        if not stop.code:
            raise
        # The parser draws a box over several lines; the words in it make our one line.
        words = re.sub(r"[─│╭╮╰╯]|\x1b\[[0-9;]*m", " ", said.getvalue())
        fail(words.replace("For full helptext, run", "; see"))


def _help() -> str:
    usage = "usage: speedyfeed COMMAND ...   (speedyfeed COMMAND --help tells more)"
    return f"{usage}\n\n{list_commands(COMMANDS)}\n\nStart with: speedyfeed demo"


def list_commands(names: Mapping[str, str]) -> str:
    """Names and what each does, a line each."""
    width = max(map(len, names))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in names.items())


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2: a mistake that the user can fix."""
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of a host fail alike: once will do
        print(f"speedyfeed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
