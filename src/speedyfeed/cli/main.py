"""The `speedyfeed` command: parses the command line, runs a command, and reports a user's mistake in one line.

Each command is a module of `speedyfeed.cli`: its `Arguments` dataclass defines the options, its `run` does the
work, and its `defaults`, if any, returns defaults that depend on the arguments. Only the module of the command is
imported, so that help is fast.
"""

import contextlib
import dataclasses
import errno
import importlib
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from speedyfeed import __version__
from speedyfeed.cli.parser_messages import explain, name_option
from speedyfeed.errors import InputError, LostRanksError, UnwritableError

COMMANDS = {
    "demo": "run all steps on a small synthetic newsroom",
    "synth": "generate articles and click logs of a synthetic newsroom",
    "prepare": "refine and tokenize raw logs into a memory-mapped store",
    "train": "train a recommender on a store, or resume a run",
    "evaluate": "measure ranking and recall of a trained recommender",
    "sweep": "train and evaluate several recipes over several seeds, as one table",
    "profile": "measure where the time of a training step goes",
    "compare": "test whether one of two runs ranks better",
    "rank": "write or check a leaderboard file",
    "recommend": "recommend articles to one user",
    "serve": "serve recommendations over HTTP, with a web page",
    "check": "compare all files of a store or a run with their checksums",
    "export": "write embeddings, or the encoders as ONNX, for other programs",
    "completion": "print a script that completes commands and options in a shell",
    "doctor": "show versions, device, memory, precision and what is missing",
}

MIN_COLUMNS = 40
"""Narrowest help page; the parser needs minutes for one of a single column."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; a mistake that the user can fix exits with code 2 and one line on stderr."""
    try:
        _main((sys.argv[1:] if argv is None else argv) or ["--help"])
        sys.stdout.flush()
    except KeyboardInterrupt:  # while modules are imported
        _stopped()
    except BrokenPipeError:  # whoever read the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush would fail again
        sys.exit(141)


def _main(argv: Sequence[str]) -> None:
    command, *rest = argv
    if command in ("-h", "--help"):
        print(_help())
    elif command == "--version":
        print(f"speedyfeed {__version__}")
    elif command not in COMMANDS:
        fail(f"unknown command {command!r}; choose one of {', '.join(COMMANDS)}")
    else:
        run_command(importlib.import_module(f"speedyfeed.cli.{command}"), f"speedyfeed {command}", rest)


def run_command(module: Any, program: str, rest: Sequence[str]) -> None:
    """Parse the arguments of a command, run its module, and report a user's mistake in one line."""
    arguments = _parse(module, program, rest)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts, only rank 0 logs
        logging.getLogger("speedyfeed").setLevel(logging.INFO)
    try:
        module.run(arguments)
    except InputError as error:
        fail(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(_system_message(error, arguments))
    except LostRanksError as error:
        print(f"speedyfeed: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly exit may wait for lost ranks
    except KeyboardInterrupt as stop:
        _stopped(*stop.args)
    except Exception:
        _blame_damage(arguments)
        raise


def _blame_damage(arguments: Any) -> None:
    """Exit with one line if an unexpected error came from a damaged file of the command's stores and runs."""
    from speedyfeed.cli.check import verify

    for field in dataclasses.fields(arguments):
        path = getattr(arguments, field.name)
        if isinstance(path, Path) and path.is_dir():
            try:
                verify(path)
            except InputError as error:
                fail(str(error))
            except OSError as error:
                fail(_system_message(error))


def _system_message(error: OSError, arguments: object = None) -> str:
    """What the system says of a file: the disk is full, a permission is missing, and the like.

    A full disk has no name: it is that of what the command writes.
    """
    written = getattr(arguments, "out", None) or getattr(arguments, "run", None)
    if error.errno == errno.ENOSPC and not error.filename and isinstance(written, Path):
        return str(UnwritableError(written, error.strerror))
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename}: is a file, or below one; expected a folder; give another path"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _parse(module: Any, program: str, rest: Sequence[str]) -> Any:
    import tyro

    from speedyfeed.cli.help_texts import help_page, help_rules

    def parse(arguments: Sequence[str]) -> Any:
        return tyro.cli(
            module.Arguments,
            prog=program,
            args=arguments,
            default=module.defaults(arguments) if hasattr(module, "defaults") else None,
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=help_rules(),
        )

    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)
    page, output, help_text = _Page(), io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(page), contextlib.redirect_stderr(output):
            return parse(rest)
    except InputError as error:
        fail(name_option(str(error), program))
    except SystemExit as stop:
        if not stop.code:
            print(help_page(page.getvalue(), module.__doc__))
            raise
        with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
            parse(["--help"])
        fail(explain(output.getvalue(), rest, program, help_text.getvalue()))


class _Page(io.StringIO):
    """A help page on its way to the screen, so that the parser draws what that can show."""

    encoding = getattr(sys.__stdout__, "encoding", "ascii")

    def isatty(self) -> bool:
        return "NO_COLOR" not in os.environ and sys.__stdout__ is not None and sys.__stdout__.isatty()


def _help() -> str:
    usage = "usage: speedyfeed COMMAND ...   (speedyfeed COMMAND --help lists its options)"
    return f"{usage}\n\n{list_commands(COMMANDS)}\n\nStart with: speedyfeed demo"


def list_commands(names: Mapping[str, str]) -> str:
    """Format commands and their descriptions, one per line."""
    width = max(map(len, names))
    return "\n".join(f"  {name:{width}}  {text}" for name, text in names.items())


def _stopped(number: int = signal.SIGINT) -> NoReturn:
    """End a command that a signal has stopped as a shell expects it."""
    print("speedyfeed: stopped", file=sys.stderr)
    sys.exit(128 + number)


def fail(message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2, for a mistake that the user can fix."""
    if os.environ.get("LOCAL_RANK", "0") == "0":  # all processes of a host fail alike: print it once
        print(f"speedyfeed: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
