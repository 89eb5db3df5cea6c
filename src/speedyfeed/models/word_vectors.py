"""Pretrained word vectors: from a text file with one word and its numbers per line, or from a language model.

A language model knows word pieces: the vector of a word is the mean of the input embeddings of its pieces.
Shapes: W words, P word pieces, H width of the language model, E word width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from speedyfeed.errors import InputError
from speedyfeed.tokenizers import load_tokenizer


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


@torch.no_grad()
def load_piece_vectors(encoder: str, words: Sequence[str], width: int, *, std: float) -> tuple[Tensor, Tensor]:
    """Make the vectors of words from the word pieces of a pretrained encoder: vectors_WE, is_known_W.

    Words of which it knows no piece have no vector. Vectors are centred, since input embeddings share a large
    mean, and scaled to the standard deviation `std`. Of vectors wider than `width`, the principal directions are
    taken.
    """
    from speedyfeed.models.plm import load_encoder  # imports transformers, which takes seconds

    embedding = load_encoder(encoder).get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    table_PH = embedding.weight.float()
    if width > table_PH.size(1):
        raise InputError(
            f"--words.vectors {encoder}: has {table_PH.size(1)} numbers per word; set --words.width to that"
        )
    tokenizer = load_tokenizer(encoder)
    pieces = tokenizer(list(words), add_special_tokens=False)["input_ids"]
    is_known_W = torch.tensor([any(piece != tokenizer.unk_token_id for piece in word) for word in pieces])
    if not is_known_W.any():
        raise InputError(f"--words.vectors {encoder}: knows none of the {len(words):,} words of the store")
    starts = torch.tensor([0, *(len(word) for word in pieces[:-1])]).cumsum(0)
    ids = torch.tensor([piece for word in pieces for piece in word])
    vectors_WH = torch.nn.functional.embedding_bag(ids, table_PH, starts, mode="mean")
    vectors_WH -= vectors_WH[is_known_W].mean(0)
    known_WH = vectors_WH[is_known_W]
    _, directions_HH = torch.linalg.eigh(known_WH.T @ known_WH)  # smallest variance first
    vectors_WE = vectors_WH @ directions_HH.flip(1)[:, :width]
    return vectors_WE * (std / vectors_WE[is_known_W].std()), is_known_W
