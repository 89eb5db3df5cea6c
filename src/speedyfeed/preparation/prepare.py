"""Raw logs to a store: read, number the news, refine, tokenize, join timelines, write.

Everything streams through Parquet files in a scratch folder inside the unfinished store, so memory does not grow
with the log, and a store exists only once all of it is written.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data.readers import open_logs, open_split
from speedyfeed.data.store import (
    MANIFEST,
    STORE_VERSION,
    WORDS,
    Store,
    file_facts,
    open_store,
    read_manifest,
    sha256,
)
from speedyfeed.data.tables import TO_RANK, Logs
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, write_json
from speedyfeed.preparation.engine import Engine, EngineConfig, open_engine
from speedyfeed.preparation.ingest import ingest_impressions, ingest_news, number_news
from speedyfeed.preparation.splits import SplitCounts, write_impressions, write_timelines
from speedyfeed.preparation.text import TextConfig, TextRules, write_news
from speedyfeed.preparation.tokens import Tokenizer
from speedyfeed.preparation.vocabulary import build_word_tokenizer, common_words
from speedyfeed.progress import Report, silent


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig(TextConfig):
    """What is read, and how text becomes tokens."""

    format: str | None = None
    """Format of the logs; recognised from the folder when not given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A store, and whether it had to be made."""

    store: Store
    is_new: bool


def prepare(
    logs_path: Path,
    store_path: Path,
    config: PrepareConfig,
    engine_config: EngineConfig | None = None,
    report: Report = silent,
) -> Prepared:
    """Make the store of a log, or open it when it is there and up to date."""
    logs = open_logs(logs_path, config.format)
    if "train" not in (split.name for split in logs.splits):
        found = ", ".join(split.name for split in logs.splits)
        raise InputError(f"{logs_path}: found only {found}, expected a train split to learn from")
    rules = TextRules(config=config)
    return _prepare(logs, logs_path, store_path, rules, engine_config or EngineConfig(), report, is_to_learn=True)


def prepare_split(
    logs_path: Path,
    store_path: Path,
    rules: TextRules,
    *,
    split: str | None = None,
    format: str | None = None,
    prefer: Sequence[str] = TO_RANK,
    report: Report = silent,
) -> Store:
    """A store to rank one split from, with a model whose news were treated by `rules`; needs no train split.

    Its last split is the one to rank: `split`, or the preferred one the logs have.
    """
    logs = open_split(logs_path, split, format, prefer=prefer)
    return _prepare(logs, logs_path, store_path, rules, EngineConfig(), report, is_to_learn=False).store


def _prepare(
    logs: Logs,
    logs_path: Path,
    store_path: Path,
    rules: TextRules,
    engine_config: EngineConfig,
    report: Report,
    *,
    is_to_learn: bool,
) -> Prepared:
    from speedyfeed.tokenizers import checksum_of, load_tokenizer

    config = rules.config
    plm_tokenizer = load_tokenizer(config.plm)
    tokenizer = Tokenizer(plm_tokenizer, config.segment_tokens)
    settings = dataclasses.asdict(config) | {"format": logs.format, "fields": list(config.fields)}
    origin = {
        "store_version": STORE_VERSION,
        "settings": settings | {"tokenizer": checksum_of(plm_tokenizer)},
        "inputs": _fingerprint(logs, logs_path, report),
    }
    if store_path.is_dir() and any(store_path.iterdir()):
        _require_same_origin(store_path, origin)
        return Prepared(store=open_store(store_path), is_new=False)
    with new_folder(store_path) as folder:
        scratch = folder / "scratch"
        scratch.mkdir()
        with open_engine(engine_config, scratch) as engine:
            facts = _build(engine, logs, folder, rules, tokenizer, report, is_to_learn=is_to_learn)
        shutil.rmtree(scratch)
        write_json(folder / MANIFEST, origin | facts | {"files": file_facts(folder)})
    return Prepared(store=open_store(store_path), is_new=True)


def _build(
    engine: Engine,
    logs: Logs,
    folder: Path,
    rules: TextRules,
    tokenizer: Tokenizer,
    report: Report,
    *,
    is_to_learn: bool,
) -> dict[str, Any]:
    """Write every file of a store but its manifest; returns what the manifest says of them."""
    num_rows = ingest_news(logs.splits, engine.scratch / "news.parquet", report)
    for split in logs.splits:
        ingest_impressions(split, engine.scratch / f"{split.name}.parquet", report)
    news = engine.open(engine.scratch / "news.parquet")
    numbers = number_news(engine, news, logs.splits)
    texts = engine.save(
        news.drop("news_id", "split", "split_row").join(numbers, "row").drop("row").order_by("news"), "texts"
    )
    titles = engine.load(texts.order_by("news").select("news_id", "category", "subcategory", "title"))
    pq.write_table(titles, folder / "news.parquet")

    tokenizers = {"news": tokenizer}
    vocabulary: dict[str, int] = {}
    if is_to_learn:
        num_train = engine.load(news.filter(_.split == "train").agg(news=_.news_id.nunique()))["news"][0].as_py()
        of_train = texts.filter(_.news <= num_train)  # they are numbered first
        words = common_words(engine, of_train, rules.config.fields)
        vocabulary["vocabulary"] = len(words)
        word_tokenizer = build_word_tokenizer(words)
        word_tokenizer.save_pretrained(folder / WORDS)
        tokenizers[WORDS] = Tokenizer(word_tokenizer, rules.config.segment_tokens)
    written = write_news(engine, texts, len(titles), folder, rules, tokenizers, report)

    ids = engine.save(numbers.select("news_id", "news"), "ids")
    counts: dict[str, SplitCounts] = {}
    for split in logs.splits:
        source, place = engine.scratch / f"{split.name}.parquet", folder / split.name
        if split.name == "train":
            counts["train"] = write_timelines(engine, source, ids, place, report)
        else:
            has_timelines = "train" in counts
            counts[split.name] = write_impressions(engine, source, ids, place, report, has_timelines=has_timelines)
    if is_to_learn:
        _require_users(logs, counts["train"])
    return {
        "splits": [split.name for split in logs.splits],
        "statistics": written.statistics,
        "counts": {
            "read": {"news": num_rows, **{name: count.read for name, count in counts.items()}},
            "kept": {"news": len(titles), **{name: count.kept for name, count in counts.items()}},
            "dropped": {
                "repeated_news": num_rows - len(titles),
                **{name: count.dropped for name, count in counts.items()},
            },
            "news_without_words": written.num_empty,
            **vocabulary,
        },
    }


def _require_users(logs: Logs, count: SplitCounts) -> None:
    """Refuse to learn from a log none of whose clicks is on a news with text."""
    if not count.kept["users"]:
        raise InputError(
            f"{logs.splits[0].files[0].parent}: no user left: of {count.read['clicks']} clicks and "
            f"{count.read['history_clicks']} history clicks none is on a news with text; "
            "check that the news file belongs to these impressions"
        )


def _fingerprint(logs: Logs, folder: Path, report: Report) -> dict[str, str]:
    """Checksum of every input file, by its name below the folder of logs."""
    files = sorted({file for split in logs.splits for file in split.files})
    sums: dict[str, str] = {}
    for done, file in enumerate(files):
        report("check inputs", done, len(files))
        if file.is_file():
            sums[file.relative_to(folder).as_posix()] = sha256(file)
    return sums


def _require_same_origin(path: Path, origin: dict[str, Any]) -> None:
    """Refuse a folder that is no store, or one of another version, other settings or another log."""
    manifest = read_manifest(path)
    remedy = "give another STORE or remove this one"
    for name, now in origin["settings"].items():
        before = manifest["settings"].get(name)
        if before != now:
            raise InputError(f"{path}: was prepared with {name} {before!r}, asked for {now!r}; {remedy}")
    if manifest["inputs"] != origin["inputs"]:
        raise InputError(f"{path}: was prepared from other logs than these; {remedy}")
