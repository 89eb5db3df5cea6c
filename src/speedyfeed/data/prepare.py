"""Raw logs to a store: read, number the news, refine, tokenize, join timelines, write.

Everything streams through Parquet files in a scratch folder inside the unfinished store, so memory does not grow
with the log, and a store exists only once all of it is written.
"""

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ibis.expr.types as ir
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.data import refine
from speedyfeed.data.engine import Engine, EngineConfig, open_engine
from speedyfeed.data.ingest import ingest_impressions, ingest_news, number_news
from speedyfeed.data.readers import open_logs
from speedyfeed.data.splits import SplitCounts, write_impressions, write_timelines
from speedyfeed.data.store import MANIFEST, STORE_VERSION, Store, file_facts, open_store, read_manifest, sha256
from speedyfeed.data.tables import FIELDS, Logs
from speedyfeed.data.tokens import Segments, Tokenizer, segments_of_heads, segments_of_words, write_segments
from speedyfeed.data.vocabulary import build_word_tokenizer, common_words
from speedyfeed.errors import InputError
from speedyfeed.folders import new_folder, write_json
from speedyfeed.progress import Report, counted, silent

SEGMENT_WORDS = 32  # the paper's; what does not fit into the segment's tokens is cut by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig:
    """How text becomes tokens."""

    plm: str = "minilm"
    """Encoder whose tokenizer is used: a name, a folder or a Hub id."""
    format: str | None = None
    """Format of the logs; recognised from the folder when not given."""
    refine: Literal["bm25", "none"] = "bm25"
    """bm25 keeps the most telling words of each field, none keeps its head."""
    fields: tuple[str, ...] = FIELDS
    """Which of title, abstract and body are read, in this order."""
    segment_tokens: int = 32
    """Tokens per segment at most, special tokens included."""
    body_segments: int = 1
    """Segments a long body may fill."""

    def __post_init__(self) -> None:
        if not self.fields or not set(self.fields) <= set(FIELDS) or len(set(self.fields)) < len(self.fields):
            raise InputError(f"--fields {' '.join(self.fields)}: expected some of {' '.join(FIELDS)}, each once")
        if self.body_segments < 1:
            raise InputError(f"--body-segments {self.body_segments}: expected at least 1")

    @property
    def parts(self) -> tuple[int, ...]:
        """How many segments each field may fill."""
        return tuple(self.body_segments if field == "body" else 1 for field in self.fields)


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
    from speedyfeed.models.names import load_tokenizer

    logs = open_logs(logs_path, config.format)
    if "train" not in (split.name for split in logs.splits):
        found = ", ".join(split.name for split in logs.splits)
        raise InputError(f"{logs_path}: found only {found}, expected a train split to learn from")
    plm_tokenizer = load_tokenizer(config.plm)
    tokenizer = Tokenizer(plm_tokenizer, config.segment_tokens)
    settings = dataclasses.asdict(config) | {"format": logs.format, "fields": list(config.fields)}
    vocabulary = hashlib.sha256(plm_tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    origin = {
        "store_version": STORE_VERSION,
        "settings": settings | {"tokenizer": vocabulary},
        "inputs": _fingerprint(logs, logs_path, report),
    }
    if store_path.is_dir() and any(store_path.iterdir()):
        _require_same_origin(store_path, origin)
        return Prepared(store=open_store(store_path), is_new=False)
    with new_folder(store_path) as folder:
        scratch = folder / "scratch"
        scratch.mkdir()
        with open_engine(engine_config or EngineConfig(), scratch) as engine:
            facts = _build(engine, logs, folder, config, tokenizer, report)
        shutil.rmtree(scratch)
        write_json(folder / MANIFEST, origin | facts | {"files": file_facts(folder)})
    return Prepared(store=open_store(store_path), is_new=True)


def _build(
    engine: Engine, logs: Logs, folder: Path, config: PrepareConfig, tokenizer: Tokenizer, report: Report
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

    (folder / "news").mkdir()
    segments, statistics = _segments(engine, texts, len(titles), folder, config, report)
    num_empty = write_segments(folder / "news", segments(tokenizer), tokenizer, len(titles))
    (folder / "words").mkdir()
    num_train = engine.load(news.filter(_.split == "train").agg(news=_.news_id.nunique()))["news"][0].as_py()
    words = common_words(engine, texts.filter(_.news <= num_train), config.fields)  # numbered train news first
    word_tokenizer = build_word_tokenizer(words)
    word_tokenizer.save_pretrained(folder / "words")
    word_segments = Tokenizer(word_tokenizer, config.segment_tokens)
    write_segments(folder / "words", segments(word_segments), word_segments, len(titles))

    ids = engine.save(numbers.select("news_id", "news"), "ids")
    counts: dict[str, SplitCounts] = {}
    for split in logs.splits:
        write = write_timelines if split.name == "train" else write_impressions
        source = engine.scratch / f"{split.name}.parquet"
        counts[split.name] = write(engine, source, ids, folder / split.name, report)
    if not counts["train"].kept["users"]:
        raise InputError(
            f"{logs.splits[0].files[0].parent}: no user left: of {counts['train'].read['clicks']} clicks and "
            f"{counts['train'].read['history_clicks']} history clicks none is on a news with text; "
            "check that the news file belongs to these impressions"
        )
    return {
        "splits": [split.name for split in logs.splits],
        "statistics": statistics,
        "counts": {
            "read": {"news": num_rows, **{name: count.read for name, count in counts.items()}},
            "kept": {"news": len(titles), **{name: count.kept for name, count in counts.items()}},
            "dropped": {
                "repeated_news": num_rows - len(titles),
                **{name: count.dropped for name, count in counts.items()},
            },
            "news_without_words": num_empty,
            "vocabulary": len(words),
        },
    }


def _segments(
    engine: Engine, texts: ir.Table, num_news: int, folder: Path, config: PrepareConfig, report: Report
) -> tuple[Callable[[Tokenizer], Iterator[Segments]], dict[str, Any]]:
    """The segments of all news in order, and what refinement must remember to treat later news alike."""
    if config.refine == "none":
        engine.save(texts.order_by("news").select("news", *config.fields), "heads")

        def heads(tokenizer: Tokenizer) -> Iterator[Segments]:
            batches = counted(engine.reread("heads", batch_rows=1 << 13), report, "tokenize", num_news)
            return segments_of_heads(batches, tokenizer, fields=config.fields, parts=config.parts)

        return heads, {}
    report("count words", 0, 0)
    counts = refine.count_words(engine, texts, config.fields)
    statistics = refine.measure_words(engine, counts, num_news, len(config.fields))
    frequencies = engine.load(statistics.frequencies.order_by("word"))
    pq.write_table(frequencies, folder / "words.parquet")
    report("choose words", 0, 0)
    limits = [SEGMENT_WORDS * part for part in config.parts]
    engine.save(refine.top_words(counts, statistics, limits).order_by("news", "field", "first"), "words")

    def refined(tokenizer: Tokenizer) -> Iterator[Segments]:
        batches = counted(engine.reread("words"), report, "tokenize")
        return segments_of_words(batches, tokenizer, segment_words=SEGMENT_WORDS)

    return refined, {"num_news": num_news, "mean_words": statistics.mean_words}


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
