"""Measure a trained recommender on a split of a store: ranking, recall, and where they come from.

Example: speedyfeed evaluate runs/first store/ --split dev
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from speedyfeed.data.store import Store, open_store
from speedyfeed.encoding.histories import history_encoder, reader_encoder
from speedyfeed.encoding.known import reader_numbers
from speedyfeed.encoding.tokens import open_packed
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import Report, Summary, evaluate, evaluate_personally, seen_in_training
from speedyfeed.evaluation.index import ExactIndex, HnswIndex
from speedyfeed.models.recommender import Recommender
from speedyfeed.progress import Report as ProgressReport
from speedyfeed.progress import progress_bars
from speedyfeed.training.run import open_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Prepared log, with the tokenizer and settings the run was trained with."""
    split: str = "dev"
    """dev or test."""
    exact: bool = False
    """Search all news exactly, without an index."""
    json: bool = False
    """Print the figures as one JSON object."""


def run(arguments: Arguments) -> None:
    store = open_store(arguments.store)
    model = Recommender.from_pretrained(arguments.run)
    _require_same_text(arguments.run, store, model)
    with progress_bars() as progress:
        report = evaluate_store(model, store, arguments.split, exact=arguments.exact, progress=progress)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print_report(report)


def evaluate_store(
    model: Recommender, store: Store, split: str, *, exact: bool, progress: ProgressReport
) -> Report:
    """Encode all news of the store once, then rank and retrieve every impression of the split."""
    news = open_packed(store, words=model.news.reads_words, known=model.known)
    seen = seen_in_training(store.train, store.num_news) if "train" in store.splits else None
    readers = reader_numbers(store, split, model.known)
    if model.news.is_personal:
        return evaluate_personally(
            store.impressions(split),
            reader_encoder(model, news, readers),
            np.random.default_rng(0),
            seen=seen,
            report=progress,
        )
    news_VD = model.news.encode_all(news, report=progress)
    return evaluate(
        store.impressions(split),
        news_VD.numpy(),
        history_encoder(model, news_VD, readers),
        np.random.default_rng(0),
        seen=seen,
        build_index=ExactIndex.build if exact else HnswIndex.build,
        report=progress,
    )


def print_report(report: Report) -> None:
    """Every metric with its interval, then the groups."""
    overall = report.overall
    print(f"{overall.num_impressions:,} impressions, {overall.num_one_class:,} of one class left out")
    for name, found in overall.metrics.items():
        print(f"  {name:11}{found.mean:8.4f}   [{found.ci95[0]:.4f}, {found.ci95[1]:.4f}]")
    print(
        f"  recall over {report.retrieved.news_per_pool:,.0f} news; the index finds "
        f"{report.retrieved.index_recall:.1%} of exact search"
    )
    for name, group in report.groups.items():
        if group.num_impressions:
            print(f"  {name.replace('_', ' '):20}{group.num_impressions:>9,} impressions   AUC {_auc(group)}")


def _auc(group: Summary) -> str:
    found = group.metrics["auc"]
    return f"{found.mean:.4f} [{found.ci95[0]:.4f}, {found.ci95[1]:.4f}]"


def _require_same_text(run: Path, store: Store, model: Recommender) -> None:
    """A store whose tokens mean something else would give figures that mean nothing."""
    text = open_run(run).facts["text"]
    if model.news.reads_words and text["vocabulary"] != store.vocabulary:
        raise InputError(
            f"{store.path}: its words are numbered otherwise than those the run was trained with; evaluate on the "
            "run's own store"
        )
    tokenizer = () if model.news.reads_words else ("tokenizer",)
    for name in (*tokenizer, "refine", "fields", "segment_tokens", "body_segments"):
        if text["settings"][name] != store.manifest["settings"][name]:
            raise InputError(
                f"{store.path}: prepared with {name} {store.manifest['settings'][name]!r}, but the run was "
                f"trained with {text['settings'][name]!r}; prepare the log with the run's settings"
            )
