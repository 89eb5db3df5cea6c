"""Ctrl-C and SIGTERM as a request to stop, honoured between two steps or at the next progress report."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from speedyfeed.progress import Report
from speedyfeed.training.distributed.process_group import ProcessGroup

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """Work was interrupted because a signal asked to stop."""


class Stop:
    """Context in which the first signal sets `is_asked`; a second one has its usual effect."""

    def __init__(self) -> None:
        self.is_asked = False
        self.signal: int | None = None
        """Number of the signal that was heard."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be caught
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def heard_by(self, report: Report, group: ProcessGroup) -> Report:
        """Progress callback that raises `Stopped` after a signal; with several ranks it never does."""

        def interruptible(*args: Any) -> None:
            if self.is_asked:
                raise Stopped
            report(*args)

        return interruptible if group.world == 1 else report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
