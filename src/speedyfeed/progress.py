"""Progress callbacks, bars in a terminal and a line that changes in a notebook."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

SECONDS_PER_LINE = 30.0
SECONDS_PER_UPDATE = 0.2
BAR_WIDTH = 16
REST_WIDTH = BAR_WIDTH + 30
"""Columns of a terminal that a line takes beside its stage and its note: 80 suffice for a bar, a count such as
12,345/67,890, the time left and a short note."""


class Report(Protocol):
    """Progress callback: stage, units done, total units (0 = unknown) and a note to show with them."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None: ...


def silent(stage: str, done: int, total: int, note: str = "", /) -> None:
    """Progress callback that reports nothing."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, as Jupyter, Colab or VS Code have."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def choose_progress(given: Report | None) -> Report:
    """The given callback; without one, a line that changes in a notebook, and silence anywhere else."""
    return given or (_displayed() if in_notebook() else silent)


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

    A stage ends when the next begins. In a notebook it is one line that changes.
    """
    if in_notebook():
        yield _displayed()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(BAR_WIDTH),
        _Count(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        _Note(console),
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


class _Count(ProgressColumn):
    """Units done, and of how many where that is known."""

    def render(self, task: Task) -> Text:
        of_all = "" if task.total is None else f"/{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{of_all}" if task.completed or of_all else "")


class _Note(ProgressColumn):
    """Parts of a note, separated by two spaces, that the line has room for."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._longest = 0  # of the stages so far, which are aligned

    def render(self, task: Task) -> Text:
        self._longest = max(self._longest, len(task.description))
        room = self._console.width - REST_WIDTH - self._longest
        parts = task.fields["note"].split("  ")
        while parts and len("  ".join(parts)) > room:
            parts.pop()
        return Text("  ".join(parts))


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


def _displayed() -> Report:
    """A callback that shows the current stage in the output of a notebook's cell, in one line that changes."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    shown = {"": 0.0}

    def report(stage: str, done: int, total: int, note: str = "", /) -> None:
        is_complete = bool(total) and done >= total
        if stage in shown and not is_complete and perf_counter() - shown[stage] < SECONDS_PER_UPDATE:
            return
        shown[stage] = perf_counter()
        share = f"{done / total:4.0%} {'█' * round(20 * done / total):20}" if total else f"{done:,}"
        handle.update({"text/plain": f"{stage}  {share}  {note}".rstrip()}, raw=True)

    return report
