"""Pretrained word vectors from a text file with one word and its numbers per line, like GloVe and fastText."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from speedyfeed.errors import InputError


def load_glove(path: Path, indices: Mapping[str, int], width: int) -> tuple[Tensor, Tensor]:
    """Load the vectors of the words in `indices`, and their indices; one pass, only these are held in memory."""
    found: dict[int, list[float]] = {}
    if not path.is_file():
        raise InputError(f"{path}: no such file of word vectors; give one like glove.6B.300d.txt")
    with open(path, encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            if line == 1 and len(text.split()) == 2:  # fastText and word2vec begin with the size
                continue
            word, *values = text.rstrip().rsplit(" ", width)  # a word may have spaces in it
            if len(values) != width or (line == 1 and len(text.split()) != width + 1):
                raise InputError(
                    f"{path}:{line}: found {len(text.split()) - 1} numbers after the word, expected {width}; "
                    "set --words.width to the width of the file"
                )
            if word in indices:
                try:
                    found[indices[word]] = [float(value) for value in values]
                except ValueError as error:
                    raise InputError(f"{path}:{line}: {error}; expected a word and {width} numbers") from error
    return torch.tensor(list(found.values())).view(-1, width), torch.tensor(list(found), dtype=torch.long)
