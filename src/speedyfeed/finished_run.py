"""A finished run and the data to evaluate it on, opened or prepared on the fly.

    RUN            --open_finished_run--> FinishedRun
    STORE or LOGS  --open_data--> EvaluationData: a split with the run's tokens

Raw logs are prepared with the settings of the run's own store into a temporary folder, so that every text is
treated as in training. A log of interactions is one split then: how training split its own log is no matter.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.manifest import MANIFEST
from speedyfeed.data.store import Impressions, Store, open_store
from speedyfeed.data.tables import TO_RANK, choose_split
from speedyfeed.encoding.inputs import Articles
from speedyfeed.errors import InputError
from speedyfeed.preparation.prepare import prepare_split
from speedyfeed.pretrained import Recommender
from speedyfeed.training.run_folder import RUN, fingerprint, open_run

log = logging.getLogger(__name__)

USER = "user_id"
_SAME_TEXT = ("refine", "fields", "segment_tokens", "body_segments", "body_paragraphs", "text_version")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """The recommender of a finished run, and what is needed to evaluate it."""

    path: Path
    """Folder of the run, or of the saved recommender."""
    model: Recommender
    """The trained recommender."""
    articles: Articles
    """Prepares raw articles like those of the training data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationData:
    """The split of a store that a run is evaluated on."""

    store: Store
    """The store, prepared like that of the run."""
    split: str
    """Name of the split: dev or test."""
    uses_words: bool
    """Whether the model takes the words of the store, not its tokens."""

    @property
    def impressions(self) -> Impressions:
        """Impressions of the split."""
        return self.store.impressions(self.split)

    def load_ids(self) -> pa.ChunkedArray:
        """Ids of the impressions, in the order of the log."""
        return self.store.load_impressions(self.split)["impression_id"]

    def load_users(self) -> pa.ChunkedArray:
        """Id of the user of each impression, in the order of the log."""
        return self.store.load_impressions(self.split)[USER]

    def number_users(self) -> NDArray[np.int64]:
        """Number of the user of each impression: the same for all impressions of a user."""
        return number_users(self.load_users())


def open_finished_run(path: str | Path) -> FinishedRun:
    """Load the recommender of a finished run, or one that was saved in a folder or on the Hub."""
    path = Path(path)
    model = Recommender.from_pretrained(path)
    if not isinstance(model.news.packer, Articles):
        raise InputError(
            f"{path}: holds no text.json, which says how its articles were prepared; if it is a run, remove "
            f"{path}/model and resume it, which writes the model again"
        )
    return FinishedRun(path=path, model=model, articles=model.news.packer)


@contextmanager
def open_data(
    finished: FinishedRun,
    path: str | Path | None,
    *,
    split: str | None = None,
    format: str | None = None,
    prefer: Sequence[str] = TO_RANK,
    report: progress.Report = progress.silent,
) -> Iterator[EvaluationData]:
    """Open a split of a store, or prepare one of raw logs for the duration of the block.

    Without a path, it is a split of the store that the run was trained on. Without `split`, it is the first of
    `prefer` that exists.
    """
    path = None if path is None else Path(path)
    if path is not None and not (path / MANIFEST).exists():
        with TemporaryDirectory(prefix="speedyfeed-") as folder:
            rules = finished.articles.rules
            store_path = Path(folder) / "store"
            store = prepare_split(
                path,
                store_path,
                rules,
                split=split,
                format=format,
                prefer=prefer,
                options=finished.articles.text.settings.reader_options,
                report=report,
            )
            _refuse_training_log(finished, store, path)
            for note in store.manifest.counts.notes:
                log.warning("%s", note)
            # The rules are the run's, so the tokens of the store are words where the run uses words.
            yield EvaluationData(store=store, split=store.splits[-1], uses_words=False)
        return
    if path is None:
        own = training_store(finished.path)
        if own is None:
            raise InputError(
                f"{finished.path}: the store it was trained on is missing or has changed; give STORE or LOGS"
            )
        store = own
    else:
        store = open_store(path)
        _require_same_text(finished, store)
    yield EvaluationData(
        store=store,
        split=choose_split(store.path, store.splits, split, prefer=prefer),
        uses_words=finished.model.news.uses_words,
    )


def training_store(path: Path) -> Store | None:
    """The store that a run was trained on; None if it is missing or has changed. Damaged files raise an error."""
    if not (path / RUN).exists():
        return None
    facts = open_run(path).facts.store
    store_path = Path(facts.path)
    if not (store_path / MANIFEST).exists() or fingerprint(store_path) != facts.fingerprint:
        return None
    return open_store(store_path)


def _refuse_training_log(finished: FinishedRun, store: Store, path: Path) -> None:
    """Refuse to rank all clicks of the log of interactions that a run learned from."""
    own = training_store(finished.path) if store.manifest.settings.format == "interactions" else None
    if own is not None and own.manifest.inputs == store.manifest.inputs:
        raise InputError(
            f"{path}: found the log that {finished.path} was trained on, expected a later one; leave it out to "
            "evaluate on what its store holds out"
        )


def number_users(ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers that are equal where ids are."""
    return np.asarray(ids.combine_chunks().dictionary_encode().indices.to_numpy(), np.int64)


def days_of(store: Store, split: str) -> NDArray[np.int64]:
    """Day of each impression of a split, counted from 1970."""
    times = store.load_impressions(split)["time"]
    return np.asarray(times.cast(pa.date32()).cast(pa.int32()).to_numpy(), np.int64)


def _require_same_text(finished: FinishedRun, store: Store) -> None:
    """Raise unless the texts of a store were prepared like those of the run."""
    remedy = "give the logs themselves, which are then prepared with the run's settings"
    known, found = finished.articles.text, store.text_facts
    if finished.model.news.uses_words:
        if known.vocabulary_checksum != found.vocabulary_checksum:
            raise InputError(
                f"{store.path}: its word vocabulary differs from the one the run was trained with; {remedy}"
            )
    elif known.settings.tokenizer != found.settings.tokenizer:
        raise InputError(f"{store.path}: holds tokens of another encoder than the run was trained with; {remedy}")
    for name in _SAME_TEXT:
        theirs, ours = getattr(found.settings, name), getattr(known.settings, name)
        if theirs != ours:
            raise InputError(
                f"{store.path}: prepared with {name} {theirs!r}, but the run was trained with {ours!r}; {remedy}"
            )
    if known.statistics != found.statistics:
        raise InputError(
            f"{store.path}: refined by the word statistics of another collection than the run was trained on; "
            f"{remedy}"
        )
