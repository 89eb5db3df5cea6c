"""Prepare raw logs: refine and tokenize them into a store, which training and evaluation open in milliseconds.

Example: speedyfeed prepare logs/ store/ --encoder minilm
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from speedyfeed.data.store import Store
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.progress import progress_bars


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """Folder of raw logs with train/ and dev/ (and test/), or with items.csv and interactions.csv; docs/formats.md
    lists all formats."""
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Folder of the store to make; one that is up to date is left as it is."""
    like: Path | None = None
    """Earlier store whose text settings and word vocabulary are used, so that models trained on it can use this
    one; the options of the text cannot be given with it."""
    text: Annotated[PrepareConfig, arg(name="")] = field(default_factory=PrepareConfig)
    engine: Annotated[EngineConfig, arg(name="")] = field(default_factory=EngineConfig)
    json: bool = False
    """Print the counts of what was read, kept and dropped as one JSON object."""


def run(arguments: Arguments) -> None:
    from speedyfeed.preparation.prepare import prepare

    with progress_bars() as report:
        prepared = prepare(
            arguments.logs, arguments.store, arguments.text, arguments.engine, report, like=arguments.like
        )
    if arguments.json:
        print(json.dumps(summary(prepared.store)))
    else:
        print_summary(prepared.store)
        print(f"{arguments.store} is {'ready' if prepared.is_new else 'up to date'}")


def summary(store: Store) -> dict[str, Any]:
    """Counts of everything read, kept and dropped, of the articles and of each split."""
    counts = store.manifest.counts
    splits = counts.splits.items()
    return {
        "read": {"news": counts.news.read, **{name: split.read for name, split in splits}},
        "kept": {"news": counts.news.kept, **{name: split.kept for name, split in splits}},
        "dropped": {"repeated_news": counts.news.repeated, **{name: split.dropped for name, split in splits}},
        "changed_news": counts.news.changed,
        "texts_with_markup": counts.news.texts_with_markup,
        "texts_decomposed": counts.news.texts_decomposed,
        "clicked_and_skipped": counts.clicked_and_skipped,
        "news_without_words": counts.news.without_words,
        "vocabulary": counts.vocabulary_size,
        "set_aside": None if counts.set_aside is None else dataclasses.asdict(counts.set_aside),
        "notes": list(counts.notes),
    }


def print_summary(store: Store) -> None:
    """Print what was read, kept and dropped, split by split."""
    counts, settings = store.manifest.counts, store.manifest.settings
    news = counts.news
    print(f"logs in format {settings.format}, tokens of {settings.encoder}")
    for note in counts.notes:
        print(note)
    print(
        f"articles: {news.read:,} read, {news.kept:,} kept, {news.repeated:,} repeated, "
        f"{news.without_words:,} without a word; a vocabulary of {counts.vocabulary_size or 0:,} words"
    )
    if news.changed:
        print(f"articles whose text changed: {news.changed:,}; the text of the last row is used")
    if news.texts_with_markup:
        print(
            f"titles, abstracts and bodies with HTML: {news.texts_with_markup:,}; tags and entities are taken out"
        )
    if news.texts_decomposed:
        print(f"texts whose accents are characters of their own: {news.texts_decomposed:,}; combined (NFC)")
    if counts.clicked_and_skipped:
        print(
            f"articles both clicked and skipped in one impression: {counts.clicked_and_skipped:,}; clicked, once"
        )
    print(_validation_line(store))
    kinds = ("history_clicks", "clicks", "candidates")
    for name, split in counts.splits.items():
        print(f"{name}: {split.read['impressions']:,} impressions of {split.read['users']:,} users")
        for kind in kinds:
            total, lost = split.read[kind], split.dropped[f"{kind}_without_text"]
            share = f" ({lost / total:.1%})" if lost else ""
            print(f"  {_plain(kind):16}{total:>13,} read {lost:>13,} without text{share}")
        for title, facts in (("kept", split.kept), ("dropped", split.dropped)):
            shown = {f"{kind}_without_text" for kind in kinds}
            rest = [f"{count:,} {_plain(kind)}" for kind, count in facts.items() if kind not in shown]
            if rest:
                print(f"  {title}: {', '.join(rest)}")


def _validation_line(store: Store) -> str:
    """Where the validation split comes from."""
    aside = store.manifest.counts.set_aside
    if aside is None:
        return f"validation: {'a split of the log' if 'valid' in store.splits else 'none'}"
    if aside.first_time is None:
        return f"validation: the last impressions of {aside.impressions:,} train users set aside"
    return (
        f"validation: the last {aside.impressions:,} train impressions set aside, {aside.first_time} to "
        f"{aside.last_time}"
    )


def _plain(name: str) -> str:
    return name.replace("_", " ")
