"""The files of a store, from ingested logs to arrays.

ingest --> set a validation split aside --> number the articles --> titles, texts, vocabulary --> tokens --> splits

Everything streams through Parquet files in a scratch folder inside the unfinished store, so memory does not grow
with the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ibis.expr.types as ir
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.bodies import BODIES, write_bodies
from speedyfeed.data.manifest import CollectionStatistics, NewsCounts, SplitCounts, StoreCounts
from speedyfeed.data.store import WORD_TOKENS, Store
from speedyfeed.data.tables import Logs
from speedyfeed.errors import InputError
from speedyfeed.preparation import timeline
from speedyfeed.preparation.engine import Engine
from speedyfeed.preparation.ingest import Sources, ingest_news, ingest_splits, number_news
from speedyfeed.preparation.lost_negatives import may_lack_negatives, note_lost_negatives
from speedyfeed.preparation.news_parts import WrittenNews, write_news
from speedyfeed.preparation.splits import write_splits
from speedyfeed.preparation.text import TextRules, first_paragraphs
from speedyfeed.preparation.validation import divide_train
from speedyfeed.preparation.vocabulary import copy_vocabulary, write_vocabulary
from speedyfeed.progress import Report

BODIES_AT_ONCE = 4096
"""Full texts in memory while they are copied into a store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a store is made of, and what for."""

    logs: Logs
    rules: TextRules
    is_to_train: bool
    """Whether models are trained on the store; else it is only to be ranked, and needs no train split."""
    validation: float | None = None
    """Share of the train impressions to set aside; None for the default."""
    like: Store | None = None
    """Store whose word vocabulary the new one gets."""

    @property
    def has_times(self) -> bool:
        """Whether the times of the impressions are known in every split."""
        return all(split.has_times for split in self.logs.splits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """Facts about the files of a store for its manifest."""

    counts: StoreCounts
    statistics: CollectionStatistics | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Articles:
    """The distinct articles of a log, numbered from 1; those of the train split have the first numbers."""

    numbers: ir.Table
    """(news_id, news, ...): the number of each article."""
    texts: ir.Table
    """(news, news_id, category, ...): each article as its last row has it."""
    total: int
    in_train: int
    changed: int
    """Articles that occur with several texts."""


def build(engine: Engine, plan: Plan, folder: Path, report: Report) -> Built:
    """Write every file of a store but its manifest."""
    splits = plan.logs.splits
    ingested = ingest_news(splits, engine.scratch / "news.parquet", report)
    sources = ingest_splits(splits, engine.scratch, report)
    if plan.is_to_train:
        has_times = next(split.has_times for split in splits if split.name == "train")
        sources = divide_train(engine, sources, plan.validation, has_times=has_times)
    articles = _number_articles(engine, plan, sources)
    _write_titles(engine, plan, sources, articles, folder)
    vocabulary_size = None
    if plan.is_to_train:
        write_bodies(engine.reread("texts", BODIES_AT_ONCE), folder / BODIES)
        vocabulary_size = _write_vocabulary(engine, plan, articles, folder)
    written = _write_tokens(engine, plan, articles, folder, report)

    ids = engine.save(articles.numbers.select("news_id", "news"), "ids")
    counts = write_splits(engine, sources, ids, folder, report, has_times=plan.has_times)
    lost = _lost_negatives(engine, plan, sources, counts, ids)
    if plan.is_to_train:
        _require_users(plan, counts["train"])
        _require_words(plan, articles, written)
    news_counts = NewsCounts(
        read=ingested.rows,
        kept=articles.total,
        repeated=ingested.rows - articles.total,
        without_words=written.num_empty,
        in_train=articles.in_train,
        changed=articles.changed,
        texts_with_markup=ingested.with_markup,
        texts_decomposed=ingested.decomposed,
    )
    store_counts = StoreCounts(
        news=news_counts,
        splits=counts,
        vocabulary_size=vocabulary_size,
        notes=(*(note for split in splits for note in split.notes()), *lost),
        set_aside=sources.set_aside,
        clicked_and_skipped=sources.num_both,
    )
    return Built(counts=store_counts, statistics=written.statistics)


def _number_articles(engine: Engine, plan: Plan, sources: Sources) -> _Articles:
    """Number the distinct articles, and save the text of each as `texts`."""
    news = engine.open(engine.scratch / "news.parquet")
    in_train = timeline.referenced(engine.open(sources.files["train"])) if plan.is_to_train else None
    numbers = number_news(engine, news, in_train)
    totals = numbers.agg(
        total=_.count(), in_train=_.is_first.sum().fill_null(0), changed=_.is_changed.sum().fill_null(0)
    )
    counts = {name: int(number) for name, number in engine.load(totals).to_pylist()[0].items()}
    numbered = news.drop("news_id").join(numbers, "row").drop("row", "is_first", "is_changed")
    whole = first_paragraphs(numbered, plan.rules.config.body_paragraphs)
    return _Articles(numbers=numbers, texts=engine.save(whole.order_by("news"), "texts"), **counts)


def _write_titles(engine: Engine, plan: Plan, sources: Sources, articles: _Articles, folder: Path) -> None:
    """Write what is shown of each article and, to train on a log with times, when it was first shown."""
    columns = ["news_id", "category", "subcategory", "title", "abstract"]
    listed = articles.texts
    if plan.is_to_train and plan.has_times:
        impressions = [engine.open(file) for file in sources.files.values()]
        listed = listed.left_join(timeline.first_shown(impressions), "news_id")
        columns.append("first_shown")
    pq.write_table(engine.load(listed.order_by("news").select(*columns)), folder / "news.parquet")


def _write_vocabulary(engine: Engine, plan: Plan, articles: _Articles, folder: Path) -> int | None:
    """Write the word vocabulary of the train articles, or copy that of an earlier store; returns its size."""
    if plan.like is not None:
        return copy_vocabulary(plan.like, folder)
    of_train = articles.texts.filter(_.news <= articles.in_train)
    return write_vocabulary(engine, of_train, plan.rules.config.fields, folder)


def _write_tokens(engine: Engine, plan: Plan, articles: _Articles, folder: Path, report: Report) -> WrittenNews:
    """Write the tokens of the language model and, to train, those of the word vocabulary."""
    tokenizers = {"news": plan.rules.config.encoder}
    if plan.is_to_train:
        tokenizers[WORD_TOKENS] = str(folder / WORD_TOKENS)
    num_measured = articles.in_train if plan.is_to_train else articles.total
    return write_news(engine, articles.texts, articles.total, folder, plan.rules, tokenizers, num_measured, report)


def _lost_negatives(
    engine: Engine, plan: Plan, sources: Sources, counts: Mapping[str, SplitCounts], ids: ir.Table
) -> list[str]:
    """Warnings about splits of the log in which no skipped article has a text."""
    return [
        note
        for split in plan.logs.splits
        if may_lack_negatives(counts[split.name])
        for note in note_lost_negatives(engine, split.name, engine.open(sources.files[split.name]), ids)
    ]


def _require_users(plan: Plan, count: SplitCounts) -> None:
    """Refuse to train on a log where no click is on an article with text."""
    if not count.kept["users"]:
        raise InputError(
            f"{plan.logs.splits[0].files[0].parent}: no user left: of {count.read['clicks']} clicks and "
            f"{count.read['history_clicks']} history clicks none is on an article with text; "
            "check that the news file belongs to these impressions"
        )


def _require_words(plan: Plan, articles: _Articles, written: WrittenNews) -> None:
    """Refuse to train on a log where no article has a word."""
    if written.num_empty == articles.total:
        names = ", ".join(plan.rules.config.fields)
        raise InputError(
            f"{plan.logs.splits[0].files[0]}: none of {articles.total} articles has a word in {names}, expected "
            "texts to learn from; check the columns, or give other --fields"
        )
