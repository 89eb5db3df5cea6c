"""Indexes on disk: open what was saved, or build once and open from then on."""

import dataclasses
import hashlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np

from speedyfeed.checksums import verify_checksums
from speedyfeed.errors import InputError
from speedyfeed.files import read_json
from speedyfeed.retrieval.hnsw import HnswConfig, HnswIndex
from speedyfeed.retrieval.index import FACTS, BuildIndex, Embeddings, ExactIndex, Ids, Index

log = logging.getLogger(__name__)


def open_index(folder: str | Path) -> Index:
    """Open the index that was saved in a folder, of whichever kind it is."""
    folder = Path(folder)
    verify_checksums(folder, "remove the folder to rebuild it")
    try:
        facts = read_json(folder / FACTS)
        if facts["kind"] == "exact":
            return ExactIndex.open(folder)
        return HnswIndex.open(folder, facts)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{folder}: not an index of this version; remove the folder to rebuild it") from error


def cached_in(folder: Path) -> BuildIndex:
    """Make a `BuildIndex` that caches its `HnswIndex` in a folder and opens it again for the same embeddings.

    The folder holds one index: the latest.
    """

    def build(ids: Ids, embeddings: Embeddings) -> Index:
        path = folder / _fingerprint(ids, embeddings)
        index = open_cached(path)
        if index is None:
            index = HnswIndex.build(ids, embeddings)
            shutil.rmtree(folder, ignore_errors=True)
            index.save(path)
        return index

    return build


def open_cached(folder: Path) -> HnswIndex | None:
    """Open an index that can be rebuilt: None where there is none; a damaged one is removed, and None too."""
    if not folder.exists():
        return None
    try:
        index = open_index(folder)
        if isinstance(index, HnswIndex):
            return index
    except InputError as error:
        log.warning("%s: cannot be opened and is rebuilt (%s)", folder, error)
    shutil.rmtree(folder)
    return None


def _fingerprint(ids: Ids, embeddings: Embeddings) -> str:
    """Hash of ids, embeddings and index settings."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(HnswConfig())).encode())
    digest.update(np.ascontiguousarray(ids, np.int64).data)
    digest.update(np.ascontiguousarray(embeddings, np.float32).data)
    return digest.hexdigest()[:16]
