"""Content refinement: each text as its most telling words, in order of first appearance, with their counts.

    "The cat saw the other cat run"  ->  cat: 2, saw: 1, run: 1

Special characters and stop words are dropped, words scored by BM25, the best `limit` of each field kept (the
paper's ordered bag of words). Written as Ibis expressions: words with positions, grouped by word, joined with
document frequencies, scored, ranked. Cost: one sort of all (news, field, word) triples.
"""

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.preparation.engine import Engine

BM25_K1 = 2.0  # the paper's
BM25_B = 0.75  # the customary length normalisation
SEPARATORS = r"[^\p{L}\p{N}]+"  # whatever is neither a letter nor a number, in any script


@dataclass(frozen=True, kw_only=True, slots=True)
class WordStatistics:
    """What BM25 must know of a collection: of the one at hand, or of the one a model was trained on."""

    num_news: int
    mean_words: Sequence[float]
    """Mean number of words of each field, stop words not counted."""
    frequencies: Path
    """Parquet file of (word, num_news): in how many news a word occurs."""


def stop_words() -> list[str]:
    """English words that tell nothing about a story; for other languages BM25 alone must do."""
    text = importlib.resources.files("speedyfeed.preparation").joinpath("stopwords.txt").read_text("utf-8")
    return text.split()


def count_words(engine: Engine, news: ir.Table, fields: Sequence[str]) -> ir.Table:
    """(news, field, word, form, count, first): each word of each text once; `form` is how it first appears.

    `news` has the number of the news and a column per field; a field is told by its place in `fields`; `word`
    is in lower case.
    """
    texts = ibis.union(
        *(
            news.select("news", field=ibis.literal(place, "int8"), form=news[field])
            for place, field in enumerate(fields)
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


def measure_words(engine: Engine, counts: ir.Table, num_news: int, num_fields: int, path: Path) -> WordStatistics:
    """Document frequencies, which are written to `path`, and mean lengths of the collection."""
    totals = engine.load(counts.group_by("field").agg(words=_["count"].sum())).to_pydict()
    words = dict(zip(totals["field"], totals["words"], strict=True))
    frequencies = counts.group_by("word").agg(num_news=_.news.nunique())
    pq.write_table(engine.load(frequencies.order_by("word")), path)
    return WordStatistics(
        num_news=num_news,
        mean_words=[words.get(field, 0) / num_news for field in range(num_fields)],
        frequencies=path,
    )


def top_words(engine: Engine, counts: ir.Table, statistics: WordStatistics, limits: Sequence[int]) -> ir.Table:
    """(news, field, form, count, first, rank): the best `limits[field]` words of every text; rank 0 tells most.

    A word that the statistics do not know occurs in no news, and tells most. Equal scores are ranked by first
    appearance, so the choice never depends on the engine.
    """
    frequencies = engine.open(statistics.frequencies)
    length = _["count"].sum().over(group_by=["news", "field"])
    # A field that was empty in all of the collection has no mean length; any stands for it.
    means = [mean or 1.0 for mean in statistics.mean_words]
    mean = ibis.cases(*((_.field == field, mean) for field, mean in enumerate(means)), else_=1.0)
    limit = ibis.cases(*((_.field == field, limit) for field, limit in enumerate(limits)), else_=0)
    rarity = (1 + (statistics.num_news - _.num_news + 0.5) / (_.num_news + 0.5)).ln()
    saturation = _["count"] + BM25_K1 * (1 - BM25_B + BM25_B * _.length / _.mean)
    return (
        counts.left_join(frequencies, "word")
        .mutate(length=length, mean=mean, num_news=_.num_news.fill_null(0))
        .mutate(score=rarity * _["count"] * (BM25_K1 + 1) / saturation)
        .mutate(rank=ibis.row_number().over(group_by=["news", "field"], order_by=[_.score.desc(), _["first"]]))
        .filter(_["rank"] < limit)
        .select("news", "field", "form", "count", "first", "rank")
    )
