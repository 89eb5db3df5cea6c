"""`python -m benchmarks NAME`: measure one claim on this machine, or all of them."""

import logging
import sys
from collections.abc import Sequence

from benchmarks.harness import as_command
from benchmarks.names import BENCHMARKS, load_benchmark
from speedyfeed.cli.main import fail, list_commands, run_command

EXAMPLE = "Example: python -m benchmarks speedup --store store/ --json"


def main(argv: Sequence[str] | None = None) -> None:
    """Run one benchmark; exits 2 with one line on stderr when the user can fix what went wrong."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        names = list_commands({name: benchmark.about for name, benchmark in BENCHMARKS.items()})
        print(f"usage: python -m benchmarks NAME ...\n\n{names}\n\n{EXAMPLE}")
    elif name not in BENCHMARKS:
        fail(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    else:
        logging.getLogger("benchmarks").setLevel(logging.INFO)  # how far long ones are
        module = load_benchmark(name)
        command = module if name == "all" else as_command(module, name)
        run_command(command, f"python -m benchmarks {name}", rest)


if __name__ == "__main__":
    main()
