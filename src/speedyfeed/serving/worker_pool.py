"""A thread pool with a bounded queue: what computes must not block the event loop, nor queue without end."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import HTTPException

T = TypeVar("T")


class WorkerPool:
    """Threads for one kind of request; answers 503 while too many of them are running or queued."""

    def __init__(self, name: str, *, num_threads: int, max_pending: int) -> None:
        """`name` is singular, as in "Too many recommendations are waiting."."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._name = name
        self._max_pending = max_pending
        self._num_pending = 0

    @property
    def is_idle(self) -> bool:
        """Whether no work is running or queued."""
        return self._num_pending == 0

    async def run(self, work: Callable[[], T]) -> T:
        """Result of `work`, called in one of the threads; call this from the event loop only."""
        if self._num_pending >= self._max_pending:
            raise HTTPException(503, f"Too many {self._name}s are waiting.", {"Retry-After": "1"})
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        """Wait for running and queued work, then end the threads."""
        self._threads.shutdown()
