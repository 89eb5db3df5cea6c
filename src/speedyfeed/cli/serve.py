"""Serve a trained run: recommendations over HTTP, and a page to try them on.

News can be added, changed and removed while it runs; they are kept in a folder beside the run and are there after
a restart. Writes need the bearer token in the environment variable SPEEDYFEED_TOKEN; without one, they are allowed
only on a loopback address.

Example: speedyfeed serve runs/first --port 8000
"""

import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError

log = logging.getLogger(__name__)

SWITCH_SECONDS = 5e-4
"""A thread that computes lets others answer after so long, a tenth of what Python has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run; a link to one can be turned to the next and loaded with POST /v1/reload."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one of this machine."""
    port: int = 8000
    data: Path | None = None
    """Folder for the news added and removed; RUN.feed unless given. One process at a time can have it."""
    precision: str = "auto"
    """How new texts are encoded: auto measures fp32 and bf16 at the start and takes the faster; or one of them."""
    allow_origins: tuple[str, ...] = field(default=())
    """Sites whose pages may call the service from a browser; none unless given."""


def run(arguments: Arguments) -> None:
    try:
        import uvicorn

        from speedyfeed.serving.app import build_app
        from speedyfeed.serving.middleware import TOKEN_VARIABLE, WriteAccess
        from speedyfeed.serving.service import Service
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}: pip install 'speedyfeed[serve]'") from error
    if not 0 <= arguments.port < 1 << 16:
        raise InputError(f"port {arguments.port}: expected 0 to 65535")
    if not arguments.run.is_dir():
        raise InputError(f"{arguments.run}: no such folder; make one with: speedyfeed train STORE {arguments.run}")
    folder = arguments.run.absolute()  # a link stays one, so that the data do not move with it
    data = arguments.data or folder.with_name(f"{folder.name}.feed")
    service = Service(folder, data, precision=arguments.precision)
    door = WriteAccess(os.environ.get(TOKEN_VARIABLE), arguments.host)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(service, door, allow_origins=arguments.allow_origins),
            host=arguments.host,
            port=arguments.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=10,
            limit_concurrency=1000,
        )
    )
    failures: list[Exception] = []

    def open_service() -> None:
        try:
            opened = service.open()
            log.info("%d news, model %s, in %.1f s", opened.news, opened.model, opened.seconds)
            log.info("the page: http://%s:%d/   stop with Ctrl-C", _shown(arguments.host), arguments.port)
        except Exception as error:
            failures.append(error)
            server.should_exit = True

    if door.state == "off":
        log.info("read-only: no %s in the environment, and %s is no loopback", TOKEN_VARIABLE, arguments.host)
    opening = threading.Thread(target=open_service, daemon=True)
    opening.start()
    try:
        server.run()
    finally:
        opening.join()
        service.close()
    if failures:
        raise failures[0]


def _shown(host: str) -> str:
    """The address to type into a browser."""
    return "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
