"""Schemathesis against a real server: requests made from its OpenAPI document, right ones and wrong ones.

Every answer must have a documented status and form, no request may end in an internal error, wrong requests must
be refused and right ones accepted. Schemathesis is no dependency: pip install schemathesis.

Example: python -m benchmarks schema --examples 50 --json
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.robustness.sandbox import free_port, make_world
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges
from speedyfeed.serving.middleware import TOKEN_VARIABLE

TOKEN = "token-of-this-benchmark"
INTENDED = {"OPTIONS /v1/news/{news_id}/similar"}
"""Operations whose other methods are those of an article: an id may end in /similar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaConfig:
    """How many requests, and for how long."""

    examples: int = 50
    """Random requests for each operation, beside those at the limits of every field."""
    seconds: int = 1200
    """Time after which no further request is made."""
    seed: int = 0
    """Seed of the requests."""
    run: Path | None = None
    """Finished run to serve; by default a small one is trained."""

    RANGES: ClassVar[Ranges] = {"examples": (1, MANY), "seconds": (1, MANY), "seed": (0, MAX_SEED)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaFigures:
    operations: int
    """Operations of the service that were called."""
    requests: int
    """Requests that were made and checked."""
    is_complete: bool
    """Whether all requests were made in the time."""
    failures: list[str] = field(default_factory=list)
    """What was found, once each."""


def measure(config: SchemaConfig) -> SchemaFigures:
    """Serve a run on a free port of this machine, and let Schemathesis call it."""
    if importlib.util.find_spec("schemathesis") is None:
        raise InputError("schemathesis is missing: pip install schemathesis")
    with tempfile.TemporaryDirectory(prefix="schema-") as scratch:
        run = config.run or make_world(Path(scratch) / "world").run
        with serving(run, Path(scratch) / "feed") as address:
            report = call_all(address, config, Path(scratch))
    return SchemaFigures(
        operations=report["operations"]["tested"],
        requests=report["test_cases"]["generated"],
        is_complete=report["complete"] and report["stop_reason"] == "completed",
        failures=[
            f"{one['title']}: {', '.join(operations)}"
            for one in report["failures"]
            if (operations := sorted(set(one["operations"]) - INTENDED))
        ]
        + [f"{one['title']}: {one['count']}" for one in report["errors"]],
    )


@contextmanager
def serving(run: Path, data: Path) -> Iterator[str]:
    """Address of a `speedyfeed serve` that runs as long as the block."""
    port = free_port()
    arguments = ("serve", run, "--port", port, "--data", data, "--precision", "fp32")
    command = [sys.executable, "-m", "speedyfeed", *map(str, arguments)]
    with subprocess.Popen(command, env={**os.environ, TOKEN_VARIABLE: TOKEN}) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_ready(address, server)
            yield address
        finally:
            server.terminate()


def wait_until_ready(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the run is loaded."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/readyz", timeout=10).close()
            return
        except OSError:
            time.sleep(0.1)
    raise InputError("the service could not be started; see above")


def call_all(address: str, config: SchemaConfig, scratch: Path) -> Any:
    """Call all operations; returns the report of Schemathesis, whose messages go to stderr."""
    report = scratch / "report.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--no-color"]
    command += ["--max-examples", str(config.examples), "--max-time", str(config.seconds)]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--request-timeout", "60"]
    command += ["--seed", str(config.seed), "--continue-on-failure", "--report-json-path", str(report)]
    subprocess.run(command, cwd=scratch, stdout=sys.stderr, check=False)
    if not report.exists():
        raise InputError("schemathesis did not finish; see above")
    return json.loads(report.read_text("utf-8"))


def tables(figures: SchemaFigures) -> str:
    """Counts, then every failure."""
    rows = [[str(figures.operations), str(figures.requests), str(len(figures.failures))]]
    text = table(["operations", "requests", "failures"], rows)
    notes = [] if figures.is_complete else ["stopped by --seconds before all requests were made"]
    return "\n".join([text, *notes, *figures.failures])
