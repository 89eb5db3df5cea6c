"""Content refinement of a few texts, in memory: the words that `refine` chooses by queries, without their wait.

A log goes through `refine`, an article through here; that both choose alike is tested.
"""

import math
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow.parquet as pq

from speedyfeed.preparation.refine import BM25_B, BM25_K1, WordStatistics, stop_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A chosen word of a text."""

    form: str
    """As it first appears."""
    count: int
    first: int
    """Where it first appears."""
    rank: int
    """0 tells most."""


class Bags:
    """Chooses the most telling words of texts by the statistics of a collection."""

    def __init__(self, statistics: WordStatistics) -> None:
        self._statistics = statistics
        self._stop_words = frozenset(stop_words())

    def choose(self, text: str, field: int, limit: int) -> list[Word]:
        """The best `limit` words of a text of that field, in order of first appearance."""
        counts: dict[str, int] = {}
        firsts: dict[str, tuple[int, str]] = {}
        for place, form in _split(text):
            word = form.translate(_LOWER)
            if word not in self._stop_words:
                counts[word] = counts.get(word, 0) + 1
                firsts.setdefault(word, (place, form))
        length = sum(counts.values())
        scores = {word: self._score(word, count, length, field) for word, count in counts.items()}
        best = sorted(scores, key=lambda word: (-scores[word], firsts[word][0]))[:limit]
        chosen = [
            Word(form=firsts[word][1], count=counts[word], first=firsts[word][0], rank=rank)
            for rank, word in enumerate(best)
        ]
        return sorted(chosen, key=lambda word: word.first)

    def _score(self, word: str, count: int, length: int, field: int) -> float:
        """BM25, every operation in the order of `refine.top_words`, so that ties are the same ties."""
        num_news = self._frequencies.get(word, 0)
        rarity = math.log(1 + (self._statistics.num_news - num_news + 0.5) / (num_news + 0.5))
        mean = self._statistics.mean_words[field] or 1.0
        return rarity * count * (BM25_K1 + 1) / (count + BM25_K1 * (1 - BM25_B + BM25_B * length / mean))

    @cached_property
    def _frequencies(self) -> dict[str, int]:
        """About 100 bytes a word; read when the first text comes."""
        table = pq.read_table(self._statistics.frequencies)
        return dict(zip(table["word"].to_pylist(), table["num_news"].to_pylist(), strict=True))


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Runs of letters and numbers, with their places."""
    return enumerate(text.translate(_SPACED).split())


class _Characters(dict[int, str]):
    """A table for `str.translate` that is filled as characters are met."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self._translate = translate

    def __missing__(self, code: int) -> str:
        self[code] = new = self._translate(chr(code))
        return new


_SPACED = _Characters(lambda one: one if unicodedata.category(one)[0] in "LN" else " ")
_LOWER = _Characters(lambda one: one.lower()[0])
"""Character by character, as databases do it."""
