"""Texts of many requests, encoded together by threads of their own."""

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
"""Title, abstract, body and category; any may be empty."""
Embeddings = NDArray[np.float32]
Encode = Callable[[Sequence[Text]], Embeddings]

BATCH = 16
"""Texts encoded together; larger batches are hardly faster and let others wait."""
ENCODE_NICENESS = 10
"""Encoding takes all cores for as long as it lasts; recommendations go first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    encode: Encode
    texts: Sequence[Text]
    rows: "Future[Embeddings]" = field(default_factory=Future)


class MicroBatcher:
    """Encodes what is waiting for one model, up to about `BATCH` texts at once; first come, first served.

    A thread for each core, and each computes alone: threads that share a computation wait for the slowest of them
    at every step of it, and beside recommendations there always is a slow one.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        """As many threads as torch would use, if nothing is said."""
        self.num_threads = num_threads or torch.get_num_threads()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name="encode", daemon=True) for _ in range(self.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, encode: Encode, texts: Sequence[Text]) -> "Future[Embeddings]":
        """One row per text, when its turn has come."""
        job = _Job(encode=encode, texts=texts)
        self._jobs.put(job)
        return job.rows

    def close(self) -> None:
        """Finish what was submitted, then end."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)
        if sys.platform == "linux":  # where priorities are per thread; those it starts inherit it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), ENCODE_NICENESS)
        while (job := self._jobs.get()) is not None:
            while job is not None:
                batch, job = self._fill(job)
                _encode([one for one in batch if one.rows.set_running_or_notify_cancel()])
                del batch  # an old model must not stay in memory until the next text comes

    def _fill(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """A batch, and the job for another model that ended it, if one did."""
        batch = [first]
        while sum(len(one.texts) for one in batch) < BATCH:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # nothing but its like comes after it: a thread ends with its next look
                break
            if job.encode != first.encode:
                return batch, job
            batch.append(job)
        return batch, None


def _encode(jobs: Sequence[_Job]) -> None:
    if not jobs:
        return
    try:
        rows = jobs[0].encode([text for one in jobs for text in one.texts])
    except Exception as error:  # whatever it is, those who wait must hear of it
        for one in jobs:
            one.rows.set_exception(error)
        return
    start = 0
    for one in jobs:
        one.rows.set_result(rows[start : start + len(one.texts)])
        start += len(one.texts)
