"""Errors that the command line reports in one line, without a traceback."""

import shlex
from collections.abc import Sequence


class InputError(ValueError):
    """Invalid input that the user can fix: the message says what was found, what was expected and what to do."""


class UnwritableError(InputError):
    """A file or folder that cannot be written: the disk is full, or the user may not write there."""

    def __init__(self, path: object, reason: object) -> None:
        self.problem = f"{path}: cannot be written ({reason})"
        super().__init__(f"{self.problem}; make room or choose another place, and run the command again")


class LostRanksError(RuntimeError):
    """Another process of a distributed run died or stopped answering, so this one cannot continue either."""


def list_words(words: Sequence[str], conjunction: str) -> str:
    """Words as a sentence lists them: `a`, `a or b`, `a, b or c`."""
    return f" {conjunction} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def command(*arguments: object) -> str:
    """A `speedyfeed` command that can be copied into a shell: names with spaces are quoted."""
    return shlex.join(["speedyfeed", *map(str, arguments)])
