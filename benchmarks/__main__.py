"""`python -m benchmarks NAME`: measure one claim on this machine, or all of them."""

import importlib
import sys
from collections.abc import Sequence

from benchmarks.harness import as_command
from benchmarks.names import BENCHES
from speedyfeed.cli.main import fail, list_commands, run_command

EXAMPLE = "Example: python -m benchmarks speedup --store store/ --json"


def main(argv: Sequence[str] | None = None) -> None:
    """Run one benchmark; exits 2 with one line on stderr when the user can fix what went wrong."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks NAME ...\n\n{list_commands(BENCHES)}\n\n{EXAMPLE}")
    elif name not in BENCHES:
        fail(f"no benchmark {name!r}; there are {', '.join(BENCHES)}")
    elif name == "all":
        run_command(importlib.import_module("benchmarks.report"), "python -m benchmarks all", rest)
    else:
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        run_command(as_command(module, name), f"python -m benchmarks {name}", rest)


if __name__ == "__main__":
    main()
