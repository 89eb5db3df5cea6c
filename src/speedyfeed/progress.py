"""Progress callbacks and terminal bars."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_PER_LINE = 30.0


class Report(Protocol):
    """Progress callback: stage, units done, total units (0 = unknown) and a note to show with them."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None: ...


def silent(stage: str, done: int, total: int, note: str = "", /) -> None:
    """Progress callback that reports nothing."""


def counted(
    batches: Iterable[pa.RecordBatch], report: Report, stage: str, total: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged and report their rows."""
    done = 0
    report(stage, done, total)
    for batch in batches:
        yield batch
        done += batch.num_rows
        report(stage, done, total)
    report(stage, done, done)


@contextmanager
def progress_bars() -> Iterator[Report]:
    """A callback that draws one bar per stage on stderr, or prints plain lines where stderr is no terminal.

    A stage ends when the next begins.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, note: str = "", /) -> None:
            if stage not in tasks:
                for task in bars.tasks:
                    if not task.finished:
                        bars.update(task.id, total=task.completed)
                tasks[stage] = bars.add_task(stage, total=total or None, note=note)
            bars.update(tasks[stage], completed=done, total=total or None, note=note)

        yield report


def _lines(console: Console) -> Report:
    """A callback that prints a line when a stage begins, and one every half minute while it lasts."""
    printed: dict[str, float] = {}

    def report(stage: str, done: int, total: int, note: str = "", /) -> None:
        if stage not in printed:
            console.print(f"{stage} ...", highlight=False)
        elif perf_counter() - printed[stage] >= SECONDS_PER_LINE:
            share = f" {done / total:.0%}" if total else f" {done:,}"
            console.print(f"{stage}{share} {note}", highlight=False, soft_wrap=True)
        else:
            return
        printed[stage] = perf_counter()

    return report
