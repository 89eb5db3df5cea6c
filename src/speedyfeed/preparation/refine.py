"""Content refinement: each text as its most informative words, in order of first appearance, with their counts.

    "The cat saw the other cat run"  ->  cat: 2, saw: 1, run: 1

Special characters, web addresses and stop words are dropped, words are scored by BM25, and the best `limit` of
each field are retained (the paper's ordered bag of words). Two implementations agree word by word: a log is
refined by relational queries (`count_words`, `measure_words`, `top_words`; cost: one sort of all (news, field,
word) triples), a single article in memory (`Refiner`).
"""

import importlib.resources
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from speedyfeed.preparation.engine import Engine


BM25_K1 = 2.0  # the paper's
BM25_B = 0.75  # the customary length normalisation
SEPARATORS = r"^\p{M}+|(?:(?:https?://[!-~]+|[^\p{L}\p{M}\p{N}])\p{M}*)+"
"""Web addresses, and everything that is neither a letter nor a number, in any script. A mark, such as an accent or
an Indic vowel sign, belongs to the character before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WordStatistics:
    """Statistics of a collection that BM25 needs: of the texts at hand, or of those a model was trained on."""

    num_news: int
    mean_words: Sequence[float]
    """Mean number of words of each field, stop words excluded."""
    document_frequencies: Path
    """Parquet file of (word, num_news): in how many articles a word occurs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenWord:
    """A word of a text that refinement retained."""

    form: str
    """Spelling of its first appearance."""
    count: int
    """Number of appearances in the text."""
    first: int
    """Position of its first appearance, counted in words."""
    rank: int
    """Rank by BM25 within the text; 0 is the most informative word."""


def stop_words() -> list[str]:
    """English words that carry no topic; other languages rely on BM25 alone."""
    text = importlib.resources.files("speedyfeed.preparation").joinpath("stopwords.txt").read_text("utf-8")
    return text.split()


def count_words(engine: "Engine", news: "ir.Table", fields: Sequence[str]) -> "ir.Table":
    """(news, field, word, form, count, first): each distinct word of each text; `form` is its first spelling.

    `news` has the number of each article and a column per field; `field` is an index into `fields`; `word` is in
    lower case.
    """
    import ibis
    from ibis import _

    texts = ibis.union(
        *(
            news.select("news", field=ibis.literal(number, "int8"), form=news[field])
            for number, field in enumerate(fields)
        )
    )
    words = (
        texts.mutate(form=_.form.re_split(SEPARATORS))
        .unnest("form", offset="position")
        .mutate(word=_.form.lower())
        .filter(_.word != "", _.word.notin(stop_words()))
    )
    counts = words.group_by("news", "field", "word").agg(
        form=_.form.argmin(_.position), count=_.count(), first=_.position.min()
    )
    return engine.save(counts, "word-counts")


def measure_words(
    engine: "Engine", counts: "ir.Table", num_news: int, num_fields: int, path: Path
) -> WordStatistics:
    """Measure a collection: its mean lengths, and its document frequencies, which are written to `path`."""
    from ibis import _

    totals = engine.load(counts.group_by("field").agg(words=_["count"].sum())).to_pydict()
    num_words = dict(zip(totals["field"], totals["words"], strict=True))
    document_frequencies = counts.group_by("word").agg(num_news=_.news.nunique())
    pq.write_table(engine.load(document_frequencies.order_by("word")), path)
    return WordStatistics(
        num_news=num_news,
        mean_words=[num_words.get(field, 0) / max(num_news, 1) for field in range(num_fields)],
        document_frequencies=path,
    )


