"""Opens the feed of a finished run: its model, its graphs, and the precision of encoding.

RUN/model -> Recommender -> graphs-FINGERPRINT (cached), precision.json (measured once) -> Feed
"""

import hashlib
import logging
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from speedyfeed.errors import InputError, command
from speedyfeed.files import new_file, read_json, write_json
from speedyfeed.pretrained import Recommender
from speedyfeed.retrieval.storage import open_cached
from speedyfeed.runtime import PRECISIONS, Precision, choose_precision
from speedyfeed.serving.feed import Feed
from speedyfeed.serving.live_catalogue import GraphConfig, build_index
from speedyfeed.serving.micro_batcher import BATCH, MicroBatcher

log = logging.getLogger(__name__)

PRECISION = "precision.json"
"""File that records the measured precision of encoding."""


def open_feed(
    run: Path, cache: Path, batcher: MicroBatcher, config: GraphConfig | None = None, *, precision: str = "fp32"
) -> Feed:
    """Open the feed of a finished run; its HNSW graphs, if it needs any, are cached in the folder `cache`."""
    run = run.resolve()  # a link that changes while files are read must not mix two runs
    if not run.is_dir():
        raise InputError(f"{run}: no such folder; train a run with: {command('train', 'STORE', run)}")
    model = Recommender.from_pretrained(run)
    if model.news.is_user_dependent:
        raise InputError(
            f"{run}: encoder {model.config.news.encoder!r} computes user-dependent article embeddings, "
            "which cannot be indexed and served; use speedyfeed recommend, or serve another run"
        )
    if model.catalogue is None:
        raise InputError(f"{run}: holds no articles to recommend; expected a run whose training has finished")
    fingerprint = _fingerprint(run)
    chosen = _choose_precision(precision, model, fingerprint, cache / PRECISION)
    cached = cache / f"graphs-{fingerprint}"
    index = open_cached(cached)
    if index is not None and len(index) == len(model.catalogue):
        return Feed(model, fingerprint, index, batcher, chosen)
    built = build_index(model.catalogue.embeddings_VD.numpy(), config or GraphConfig())
    if built is not None:
        shutil.rmtree(cached, ignore_errors=True)
        built.save(cached)
        built = open_cached(cached) or built  # mapped, as at the next start
    return Feed(model, fingerprint, built, batcher, chosen)


def _choose_precision(name: str, model: Recommender, fingerprint: str, measured: Path) -> Precision:
    """Choose the precision of encoding; `auto` measures it once for each model and machine, and records it."""
    device = torch.device("cpu")
    catalogue = model.catalogue
    assert catalogue is not None
    if name != "auto":
        return choose_precision(name, device, lambda: None)
    key = [fingerprint, torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()]
    with suppress(OSError, ValueError, KeyError, TypeError):  # then it is measured again
        known = read_json(measured)
        if known["key"] == key and known["name"] in PRECISIONS:
            log.info("precision %s: as measured at an earlier start", known["name"])
            return Precision(name=known["name"], device=device, reason=str(known["reason"]))
    texts = [(title, title, "") for title in catalogue.titles[:BATCH]] or [("An article", "", "")]

    def encode() -> None:
        model.encode_news(texts)

    chosen = choose_precision(name, device, encode, seconds=1)
    with (
        suppress(OSError, InputError),
        new_file(measured) as partial,
    ):  # where nothing can be written, the next start measures
        write_json(partial, {"key": key, "name": chosen.name, "reason": chosen.reason})
    return chosen


def remove_other_graphs(cache: Path, fingerprint: str) -> None:
    """Delete the cached graphs of all models but this one."""
    for folder in cache.glob("graphs-*"):
        if folder.name != f"graphs-{fingerprint}":
            shutil.rmtree(folder, ignore_errors=True)


def _fingerprint(run: Path) -> str:
    """Hash of all files of a run that determine its embeddings and its catalogue, 16 hex digits."""
    files = [file for file in (run / "model").rglob("*") if file.is_file()] or list(run.glob("**/*.*"))
    whole = hashlib.sha256()
    for file in sorted([*files, *run.glob("document_frequencies.parquet")]):
        whole.update(file.relative_to(run).as_posix().encode())
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()[:16]
