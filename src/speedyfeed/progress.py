"""How long work tells how far it is: a callback, and bars in the terminal for it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Report(Protocol):
    """Called with the stage, what is done of it, and its total (0 = not known beforehand)."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def silent(stage: str, done: int, total: int, /) -> None:
    """Reports nothing."""


def counted(
    batches: Iterable[pa.RecordBatch], report: Report, stage: str, total: int = 0
) -> Iterator[pa.RecordBatch]:
    """The same batches, their rows reported as they pass."""
    done = 0
    report(stage, done, total)
    for batch in batches:
        yield batch
        done += batch.num_rows
        report(stage, done, total)
    report(stage, done, done)


@contextmanager
def progress_bars() -> Iterator[Report]:
    """One bar per stage on stderr; a stage ends when the next begins."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def report(stage: str, done: int, total: int, /) -> None:
            if stage not in tasks:
                for task in bars.tasks:
                    if not task.finished:
                        bars.update(task.id, total=task.completed)
                tasks[stage] = bars.add_task(stage, total=total or None)
                if not console.is_terminal:
                    console.print(f"{stage} ...")
            bars.update(tasks[stage], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
