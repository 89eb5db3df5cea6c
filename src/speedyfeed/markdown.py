"""Markdown tables that also read well in a terminal."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    widths = [max(2, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join([cells[0].ljust(widths[0]), *others])} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(line(cells) for cells in (header, rule, *rows))
