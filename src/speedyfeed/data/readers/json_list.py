"""A JSON file that is one list of objects, as some exports are: its objects as if each were a line.

    [{"id": 1}, {"id": 2}]   ->   {"id": 1}
                                  {"id": 2}

The file is held in memory, because a list has no lines to split it by.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa

from speedyfeed.data.readers.text import Lines
from speedyfeed.errors import InputError

BATCH_ROWS = 8192
_SPACE = re.compile(r"\s*")


def read_array(path: Path, open_text: Callable[[], TextIO]) -> Iterator[Lines]:
    """Read the objects of a list with the lines on which they begin."""
    with open_text() as file:
        text = file.read()
    texts: list[str] = []
    numbers: list[int] = []
    line, counted = 1, 0
    for begin, end in _find_objects(path, text):
        line, counted = line + text.count("\n", counted, begin), begin
        texts.append(text[begin:end])
        numbers.append(line)
        if len(texts) == BATCH_ROWS:
            yield _lines(path, texts, numbers)
            texts, numbers = [], []
    yield _lines(path, texts, numbers)


def _find_objects(path: Path, text: str) -> Iterator[tuple[int, int]]:
    """Where each object of the list begins and ends."""
    decoder = json.JSONDecoder()
    position = _skip(text, text.index("[") + 1)
    while text[position : position + 1] != "]":
        try:
            _, end = decoder.raw_decode(text, position)
        except ValueError as error:
            raise _broken(path, text, position, str(error)) from None
        yield position, end
        position = _skip(text, end)
        if text[position : position + 1] == ",":
            position = _skip(text, position + 1)
        elif text[position : position + 1] != "]":
            raise _broken(path, text, position, "no comma behind an object")


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _lines(path: Path, texts: list[str], numbers: list[int]) -> Lines:
    return Lines(path=path, numbers=np.array(numbers, np.int64), text=pa.array(texts, pa.string()))


def _broken(path: Path, text: str, position: int, found: str) -> InputError:
    line = text.count("\n", 0, position) + 1
    return InputError(
        f"{path}:{line}: found a JSON list with {found}, expected objects between commas and a ] at its end; "
        "correct it, or export it again"
    )
