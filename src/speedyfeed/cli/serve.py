"""Serve a trained run over HTTP, with a web page to try it.

Articles can be added, replaced and removed while the service runs. These writes are stored in a folder beside the
run and survive a restart. They need the bearer token in the environment variable SPEEDYFEED_TOKEN; without a
token, they are allowed only if the service listens on a loopback address.

Example: speedyfeed serve runs/first --port 8000 --workers 2
"""

import logging
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError, command
from speedyfeed.ranges import Ranges, check_ranges

log = logging.getLogger(__name__)

NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Names of runs that can be part of an address."""
MAX_PORT = 65535
MAX_WORKERS = 256
SWITCH_SECONDS = 5e-4
"""Time after which a computing thread hands over to another one; a tenth of Python's default, for low latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or a link to one; POST /v1/reload loads the run that the link points to now."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all addresses of this machine."""
    port: int = 8000
    """TCP port to listen on, 1 to 65535; 0 takes any free one and prints it."""
    workers: int = 1
    """Processes that answer at this port, for more requests per second; one of them writes, the others follow it
    and take its place if it ends. One that ends is started again."""
    data: Path | None = None
    """Folder that stores added and removed articles, by default RUN.feed; one service at a time can use it."""
    other: tuple[Path, ...] = field(default=())
    """Finished runs to serve beside RUN, below /runs/NAME; /compare?other=NAME shows two feeds side by side."""
    precision: str = "auto"
    """Precision for encoding new texts: fp32, bf16, or auto, which measures both and takes the faster one."""
    allow_origins: tuple[str, ...] = field(default=())
    """Origins whose pages may call the service from a browser, such as https://news.example; by default none."""

    RANGES: ClassVar[Ranges] = {"port": (0, MAX_PORT), "workers": (1, MAX_WORKERS)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(arguments: Arguments) -> None:
    try:
        import torch

        from speedyfeed.runtime import require_precision
        from speedyfeed.saved_model import CONFIG
        from speedyfeed.serving.listeners import allow_files, open_listeners
        from speedyfeed.serving.middleware import TOKEN_VARIABLE, WriteAccess
        from speedyfeed.serving.processes import serve_alone, serve_with_workers
        from speedyfeed.serving.site import Site
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}: pip install 'speedyfeed[serve]'") from error
    if arguments.workers > 1 and not hasattr(os, "fork"):
        raise InputError(f"workers {arguments.workers}: expected 1, as this system cannot fork processes")
    _require_runs(arguments, CONFIG)
    require_precision(arguments.precision, torch.device("cpu"))
    listeners = open_listeners(arguments.host, arguments.port)  # first, because it may fail and is quick
    folder = arguments.run.absolute()  # not resolved: the data folder stays beside the link
    others = [other.absolute() for other in arguments.other]
    site = Site(
        address=f"http://{_browser_host(arguments.host)}:{listeners[0].getsockname()[1]}/",
        folders={folder: arguments.data or _data_beside(folder)} | {one: _data_beside(one) for one in others},
        write_access=WriteAccess(os.environ.get(TOKEN_VARIABLE), arguments.host),
        precision=arguments.precision,
        allow_origins=arguments.allow_origins,
    )
    if site.write_access.state == "off":
        log.info("read-only: %s is not set, and %s is not a loopback address", TOKEN_VARIABLE, arguments.host)
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_files(2 * site.limits.max_connections)
    if arguments.workers > 1:
        serve_with_workers(site, arguments.workers, listeners)
    else:
        serve_alone(site, listeners)


def _require_runs(arguments: Arguments, settings: str) -> None:
    """Refuse runs that cannot be served, or not side by side; `settings` is a file that every recommender has."""
    for run in (arguments.run, *arguments.other):
        if not run.is_dir():
            raise InputError(f"{run}: no such folder; train a run with: {command('train', 'STORE', run)}")
        if not (run / "model" / settings).exists() and not (run / settings).exists():
            raise InputError(f"{run}: holds no recommender ({settings}); give a finished run")
    names = [other.absolute().name for other in arguments.other]
    for name, other in zip(names, arguments.other, strict=True):
        if names.count(name) > 1 or not NAME.fullmatch(name):
            raise InputError(
                f"--other {name}: found a name that cannot be part of an address, or twice; expected folders with "
                "different names of letters, digits, - and _; rename it, or link to it"
            )
        if other.absolute() == arguments.run.absolute():
            raise InputError(f"--other {other}: is RUN itself, expected another run; leave it out, or link to it")


def _data_beside(run: Path) -> Path:
    """Folder of what is added to a run, beside the run or the link to it."""
    folder = run.absolute()
    return folder.with_name(f"{folder.name}.feed")


def _browser_host(host: str) -> str:
    """Host to type into a browser for a service that listens on `host`."""
    return "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
