"""Figures on their way to the user: tables that read well in a terminal and as Markdown, and files to keep."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speedyfeed.folders import new_file, write_json


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in (header, *rows)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def publish(name: str, figures: Any, told: str, drawn: Sequence[Path], out: Path, *, as_json: bool) -> None:
    """Keep figures and tables in a folder beside what was drawn, and print them."""
    with new_file(out / f"{name}.md") as partial:
        partial.write_text(told + "\n", encoding="utf-8")
    with new_file(out / f"{name}.json") as partial:
        write_json(partial, asdict(figures))
    if as_json:
        print(json.dumps(asdict(figures), allow_nan=False))
        return
    print(f"{figures.machine}\n\n{told}\n")
    print(f"also in {out}: {name}.md, {name}.json, {', '.join(path.name for path in drawn)}")
