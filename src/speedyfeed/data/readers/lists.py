"""Lists in a column of text: joined to one text, or split into a category and a subcategory.

    ["A red one", "of two"]   ->  A red one of two         ['Beauty', 'Makeup']  ->  Beauty, Makeup
                                                           Adventure|Comedy      ->  Adventure, Comedy

A value is a list if it is written as one in JSON or Python, of strings or of such lists; anything else is a text.
"""

import ast
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_SEPARATORS = ("|", " > ")


def join_lists(column: pa.StringArray) -> pa.StringArray:
    """Join the strings of each list by spaces; texts stay as they are."""
    if not pc.any(pc.starts_with(column, "[")).as_py():
        return column
    parsed = ((text, _parse_list(text)) for text in column.to_pylist())
    return pa.array([text if parts is None else " ".join(parts) for text, parts in parsed], pa.string())


def split_category(column: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    """First and second part of each value that is a list, or written as A|B or A > B; the second may be empty."""
    may_be_list = pc.or_(pc.starts_with(column, "["), pc.match_substring_regex(column, r"\||\s>\s"))
    if not pc.any(may_be_list).as_py():
        return column, pa.repeat("", len(column))
    parts = [(*_split(text), "", "")[:2] for text in column.to_pylist()]
    return pa.array([first for first, _ in parts], pa.string()), pa.array(
        [second for _, second in parts], pa.string()
    )


def _split(text: str) -> list[str]:
    parts = _parse_list(text)
    if parts is None:
        separator = next((one for one in _SEPARATORS if one in text), None)
        parts = [text] if separator is None else [part.strip() for part in text.split(separator)]
    return [part for part in parts if part]


def _parse_list(text: str) -> list[str] | None:
    """Strings of a list in JSON or Python, those of lists in it included; None for anything else."""
    if not (text.startswith("[") and text.rstrip().endswith("]")):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    strings = list(_flatten(value))
    return strings if all(isinstance(one, str) for one in strings) else None


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _flatten(one)
    elif value is not None:
        yield value
