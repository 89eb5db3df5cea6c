"""Show what this machine offers: versions, device, threads, memory, the fastest precision, and what is missing.

Example: speedyfeed doctor --json
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from speedyfeed import __version__
from speedyfeed.errors import InputError
from speedyfeed.ranges import Ranges, check_ranges
from speedyfeed.tokenizers import find_source, parse_encoder

if TYPE_CHECKING:
    import torch

    from speedyfeed.runtime import Precision

PACKAGES = ("torch", "transformers", "numpy", "pyarrow", "duckdb", "ibis-framework", "usearch", "tyro")
EXTRAS = {
    "plots": ("matplotlib",),
    "serve": ("fastapi", "httptools", "prometheus_client", "uvicorn"),
    "spark": ("pyspark", "pandas"),
}
"""Modules that each extra of the package needs."""
GIGABYTE = 1 << 30
MAX_SECONDS = 3600
ROWS, WIDTH = 512, 384  # of the trial step: an encoder layer of the default size on a small batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    seconds: float = 1.0
    """Seconds to measure the speed of fp32 and bf16."""
    json: bool = False
    """Print the findings as one JSON object."""

    RANGES: ClassVar[Ranges] = {"seconds": (0, MAX_SECONDS)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Facts about the machine and the installed packages."""

    versions: dict[str, str | None]
    """Version of Python, of the package and of what it depends on; None where one is not installed."""
    device: str
    """Device that `--device auto` chooses."""
    cores: int
    """Cores that this process may use."""
    threads: int
    """Threads that torch uses for one operation."""
    memory_gigabytes: float | None
    """Memory of the machine, in units of 2^30 bytes; None where the system does not tell."""
    available_gigabytes: float | None
    """Part of the memory that is available now."""
    precision: str
    """Precision that `--precision auto` would choose for a small layer."""
    precision_reason: str
    """Measured times of a step in fp32 and in bf16."""
    missing: list[str] = field(default_factory=list)
    """What is not installed or not found, each with its remedy."""


def run(arguments: Arguments) -> None:
    findings = examine(arguments.seconds)
    print(json.dumps(dataclasses.asdict(findings)) if arguments.json else describe(findings))


def examine(seconds: float) -> Findings:
    """Collect the facts about this machine; measures for `seconds`."""
    import torch

    from speedyfeed.runtime import choose_device

    device = choose_device()
    precision = _measure_precision(device, seconds)
    versions: dict[str, str | None] = {"python": platform.python_version(), "speedyfeed": __version__}
    return Findings(
        versions=versions | {name: _version(name) for name in PACKAGES},
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gigabytes=_memory("SC_PHYS_PAGES"),
        available_gigabytes=_memory("SC_AVPHYS_PAGES"),
        precision=precision.name,
        precision_reason=precision.reason,
        missing=find_missing(),
    )


def describe(findings: Findings) -> str:
    """Findings as lines of text."""
    total, available = (
        "unknown" if size is None else f"{size:.1f} GB"
        for size in (findings.memory_gigabytes, findings.available_gigabytes)
    )
    versions = [f"{name} {version or 'not installed'}" for name, version in findings.versions.items()]
    lines = {
        "versions": ", ".join(versions),
        "device": findings.device,
        "threads": f"{findings.threads} of torch, {findings.cores} cores",
        "memory": f"{total}, {available} available",
        "precision": f"{findings.precision}; {findings.precision_reason}",
        "missing": "\n          ".join(findings.missing) or "nothing",
    }
    return "\n".join(f"{name:10}{text}" for name, text in lines.items())


def find_missing() -> list[str]:
    """List what is not installed or not found, each with what needs it and the remedy."""
    import torch

    missing = []
    for extra, modules in EXTRAS.items():
        if absent := [name for name in modules if importlib.util.find_spec(name) is None]:
            missing.append(f"{', '.join(absent)}: pip install 'speedyfeed[{extra}]'")
    if shutil.which("java") is None:
        missing.append("java: needed by --engine spark only; install a Java runtime")
    try:
        find_source(parse_encoder("minilm"))
    except InputError as error:
        missing.append(str(error))
    if not torch.cuda.is_available():
        missing.append("CUDA: training runs on the CPU; install torch for your GPU if there is one")
    return missing


def _measure_precision(device: "torch.device", seconds: float) -> "Precision":
    import torch

    from speedyfeed.runtime import choose_precision

    layer = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    ).to(device)
    rows = torch.ones(ROWS, WIDTH, device=device)

    def step() -> None:
        layer(rows).float().sum().backward()

    return choose_precision("auto", device, step, seconds=seconds)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory(name: str) -> float | None:
    """Memory in gigabytes by a name of `os.sysconf`; None where the system does not know it."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") / GIGABYTE
    except (AttributeError, ValueError, OSError):
        return None
