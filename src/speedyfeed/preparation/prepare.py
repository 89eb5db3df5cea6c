"""Raw logs to a store: check what is asked for, and make the store, or open it when it exists and is up to date.

A store exists only once all of it is written.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from speedyfeed.checksums import sha256
from speedyfeed.data.manifest import (
    MANIFEST,
    TEXT_VERSION,
    Manifest,
    StoreSettings,
    file_facts,
    read_manifest,
    write_manifest,
)
from speedyfeed.data.reader_options import ReaderOptions, reader_options_of
from speedyfeed.data.readers import open_logs, open_split
from speedyfeed.data.store import Store, open_store
from speedyfeed.data.tables import TO_RANK, Logs
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder
from speedyfeed.preparation.build import Plan, build
from speedyfeed.preparation.config import EngineConfig, PrepareConfig, TextConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.text import TextRules
from speedyfeed.preparation.tokens import Tokenizer
from speedyfeed.progress import Report, silent


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
    plan = Plan(logs=logs, rules=rules, is_to_train=True, validation=config.validation, like=earlier)
    return _prepare(plan, logs_path, store_path, engine_config or EngineConfig(), report)


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
    rules.note_version()
    logs = open_split(logs_path, split, format, prefer=prefer, options=options)
    plan = Plan(logs=logs, rules=rules, is_to_train=False)
    return _prepare(plan, logs_path, store_path, EngineConfig(), report).store


def _prepare(
    plan: Plan, logs_path: Path, store_path: Path, engine_config: EngineConfig, report: Report
) -> Prepared:
    settings = _settings_of(plan)
    inputs = _fingerprint(plan.logs, logs_path, report)
    if store_path.is_dir() and any(store_path.iterdir()):
        _require_same_origin(store_path, settings, inputs)
        return Prepared(store=open_store(store_path), is_new=False)
    with new_folder(store_path) as folder:
        scratch = folder / "scratch"
        scratch.mkdir()
        with open_engine(engine_config, scratch) as engine:
            built = build(engine, plan, folder, report)
        shutil.rmtree(scratch)
        manifest = Manifest(
            settings=settings,
            inputs=inputs,
            splits=tuple(built.counts.splits),
            statistics=built.statistics,
            counts=built.counts,
            files=file_facts(folder),
        )
        write_manifest(folder, manifest)
    return Prepared(store=open_store(store_path), is_new=True)


def _settings_of(plan: Plan) -> StoreSettings:
    """Settings of the store for its manifest; a tokenizer that cannot be used is refused before any work."""
    from speedyfeed.tokenizers import checksum_of, load_tokenizer

    config, logs, like = plan.rules.config, plan.logs, plan.like
    encoder_tokenizer = load_tokenizer(config.encoder)
    Tokenizer(encoder_tokenizer, config.segment_tokens)
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
        validation=plan.validation,
        like=None if like is None else sha256(like.path / MANIFEST),
        text_version=TEXT_VERSION,
    )
    if like is not None and settings.tokenizer != like.manifest.settings.tokenizer:
        raise InputError(
            f"{like.path}: found tokens of another {config.encoder} than the one installed, expected the same; "
            "put that encoder back, or prepare without --like"
        )
    return settings


def _rules_of(earlier: Store, config: PrepareConfig) -> TextRules:
    """Text rules of an earlier store; refused beside text options, which they would replace."""
    changed = [field.name for field in fields(TextConfig) if getattr(config, field.name) != field.default]
    if changed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InputError(
            f"--like {earlier.path}: found {options} beside it, expected none of the text options: they are "
            "those of that store; leave them out"
        )
    settings = earlier.manifest.settings
    if settings.text_version != TEXT_VERSION:
        raise InputError(
            f"--like {earlier.path}: found tokens of text version {settings.text_version}, expected "
            f"{TEXT_VERSION}, as texts are read now; prepare without --like, and train --from the earlier run"
        )
    return TextRules.of(
        earlier.text_facts, document_frequencies=earlier.document_frequencies, encoder=settings.encoder
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