def top_words(
    engine: "Engine", counts: "ir.Table", statistics: WordStatistics, limits: Sequence[int]
) -> "ir.Table":
    """(news, field, form, count, first, rank): the best `limits[field]` words of every text.

    A word without a document frequency occurs in no article and is the rarest. Equal scores are ranked by first
    appearance, so the choice never depends on the engine.
    """
    import ibis
    from ibis import _

    document_frequencies = engine.open(statistics.document_frequencies)
    length = _["count"].sum().over(group_by=["news", "field"])
    # A field that was empty in the whole collection has no mean length; any value serves.
    means = [mean or 1.0 for mean in statistics.mean_words]
    mean = ibis.cases(*((_.field == field, mean) for field, mean in enumerate(means)), else_=1.0)
    limit = ibis.cases(*((_.field == field, limit) for field, limit in enumerate(limits)), else_=0)
    rarity = (1 + (statistics.num_news - _.num_news + 0.5) / (_.num_news + 0.5)).ln()
    saturation = _["count"] + BM25_K1 * (1 - BM25_B + BM25_B * _.length / _.mean)
    return (
        counts.left_join(document_frequencies, "word")
        .mutate(length=length, mean=mean, num_news=_.num_news.fill_null(0))
        .mutate(score=rarity * _["count"] * (BM25_K1 + 1) / saturation)
        .mutate(rank=ibis.row_number().over(group_by=["news", "field"], order_by=[_.score.desc(), _["first"]]))
        .filter(_["rank"] < limit)
        .select("news", "field", "form", "count", "first", "rank")
    )


class Refiner:
    """Refines single texts in memory by the statistics of a collection; chooses what `top_words` would."""

    def __init__(self, statistics: WordStatistics) -> None:
        self._statistics = statistics
        self._stop_words = frozenset(stop_words())

    def choose(self, text: str, field: int, limit: int) -> list[ChosenWord]:
        """The best `limit` words of a text of that field, in order of first appearance."""
        counts: dict[str, int] = {}
        firsts: dict[str, tuple[int, str]] = {}
        for position, form in _split(text):
            word = form.translate(_LOWER)
            if word not in self._stop_words:
                counts[word] = counts.get(word, 0) + 1
                firsts.setdefault(word, (position, form))
        length = sum(counts.values())
        scores = {word: self._score(word, count, length, field) for word, count in counts.items()}
        best = sorted(scores, key=lambda word: (-scores[word], firsts[word][0]))[:limit]
        chosen = [
            ChosenWord(form=firsts[word][1], count=counts[word], first=firsts[word][0], rank=rank)
            for rank, word in enumerate(best)
        ]
        return sorted(chosen, key=lambda word: word.first)

    def _score(self, word: str, count: int, length: int, field: int) -> float:
        """BM25, every operation in the order of `top_words`, so that ties are the same ties."""
        num_news = self._document_frequencies.get(word, 0)
        rarity = math.log(1 + (self._statistics.num_news - num_news + 0.5) / (num_news + 0.5))
        mean = self._statistics.mean_words[field] or 1.0
        return rarity * count * (BM25_K1 + 1) / (count + BM25_K1 * (1 - BM25_B + BM25_B * length / mean))

    @cached_property
    def _document_frequencies(self) -> dict[str, int]:
        """About 100 bytes per word; loaded with the first text."""
        table = pq.read_table(self._statistics.document_frequencies)
        return dict(zip(table["word"].to_pylist(), table["num_news"].to_pylist(), strict=True))


def _split(text: str) -> Iterator[tuple[int, str]]:
    """The words between `SEPARATORS`, with their positions."""
    words = map(_without_leading_marks, _ADDRESS.sub(" ", text).translate(_SPACED).split())
    return enumerate(word for word in words if word)


def _without_leading_marks(word: str) -> str:
    start = next((n for n, one in enumerate(word) if unicodedata.category(one)[0] != "M"), len(word))
    return word[start:]


class _Characters(dict[int, str]):
    """A table for `str.translate` that is filled as characters are met."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self._translate = translate

    def __missing__(self, code: int) -> str:
        self[code] = new = self._translate(chr(code))
        return new


_ADDRESS = re.compile("https?://[!-~]+")
_SPACED = _Characters(lambda one: one if unicodedata.category(one)[0] in "LMN" else " ")
_LOWER = _Characters(lambda one: one.lower()[0])
"""Lower case character by character, as databases do it."""
