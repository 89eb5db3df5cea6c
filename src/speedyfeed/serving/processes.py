"""Runs a service until it is stopped: in this process alone, or in worker processes that answer at one port."""

import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import uvicorn

from speedyfeed.errors import InputError
from speedyfeed.serving.board import Board
from speedyfeed.serving.dependencies import ServingContext, WorkerPlace
from speedyfeed.serving.journal import Journal
from speedyfeed.serving.listeners import BACKLOG
from speedyfeed.serving.service import log_load
from speedyfeed.serving.shared_metrics import SharedMetrics
from speedyfeed.serving.site import Site
from speedyfeed.serving.supervisor import Supervisor, wait_for_end
from speedyfeed.serving.worker import WRITER_LOCK, Worker, WorkerServer

log = logging.getLogger(__name__)

WRITES = "writes.sock"
LOADED_LATE = ("speedyfeed.models.plm", "uvloop", "uvicorn.lifespan.on")
"""Modules that are otherwise imported when a run is loaded or a server starts: once for all workers takes less."""


def serve_alone(site: Site, listeners: list[socket.socket]) -> None:
    """Serve in this process; while the runs are being loaded, requests are answered with 503."""
    is_new = not site.data.exists()
    services = site.open_journals(shared=False)
    server = uvicorn.Server(site.configure(services))
    failures: list[Exception] = []

    def open_services() -> None:
        try:
            for service, run in zip(services, site.folders, strict=True):
                log_load(service.open(), "" if service is services[0] else f"{run.name}: ")
            log.info("serving at %s   stop with Ctrl-C", site.address)
        except Exception as error:
            failures.append(error)
            server.should_exit = True

    opening = threading.Thread(target=open_services, daemon=True)
    opening.start()
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
            shutil.rmtree(site.data, ignore_errors=True)
        raise failures[0]


def serve_with_workers(site: Site, num_workers: int, listeners: list[socket.socket]) -> None:
    """Serve in worker processes; this one starts them, and starts again those that end."""
    is_new = not site.data.exists()
    claims = [Journal(data).hand_over() for data in site.folders.values()]
    for name in LOADED_LATE:
        importlib.import_module(name)
    gc.freeze()  # else the first collection of each worker would copy all that they share
    folder = Path(tempfile.mkdtemp(prefix="speedyfeed-"))  # nobody else may enter it
    board = Board(num_workers, len(site.folders))
    nothing = [0] * len(site.folders)

    def announce() -> None:
        log.info("serving at %s with %d workers   stop with Ctrl-C", site.address, num_workers)

    supervisor = Supervisor(
        num_workers, board.is_ready, served=announce, ended=lambda number: board.show(number, nothing)
    )
    try:
        writes = _listen_for_writes(folder)
        number = supervisor.run()
    except BaseException:
        if is_new and not supervisor.has_served:  # nothing can have been written
            shutil.rmtree(site.data, ignore_errors=True)
        raise
    finally:
        if os.getpid() == supervisor.pid:
            shutil.rmtree(folder, ignore_errors=True)
            for claim in claims:
                claim.release()
    if number is None:
        signal.raise_signal(signal.SIGTERM)  # ends this process as if it had caught nothing
        return
    with writes:
        _be_worker(site, number, board, listeners, writes, supervisor.parent_pipe)


def _be_worker(
    site: Site, number: int, board: Board, listeners: list[socket.socket], writes: socket.socket, parent: int
) -> None:
    """Load the runs, then answer, and write or follow, until the supervisor says stop or ends."""
    folder = Path(writes.getsockname()).parent

    def end() -> None:
        wait_for_end(parent)
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    services = site.open_journals(shared=True)
    metrics = [SharedMetrics(folder, str(run), number) for run in range(len(services))]
    places = [
        WorkerPlace(run=run, board=board, metrics=metrics[run], writes=None if run else folder / WRITES)
        for run in range(len(services))
    ]
    worker = Worker(number, services, board, site.data / WRITER_LOCK)
    for service, run in zip(services, site.folders, strict=True):
        log_load(service.open(), f"worker {number}, {run.name}: ")
    config: Any = site.configure(services, number, places)
    server = WorkerServer(config, listeners, writes)
    worker.show()  # from now on connections are accepted
    contexts: list[ServingContext] = [app.state.context for app in (config.app, *config.app.state.beside)]

    def save_metrics() -> None:
        for context in contexts:
            context.save_metrics()

    threading.Thread(target=worker.follow, args=(server.accept_writes, save_metrics), daemon=True).start()
    server.run()


def _listen_for_writes(folder: Path) -> socket.socket:
    """A socket in a folder of this user, on which whichever worker writes accepts what others forward."""
    path = folder / WRITES
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be listened on ({error}); set TMPDIR to a folder with a short name"
        ) from error
    listener.listen(BACKLOG)
    return listener
