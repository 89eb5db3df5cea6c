"""Encoding in small batches: texts of concurrent requests are encoded together, in threads of their own."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

Text = tuple[str, str, str, str]
"""Title, abstract, body and category of an article; any may be empty."""
Embeddings = NDArray[np.float32]
Encode = Callable[[Sequence[Text]], Embeddings]

BATCH = 16
"""Texts encoded at once; larger batches are hardly faster, and make other requests wait."""
ENCODE_NICENESS = 10
"""Scheduling priority of the encoding threads (`nice`): they use all cores, and recommendations go first."""


class ServiceStopped(Exception):
    """Raised by encoding, and so by writes and reloads, that the service did not finish before it was stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """Texts to encode, and the future that receives their embeddings."""

    encode: Encode
    texts: Sequence[Text]
    rows: "Future[Embeddings]" = field(default_factory=Future)


class MicroBatcher:
    """Encodes waiting texts of the same model together, about `BATCH` at once, first come, first served.

    There is one thread for each core and each encodes a batch alone: threads that share a computation wait for the
    slowest of them at every operation, and recommendations always slow one of them down.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        """Start the threads: `num_threads`, or by default as many as torch uses."""
        self.num_threads = num_threads or torch.get_num_threads()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._submitting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name="encode", daemon=True) for _ in range(self.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, encode: Encode, texts: Sequence[Text]) -> "Future[Embeddings]":
        """Queue texts for encoding; the future holds one row per text, (texts, width)."""
        job = _Job(encode=encode, texts=texts)
        with self._submitting:
            if self._is_closed:
                raise ServiceStopped
            self._jobs.put(job)
        return job.rows

    def close(self) -> None:
        """End the threads after the batches they are encoding; texts that wait are given up (ServiceStopped)."""
        with self._submitting:
            self._is_closed = True
        self._give_up()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _give_up(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job.rows.set_exception(ServiceStopped())

    def _run(self) -> None:
        torch.set_num_threads(1)
        if sys.platform == "linux":  # where each thread has its own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), ENCODE_NICENESS)
        while (job := self._jobs.get()) is not None:
            while job is not None:
                batch, job = self._fill(job)
                _encode([one for one in batch if one.rows.set_running_or_notify_cancel()])
                del batch  # else an old model stays in memory until the next text arrives

    def _fill(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Collect a batch of jobs for one model, and the next job if it is for another model."""
        batch = [first]
        while sum(len(one.texts) for one in batch) < BATCH:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # only stop signals follow: each thread needs one
                break
            if job.encode != first.encode:
                return batch, job
            batch.append(job)
        return batch, None


def _encode(jobs: Sequence[_Job]) -> None:
    """Encode the texts of all jobs at once, and give each job its rows."""
    if not jobs:
        return
    try:
        rows = jobs[0].encode([text for one in jobs for text in one.texts])
    except Exception as error:  # of any kind: it belongs to those who wait for the result
        for one in jobs:
            one.rows.set_exception(error)
        return
    start = 0
    for one in jobs:
        one.rows.set_result(rows[start : start + len(one.texts)])
        start += len(one.texts)
