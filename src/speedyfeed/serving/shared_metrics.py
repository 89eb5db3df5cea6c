"""Metrics of all worker processes added up, so that it does not matter which of them is asked.

Every worker writes what it has counted into a file, once a second and whenever it is asked. Its successor begins
with what is in the file, so counts never fall, and kill -9 costs those of a second.
"""

from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from speedyfeed.files import new_file


class SharedMetrics:
    """The metrics files of one run, in a folder of the service."""

    def __init__(self, folder: Path, run: str, worker: int) -> None:
        """Begin with what an earlier process in the place of this worker has counted."""
        self._folder = folder
        self._pattern = f"metrics-*-{run}.txt"
        self._own = folder / f"metrics-{worker}-{run}.txt"
        self._before = self._own.read_text("utf-8") if self._own.exists() else ""
        self._writes = Lock()

    def write(self, own: str) -> str:
        """Write what this worker and those before it in its place have counted."""
        total = add_up([own, self._before])
        with self._writes, new_file(self._own) as file:  # requests and the thread that follows write it
            file.write_text(total, "utf-8")
        return total

    def total(self, own: str) -> str:
        """What all workers have counted; `own` is from this one."""
        others = [file for file in sorted(self._folder.glob(self._pattern)) if file != self._own]
        return add_up([self.write(own), *(file.read_text("utf-8") for file in others)])


def add_up(texts: Iterable[str]) -> str:
    """Add up metrics in the text format of Prometheus; gauges are those of the first text."""
    comments: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    for number, text in enumerate(texts):
        family, is_gauge = "", False
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, family, rest = line.split(" ", 3)
                is_gauge = kind == "TYPE" and rest == "gauge"
                if line not in comments.setdefault(family, []):
                    comments[family].append(line)
                continue
            series, _, value = line.rpartition(" ")
            found = values.setdefault(family, {})
            if not (is_gauge and number):
                found[series] = found.get(series, 0.0) + float(value)
    lines = []
    for family, about in comments.items():
        lines += [*about, *(f"{series} {value}" for series, value in values.get(family, {}).items())]
    return "\n".join([*lines, ""])
