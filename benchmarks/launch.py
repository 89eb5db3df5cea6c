"""Shared parts of benchmarks with several processes: a store to train on, and torchrun."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.synthetic import SynthConfig, synthesize

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, from which `benchmarks` can be imported."""


@contextmanager
def some_store(path: Path | None) -> Iterator[Path]:
    """Yield the store at `path`, or by default that of a small newsroom in a temporary folder."""
    if path is not None:
        yield open_store(path).path
        return
    with tempfile.TemporaryDirectory() as scratch:
        synthesize(Path(scratch) / "logs", SynthConfig())
        yield prepare(Path(scratch) / "logs", Path(scratch) / "store", PrepareConfig()).store.path


def start_ranks(world: int, module: str, *arguments: object, restarts: int = 0) -> subprocess.Popen[str]:
    """Run a module under torchrun on `world` ranks with one thread each; it is restarted if a rank fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += ["--max-restarts", str(restarts), "-m", module, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def printed_by(launched: subprocess.Popen[str]) -> str:
    """Wait for the end of all ranks and return their standard output."""
    printed, _ = launched.communicate()
    if launched.returncode:
        raise InputError(f"torchrun ended with code {launched.returncode}; see the messages of the ranks above")
    return printed
