"""Raw logs to a store: read the logs, number the articles, refine and tokenize them, join timelines, write.

Everything streams through Parquet files in a scratch folder inside the unfinished store, so memory does not grow
with the log, and a store exists only once all of it is written.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import ibis.expr.types as ir
import pyarrow.parquet as pq
from ibis import _

from speedyfeed.checksums import sha256
from speedyfeed.data.bodies import BODIES, write_bodies
from speedyfeed.data.manifest import (
    MANIFEST,
    Manifest,
    NewsCounts,
    SetAside,
    SplitCounts,
    StoreCounts,
    StoreSettings,
    file_facts,
    read_manifest,
    write_manifest,
)
from speedyfeed.data.reader_options import ReaderOptions, reader_options_of
from speedyfeed.data.readers import open_logs, open_split
from speedyfeed.data.store import DOCUMENT_FREQUENCIES, WORD_TOKENS, Store, open_store
from speedyfeed.data.tables import SPLITS, TO_RANK, Logs
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder
from speedyfeed.preparation import timeline
from speedyfeed.preparation.config import EngineConfig, PrepareConfig, TextConfig
from speedyfeed.preparation.engine import Engine, open_engine
from speedyfeed.preparation.ingest import ingest_impressions, ingest_news, number_news
from speedyfeed.preparation.lost_negatives import may_lack_negatives, note_lost_negatives
from speedyfeed.preparation.news_parts import WrittenNews, write_news
from speedyfeed.preparation.splits import write_impressions, write_timelines
from speedyfeed.preparation.text import TextRules, first_paragraphs
from speedyfeed.preparation.tokens import Tokenizer, build_word_tokenizer, common_words
from speedyfeed.preparation.validation import set_aside
from speedyfeed.progress import Report, silent

BODIES_AT_ONCE = 4096
"""Full texts in memory while they are copied into a store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A store, and whether it was made just now."""

    store: Store
    is_new: bool


def prepare(
    logs_path: str | Path,
    store_path: str | Path,
    config: PrepareConfig,
    engine_config: EngineConfig | None = None,
    report: Report = silent,
    *,
    like: str | Path | None = None,
) -> Prepared:
    """Make the store of a log, or open it when it exists and is up to date.

    With `like`, text rules, document frequencies and word vocabulary are those of that store, so that models
    trained on it can read the new one.
    """
    logs_path, store_path = Path(logs_path), Path(store_path)
    options = reader_options_of(config)
    logs = open_logs(logs_path, config.format, options)
    if logs.options is None and options != ReaderOptions():
        raise InputError(
            f"{logs_path}: found logs of format {logs.format}, expected interactions for --tables, --columns, "
            "--charset, --dates, --events, --min-weight, --skip-broken, --split and --dev-from; leave these out"
        )
    if "train" not in (split.name for split in logs.splits):
        found = ", ".join(split.name for split in logs.splits)
        raise InputError(f"{logs_path}: found only {found}, expected a train split; add train/ to the logs")
    if config.validation is not None and "valid" in (split.name for split in logs.splits):
        raise InputError(
            f"{logs_path}: found --validation {config.validation} for a log with a validation split of its own, "
            "expected one of them; leave out the option"
        )
    earlier = None if like is None else open_store(like)
    rules = TextRules(config=config) if earlier is None else _rules_of(earlier, config)
    return _prepare(
        logs,
        logs_path,
        store_path,
        rules,
        engine_config or EngineConfig(),
        report,
        is_to_train=True,
        validation=config.validation,
        like=earlier,
    )


def prepare_split(
    logs_path: Path,
    store_path: Path,
    rules: TextRules,
    *,
    split: str | None = None,
    format: str | None = None,
    prefer: Sequence[str] = TO_RANK,
    options: ReaderOptions | None = None,
    report: Report = silent,
) -> Store:
    """Make a store of one split to rank, with the text rules of a trained model; needs no train split.

    The last split of the store is the one to rank: `split`, or the first preferred one in the logs. Options are
    for logs of interactions.
    """
    logs = open_split(logs_path, split, format, prefer=prefer, options=options)
    return _prepare(logs, logs_path, store_path, rules, EngineConfig(), report, is_to_train=False).store


def _prepare(
    logs: Logs,
    logs_path: Path,
    store_path: Path,
    rules: TextRules,
    engine_config: EngineConfig,
    report: Report,
    *,
    is_to_train: bool,
    validation: float | None = None,
    like: Store | None = None,
) -> Prepared:
    from speedyfeed.tokenizers import checksum_of, load_tokenizer

    config = rules.config
    encoder_tokenizer = load_tokenizer(config.encoder)
    Tokenizer(encoder_tokenizer, config.segment_tokens)  # refuses one that cannot be used, before any work
    settings = StoreSettings(
        format=logs.format,
        encoder=config.encoder,
        tokenizer=checksum_of(encoder_tokenizer),
        refine=config.refine,
        fields=tuple(config.fields),
        segment_tokens=config.segment_tokens,
        body_segments=config.body_segments,
        body_paragraphs=config.body_paragraphs,
        **asdict(logs.options) if logs.options else {},
        validation=validation,
        like=None if like is None else sha256(like.path / MANIFEST),
    )
    if like is not None and settings.tokenizer != like.manifest.settings.tokenizer:
        raise InputError(
            f"{like.path}: found tokens of another {config.encoder} than the one installed, expected the same; "
            "put that encoder back, or prepare without --like"
        )
    inputs = _fingerprint(logs, logs_path, report)
    if store_path.is_dir() and any(store_path.iterdir()):
        _require_same_origin(store_path, settings, inputs)
        return Prepared(store=open_store(store_path), is_new=False)
    with new_folder(store_path) as folder:
        scratch = folder / "scratch"
        scratch.mkdir()
        with open_engine(engine_config, scratch) as engine:
            built = _build(engine, logs, folder, rules, report, is_to_train, validation, like)
        shutil.rmtree(scratch)
        manifest = Manifest(
            settings=settings,
            inputs=inputs,
            splits=tuple(built.counts.splits),
            statistics=built.written.statistics,
            counts=built.counts,
            files=file_facts(folder),
        )
        write_manifest(folder, manifest)
    return Prepared(store=open_store(store_path), is_new=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Built:
    """Facts about the files of a store for its manifest."""

    counts: StoreCounts
    written: WrittenNews


def _build(
    engine: Engine,
    logs: Logs,
    folder: Path,
    rules: TextRules,
    report: Report,
    is_to_train: bool,
    validation: float | None,
    like: Store | None,
) -> _Built:
    """Write every file of a store but its manifest."""
    num_rows = ingest_news(logs.splits, engine.scratch / "news.parquet", report)
    num_both = sum(
        ingest_impressions(split, engine.scratch / f"{split.name}.parquet", report) for split in logs.splits
    )
    sources = _divide_splits(engine, logs, validation) if is_to_train else _sources(engine, logs)
    news = engine.open(engine.scratch / "news.parquet")
    in_train = timeline.referenced(engine.open(sources.files["train"])) if is_to_train else None
    numbers = number_news(engine, news, in_train)
    totals = engine.load(numbers.agg(train=_.is_first.sum().fill_null(0), changed=_.is_changed.sum().fill_null(0)))
    num_train = int(totals["train"][0].as_py())
    numbered = news.drop("news_id").join(numbers, "row").drop("row", "is_first", "is_changed")
    texts = engine.save(first_paragraphs(numbered, rules.config.body_paragraphs).order_by("news"), "texts")
    columns = ["news_id", "category", "subcategory", "title", "abstract"]
    has_times = all(split.has_times for split in logs.splits)
    listed = texts
    if is_to_train and has_times:
        splits = [engine.open(file) for file in sources.files.values()]
        listed = texts.left_join(timeline.first_shown(splits), "news_id")
        columns.append("first_shown")
    titles = engine.load(listed.order_by("news").select(*columns))
    pq.write_table(titles, folder / "news.parquet")
    if is_to_train:
        write_bodies(engine.reread("texts", BODIES_AT_ONCE), folder / BODIES)

    tokenizers = {"news": rules.config.encoder}
    vocabulary_size = None
    if is_to_train:
        if like is None:
            vocabulary = common_words(engine, texts.filter(_.news <= num_train), rules.config.fields)
            vocabulary_size = len(vocabulary)
            build_word_tokenizer(vocabulary).save_pretrained(folder / WORD_TOKENS)
        else:
            vocabulary_size = like.manifest.counts.vocabulary_size
            _copy_vocabulary(like, folder)
        tokenizers[WORD_TOKENS] = str(folder / WORD_TOKENS)
    num_measured = num_train if is_to_train else len(titles)
    written = write_news(engine, texts, len(titles), folder, rules, tokenizers, num_measured, report)

    ids = engine.save(numbers.select("news_id", "news"), "ids")
    counts = _write_splits(engine, sources, ids, folder, report, has_times=has_times)
    lost = [
        note
        for split in logs.splits
        if may_lack_negatives(counts[split.name])
        for note in note_lost_negatives(engine, split.name, engine.open(sources.files[split.name]), ids)
    ]
    if is_to_train:
        _require_users(logs, counts["train"])
        if written.num_empty == len(titles):
            names = ", ".join(rules.config.fields)
            raise InputError(
                f"{logs.splits[0].files[0]}: none of {len(titles)} articles has a word in {names}, expected "
                "texts to learn from; check the columns, or give other --fields"
            )
    news_counts = NewsCounts(
        read=num_rows,
        kept=len(titles),
        repeated=num_rows - len(titles),
        without_words=written.num_empty,
        in_train=num_train,
        changed=int(totals["changed"][0].as_py()),
    )
    store_counts = StoreCounts(
        news=news_counts,
        splits=counts,
        vocabulary_size=vocabulary_size,
        notes=(*(note for split in logs.splits for note in split.notes()), *lost),
        set_aside=sources.set_aside,
        clicked_and_skipped=num_both,
    )
    return _Built(counts=store_counts, written=written)


def _rules_of(earlier: Store, config: PrepareConfig) -> TextRules:
    """Text rules of an earlier store; refused beside text options, which they would replace."""
    changed = [field.name for field in fields(TextConfig) if getattr(config, field.name) != field.default]
    if changed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InputError(
            f"--like {earlier.path}: found {options} beside it, expected none of the text options: they are "
            "those of that store; leave them out"
        )
    encoder = earlier.manifest.settings.encoder
    return TextRules.of(earlier.text_facts, document_frequencies=earlier.document_frequencies, encoder=encoder)


def _copy_vocabulary(like: Store, folder: Path) -> None:
    """Copy the word tokenizer and the document frequencies of a store."""
    (folder / WORD_TOKENS).mkdir()
    for file in sorted(like.word_tokenizer.glob("*.json")):
        shutil.copyfile(file, folder / WORD_TOKENS / file.name)
    if like.document_frequencies.exists():
        shutil.copyfile(like.document_frequencies, folder / DOCUMENT_FREQUENCIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sources:
    """Ingested impressions of every split of a store."""

    files: dict[str, Path]
    """File of each split, in the order train, valid, dev, test."""
    whole_train: Path
    """File of all train impressions of the log, those set aside included."""
    set_aside: SetAside | None = None


def _sources(engine: Engine, logs: Logs) -> _Sources:
    files = {split.name: engine.scratch / f"{split.name}.parquet" for split in logs.splits}
    return _Sources(files=files, whole_train=engine.scratch / "train.parquet")


def _divide_splits(engine: Engine, logs: Logs, validation: float | None) -> _Sources:
    """Set a validation split aside from train, unless the log has one."""
    sources = _sources(engine, logs)
    if "valid" in sources.files:
        return sources
    train, valid = (engine.scratch / name for name in ("train-rest.parquet", "valid.parquet"))
    has_times = next(split.has_times for split in logs.splits if split.name == "train")
    aside = set_aside(engine, sources.whole_train, train, valid, validation, has_times=has_times)
    if aside is None:
        return sources
    files = sources.files | {"train": train, "valid": valid}
    ordered = {name: files[name] for name in SPLITS if name in files}
    return _Sources(files=ordered, whole_train=sources.whole_train, set_aside=aside)


def _write_splits(
    engine: Engine, sources: _Sources, ids: ir.Table, folder: Path, report: Report, *, has_times: bool
) -> dict[str, SplitCounts]:
    """Write every split; histories that the log does not give are the clicks of train before the split."""
    counts: dict[str, SplitCounts] = {}
    for name, source in sources.files.items():
        if name == "train":
            counts[name] = write_timelines(engine, source, ids, folder / name, report, has_times=has_times)
            continue
        is_from_train = name == "valid" and sources.set_aside is not None
        before = sources.files.get("train") if is_from_train else sources.whole_train
        train = before if "train" in sources.files else None
        counts[name] = write_impressions(
            engine, source, ids, folder / name, report, train=train, is_from_train=is_from_train
        )
    return counts


def _require_users(logs: Logs, count: SplitCounts) -> None:
    """Refuse to train on a log where no click is on an article with text."""
    if not count.kept["users"]:
        raise InputError(
            f"{logs.splits[0].files[0].parent}: no user left: of {count.read['clicks']} clicks and "
            f"{count.read['history_clicks']} history clicks none is on an article with text; "
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


def _require_same_origin(path: Path, settings: StoreSettings, inputs: dict[str, str]) -> None:
    """Refuse a folder that is no store, or a store of another version, other settings or other logs."""
    manifest = read_manifest(path)
    remedy = "give another STORE or remove this one"
    known = asdict(manifest.settings)
    for name, now in asdict(settings).items():
        if known[name] != now:
            raise InputError(f"{path}: was prepared with {name} {known[name]!r}, asked for {now!r}; {remedy}")
    if manifest.inputs != inputs:
        raise InputError(f"{path}: was prepared from other logs than these; {remedy}")
