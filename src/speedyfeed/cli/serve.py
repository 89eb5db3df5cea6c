"""Serve a trained run over HTTP, with a web page to try it.

Articles can be added, replaced and removed while the service runs. These writes are stored in a folder beside the
run and survive a restart. They need the bearer token in the environment variable SPEEDYFEED_TOKEN; without a
token, they are allowed only if the service listens on a loopback address.

Example: speedyfeed serve runs/first --port 8000
"""

import logging
import os
import re
import shutil
import signal
import sys
import threading
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
SWITCH_SECONDS = 5e-4
"""Time after which a computing thread hands over to another one; a tenth of Python's default, for low latency."""

GRACE_SECONDS = 10
"""Time that requests in progress have to finish when the service is stopped; then they are answered with 503."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or a link to one; POST /v1/reload loads the run that the link points to now."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all addresses of this machine."""
    port: int = 8000
    """TCP port to listen on, 1 to 65535; 0 takes any free one and prints it."""
    data: Path | None = None
    """Folder that stores added and removed articles, by default RUN.feed; one process at a time can use it."""
    other: tuple[Path, ...] = field(default=())
    """Finished runs to serve beside RUN, below /runs/NAME; /compare?other=NAME shows two feeds side by side."""
    precision: str = "auto"
    """Precision for encoding new texts: fp32, bf16, or auto, which measures both and takes the faster one."""
    allow_origins: tuple[str, ...] = field(default=())
    """Origins whose pages may call the service from a browser, such as https://news.example; by default none."""

    RANGES: ClassVar[Ranges] = {"port": (0, MAX_PORT)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(arguments: Arguments) -> None:
    try:
        import torch
        import uvicorn

        from speedyfeed.runtime import require_precision
        from speedyfeed.saved_model import CONFIG
        from speedyfeed.serving.app import build_app
        from speedyfeed.serving.connections import allow_files, connection_class, open_listeners
        from speedyfeed.serving.middleware import TOKEN_VARIABLE, Limits, WriteAccess
        from speedyfeed.serving.service import Service
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}: pip install 'speedyfeed[serve]'") from error
    _require_runs(arguments, CONFIG)
    require_precision(arguments.precision, torch.device("cpu"))
    listeners = open_listeners(arguments.host, arguments.port)  # first, because it may fail and is quick
    port = listeners[0].getsockname()[1]
    folder = arguments.run.absolute()  # not resolved: the data folder stays beside the link
    data = arguments.data or _data_beside(folder)
    is_new = not data.exists()
    service = Service(folder, data, precision=arguments.precision)
    others = {
        other.absolute().name: Service(other.absolute(), _data_beside(other), precision=arguments.precision)
        for other in arguments.other
    }
    write_access = WriteAccess(os.environ.get(TOKEN_VARIABLE), arguments.host)
    sys.setswitchinterval(SWITCH_SECONDS)
    limits = Limits()
    allow_files(2 * limits.max_connections)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(service, write_access, limits=limits, allow_origins=arguments.allow_origins, others=others),
            http=connection_class(limits),
            ws="none",
            log_level="error",  # its warnings tell of clients' mistakes, one line for each
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    failures: list[Exception] = []

    def open_service() -> None:
        try:
            opened = service.open()
            log.info("%d articles, model %s, loaded in %.1f s", opened.news, opened.model, opened.seconds)
            for name, other in others.items():
                opened = other.open()
                log.info(
                    "%s: %d articles, model %s, loaded in %.1f s", name, opened.news, opened.model, opened.seconds
                )
            log.info("serving at http://%s:%d/   stop with Ctrl-C", _browser_host(arguments.host), port)
        except Exception as error:
            failures.append(error)
            server.should_exit = True

    if write_access.state == "off":
        log.info("read-only: %s is not set, and %s is not a loopback address", TOKEN_VARIABLE, arguments.host)
    opening = threading.Thread(target=open_service, daemon=True)
    opening.start()
    services = (service, *others.values())
    try:
        server.run(sockets=listeners)
    except KeyboardInterrupt:
        if any(one.is_loading for one in services):
            print("speedyfeed: stopped", file=sys.stderr, flush=True)
            os._exit(128 + signal.SIGINT)  # an orderly exit would wait until the run is loaded
        raise
    finally:
        for one in services:
            one.stop()
        opening.join()
        for one in services:
            one.close()
    if failures:
        if is_new:  # nothing can have been written before the run was loaded
            shutil.rmtree(data, ignore_errors=True)
        raise failures[0]


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
