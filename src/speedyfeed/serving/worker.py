"""A worker process of a service: accepts connections beside the others, and writes the journal or follows it.

    every `FOLLOW_SECONDS`: show what was written since; if no process has the lock of the writer, take it

The lock is released when a process ends, however it ends, so another worker writes from then on. It has the runs
loaded, catches up from the journal and accepts the writes that wait.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from speedyfeed.serving.board import Board
from speedyfeed.serving.service import Service

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.05
"""Time between two looks at the journal."""
WRITER_LOCK = "writer.lock"
"""File in the data folder that the worker which writes has locked; it holds its process id."""
PAUSE_SECONDS = 0.1
"""Time without accepting connections after an error of the system, such as too many open files."""


class Worker:
    """The services of one worker process, one for each run, and its place among the other workers."""

    def __init__(self, number: int, services: Sequence[Service], board: Board, lock: Path) -> None:
        """Take the lock of the writer if it is free; the services are opened next."""
        self.number = number
        self._services = services
        self._board = board
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        self._try_to_write()

    @property
    def is_writer(self) -> bool:
        """Whether this process writes."""
        return all(service.is_writer for service in self._services)

    def show(self) -> None:
        """Tell the others what this worker has in service."""
        self._board.show(self.number, [service.load_number for service in self._services])

    def follow(self, becomes_writer: Callable[[], None], each_second: Callable[[], None]) -> None:
        """Follow the journal, until this process writes it itself; then only tell the others of loads."""
        try:
            if self.is_writer:
                becomes_writer()
            for turn in count():
                time.sleep(FOLLOW_SECONDS)
                if turn % round(1 / FOLLOW_SECONDS) == 0:
                    each_second()
                if not self.is_writer:
                    for service in self._services:
                        service.follow()
                    if self._try_to_write():
                        log.info("worker %d writes from now on", self.number)
                        becomes_writer()
                self.show()
                self._board.count_look(self.number)
        except BaseException:
            log.exception("worker %d cannot follow the journal", self.number)
            os._exit(1)  # rather than answer with what is old; it is started again

    def _try_to_write(self) -> bool:
        """Take the lock of the writer, unless another process has it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode("ascii"), 0)
        for service in self._services:
            service.take_over()
        return True


class WorkerServer(uvicorn.Server):
    """A server that accepts from sockets which other processes accept from too."""

    def __init__(self, config: uvicorn.Config, listeners: Sequence[socket.socket], writes: socket.socket) -> None:
        """`writes` is what the worker which writes accepts from, beside the `listeners`."""
        super().__init__(config)
        self._listeners = list(listeners)
        self._writes = writes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_writer = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept."""
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        for listener in self._listeners + [self._writes] * self._is_writer:
            self._accept_from(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish the requests in progress."""
        assert self._loop is not None
        for listener in (*self._listeners, self._writes):
            self._loop.remove_reader(listener)
        await super().shutdown(sockets=[])

    def accept_writes(self) -> None:
        """Accept the writes that other workers forward, from now on; any thread may call this."""
        self._is_writer = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._accept_from, self._writes)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop when the supervisor says so; Ctrl-C is for that."""
        if sig == signal.SIGTERM:
            super().handle_exit(sig, frame)

    def _accept_from(self, listener: socket.socket) -> None:
        assert self._loop is not None
        if not self.should_exit:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection: when many come at once, those that are idle get about as many each."""
        assert self._loop is not None
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another worker was faster
            return
        except OSError as error:
            log.warning("worker cannot accept connections: %s", error)
            self._loop.remove_reader(listener)
            self._loop.call_later(PAUSE_SECONDS, self._accept_from, listener)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        made: Any = self.config.http_protocol_class  # as the parent makes it in `startup`
        state = self.lifespan.state
        assert self._loop is not None
        await self._loop.connect_accepted_socket(
            lambda: made(config=self.config, server_state=self.server_state, app_state=state), connection
        )
