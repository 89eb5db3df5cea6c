"""What the worker processes of a service tell each other: which load of each run every worker has in service, and
how often it has looked at the journal.

             first run   other run   looks
    worker 0     3           1        8120
    worker 1     2           1        8097       behind: it is loading
    worker 2     0           0         411       is not running, or has not loaded anything yet

Shared memory without a name: it ends with the processes.
"""

import mmap

BYTES = 8
"""Size of a number."""


class Board:
    """A table of numbers in memory that forked processes share: one row for each worker, written by that alone."""

    def __init__(self, num_workers: int, num_runs: int) -> None:
        self._num_runs = num_runs
        numbers = mmap.mmap(-1, num_workers * (num_runs + 1) * BYTES)
        self._rows = [
            memoryview(numbers).cast("q")[start : start + num_runs + 1]
            for start in range(0, num_workers * (num_runs + 1), num_runs + 1)
        ]

    def show(self, worker: int, loads: list[int]) -> None:
        """Write the loads that a worker has in service, one for each run; zeros for a worker that has ended."""
        for run, load in enumerate(loads):
            self._rows[worker][run] = load

    def count_look(self, worker: int) -> None:
        """Count that a worker shows all that was in the journal when it looked."""
        self._rows[worker][self._num_runs] += 1

    def looks(self) -> list[int]:
        """How often each worker has looked at the journal."""
        return [row[self._num_runs] for row in self._rows]

    def have_looked_since(self, looks: list[int]) -> bool:
        """Whether every running worker has begun and ended a look since the counts were these."""
        return all(
            not row[0] or row[self._num_runs] >= before + 2 for row, before in zip(self._rows, looks, strict=True)
        )

    def is_ready(self, worker: int) -> bool:
        """Whether a worker has all runs in service."""
        return all(self._rows[worker][: self._num_runs])

    def has_reached(self, run: int, load: int) -> bool:
        """Whether no running worker has an earlier load of this run in service."""
        return all(row[run] == 0 or row[run] >= load for row in self._rows)
