"""The parent of the worker processes of a service: it starts them, starts again those that end, and stops all.

    supervisor   lock of the journal, listening sockets; loads nothing
      worker 0   accepts, answers; one of them writes the journal
      worker 1   accepts, answers, follows the journal
      ...

A worker is forked, so it inherits the sockets: connections that wait to be accepted survive it. The first worker
starts alone, as it may build graphs and find mistakes; the others start once it is ready.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Time between two looks at the workers."""
KILL_SECONDS = 25.0
"""Time that workers have to stop before they are killed: requests in progress, and what they are writing."""
MAX_WAIT = 30.0
"""Longest time before a worker that ends again and again is started again; the first time is none."""


@dataclass(kw_only=True, slots=True)
class _Worker:
    """One place for a worker, which one process after the other takes."""

    number: int
    pid: int = 0
    """Process in this place; 0 for none."""
    wait: float = 0.0
    """Seconds to wait before the next one is started."""
    due: float = 0.0
    """Time of the monotonic clock at which it is started."""


class Supervisor:
    """Forks workers and keeps their number; `run` returns in the workers only."""

    def __init__(
        self,
        num_workers: int,
        is_ready: Callable[[int], bool],
        *,
        served: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        """`is_ready` tells whether a worker has loaded.

        `served` is called when the first one has, and `ended` when one has ended.
        """
        self.pid = os.getpid()
        """Process of the supervisor."""
        self.has_served = False
        """Whether any worker has ever loaded."""
        self._workers = [_Worker(number=number) for number in range(num_workers)]
        self._is_ready = is_ready
        self._served = served
        self._ended = ended
        self._signals: list[int] = []
        self._ours, self._theirs = os.pipe()  # nobody writes: it ends with this process

    @property
    def parent_pipe(self) -> int:
        """Descriptor that workers can read from, which blocks as long as the supervisor lives."""
        return self._ours

    def run(self) -> int | None:
        """Number of the worker that this process has become; in the supervisor, None once all were stopped."""
        handlers = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        while not self._signals:
            for worker in self._workers:
                if worker.pid and self._is_ready(worker.number):
                    worker.wait = 0.0
                    if not self.has_served:
                        self.has_served = True
                        self._served()
                is_due = time.monotonic() >= worker.due and (self.has_served or worker.number == 0)
                if not worker.pid and is_due and self._fork(worker):
                    return worker.number
            self._collect()
            time.sleep(POLL_SECONDS)
        self._stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if self._signals[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return None

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _fork(self, worker: _Worker) -> bool:
        """Start a worker; whether this process is it."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            worker.pid = pid
            return False
        os.close(self._theirs)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor stops them
        return True

    def _collect(self) -> None:
        """Take note of workers that have ended; without any that has ever loaded, end like the first."""
        for worker in self._workers:
            if (code := self._exit_code(worker)) is None:
                continue
            self._ended(worker.number)
            if not self.has_served and code > 0:
                sys.exit(code)
            worker.due = time.monotonic() + worker.wait
            worker.wait = min(MAX_WAIT, 2 * worker.wait or 1.0)
            log.warning("worker %d %s; it is started again", worker.number, _describe(code))

    def _exit_code(self, worker: _Worker) -> int | None:
        if not worker.pid:
            return None
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            return None
        worker.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _stop(self) -> None:
        """Ask all workers to stop; kill them if they take too long, or Ctrl-C is pressed again."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + KILL_SECONDS
        while any(worker.pid for worker in self._workers):
            if time.monotonic() > deadline or self._signals.count(signal.SIGINT) > 1:
                self._signal_all(signal.SIGKILL)
            for worker in self._workers:
                self._exit_code(worker)
            time.sleep(POLL_SECONDS)

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)


def wait_for_end(parent_pipe: int) -> None:
    """Wait until the supervisor has ended, in whatever way."""
    os.read(parent_pipe, 1)


def _describe(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
