"""Print a script that completes commands, options and values in a shell.

Example: speedyfeed completion bash > speedyfeed.bash && . ./speedyfeed.bash
"""

import contextlib
import importlib
import io
import re
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    shell: Annotated[Positional[Literal["bash", "zsh"]], arg(metavar="SHELL")]
    """Shell to complete in: bash or zsh."""


def run(arguments: Arguments) -> None:
    import tyro

    from speedyfeed.cli.main import COMMANDS

    kinds: list[Any] = [
        Annotated[
            importlib.import_module(f"speedyfeed.cli.{name}").Arguments,
            tyro.conf.subcommand(name, description=description),
        ]
        for name, description in COMMANDS.items()
    ]
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(
            reduce(or_, kinds),
            prog="speedyfeed",
            args=["--tyro-print-completion", arguments.shell],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    # a description of two lines would be taken for two completions
    print(
        re.sub(r"^COMPLETION_SPEC = .*", lambda found: found[0].replace(r"\n", " "), script.getvalue(), flags=re.M)
    )
