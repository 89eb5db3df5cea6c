"""A run and data it is to be evaluated on: opened or prepared on the fly, encoded, ranked.

    STORE or LOGS --open_data--> a split with the run's tokens --> embeddings --> evaluate | rank | compare

Raw logs are prepared by the rules of the run's own store into a temporary folder, so that the model meets every
text as it would have in training. Only the news that the split needs are encoded.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import MANIFEST, Impressions, Store, open_store
from speedyfeed.data.tables import TO_RANK, choose_split
from speedyfeed.encoding.articles import Articles
from speedyfeed.encoding.histories import history_encoder, user_dependent_encoder
from speedyfeed.encoding.ids import user_indices
from speedyfeed.encoding.tokens import open_packed
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import Report, evaluate, evaluate_user_dependent, seen_in_training
from speedyfeed.evaluation.ranking import LATEST_CLICKS, EncodeUsers, latest, score_candidates
from speedyfeed.evaluation.user_dependent import EncodeForUser, score_and_retrieve_user_dependent
from speedyfeed.files import new_file
from speedyfeed.models.packed import PackedNews
from speedyfeed.preparation.prepare import prepare_split
from speedyfeed.pretrained import Recommender
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.index import BuildIndex, Embeddings, ExactIndex, HnswIndex, cached_in
from speedyfeed.training.run_folder import RUN, RunFolder, fingerprint, open_run

SEED = 0  # of the bootstrap: the same figures have the same intervals
_SAME_TEXT = ("refine", "fields", "segment_tokens", "body_segments")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run, ready to be evaluated."""

    path: Path
    model: Recommender
    articles: Articles
    """How its news were prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What a run is evaluated on: one split of a store."""

    store: Store
    split: str
    words: bool
    """Whether the run reads the words of the store, not its tokens."""

    @property
    def impressions(self) -> Impressions:
        return self.store.impressions(self.split)

    def load_ids(self) -> pa.ChunkedArray:
        """The id of each impression, in the order of the log."""
        return self.store.load_impressions(self.split)["impression_id"]


def open_finished(path: Path) -> FinishedRun:
    """The recommender of a finished run, or of a folder or Hub name it was saved under."""
    if (path / RUN).exists() and not open_run(path).model.exists():
        raise InputError(f"{path}: the run has not finished; go on with: speedyfeed train STORE {path} --resume")
    model = Recommender.from_pretrained(path)
    if not isinstance(model.news.packer, Articles):
        raise InputError(
            f"{path}: does not say how its news were prepared (text.json); if it is a run, remove {path}/model "
            "and resume it, which writes the model again"
        )
    return FinishedRun(path=path, model=model, articles=model.news.packer)


@contextmanager
def open_data(
    finished: FinishedRun,
    path: Path | None,
    *,
    split: str | None = None,
    format: str | None = None,
    prefer: Sequence[str] = TO_RANK,
    report: progress.Report = progress.silent,
) -> Iterator[Data]:
    """The split of a store, or of raw logs, which are prepared for as long as the block lasts.

    Without a path, of the store the run was trained on. The split asked for, or the first preferred one there is.
    """
    if path is not None and not (path / MANIFEST).exists():
        with TemporaryDirectory(prefix="speedyfeed-") as folder:
            rules = finished.articles.rules
            place = Path(folder) / "store"
            store = prepare_split(path, place, rules, split=split, format=format, prefer=prefer, report=report)
            yield Data(store=store, split=store.splits[-1], words=False)  # its tokens are the run's, words or not
        return
    if path is None:
        own = _own_store(finished.path)
        if own is None:
            raise InputError(
                f"{finished.path}: the store it was trained on is gone or changed; give STORE or LOGS"
            )
        store = own
    else:
        store = open_store(path)
        _require_same_text(finished, store)
    yield Data(
        store=store,
        split=choose_split(store.path, store.splits, split, prefer=prefer),
        words=finished.model.news.reads_words,
    )


def evaluate_run(
    finished: FinishedRun,
    data: Data,
    *,
    pool: Literal["split", "day"] = "split",
    exact: bool = False,
    report: progress.Report = progress.silent,
) -> Report:
    """Rank and retrieve every impression of the data, clicks looked for among the news of the split or the day.

    Where every user has embeddings of their own, search is exact whatever is asked for.
    """
    rng = np.random.default_rng(SEED)
    seen = _seen(finished.path, data.store)
    pools = _days(data) if pool == "day" else None
    if finished.model.news.is_user_dependent:
        encode_for_user = _encode_for_user(finished.model, data)
        return evaluate_user_dependent(
            data.impressions, encode_for_user, rng, seen=seen, pools=pools, report=report
        )
    embedded = _embed(finished, data, report)
    build_index: BuildIndex = ExactIndex.build if exact else HnswIndex.build
    if not exact and pool == "split" and finished.path.is_dir():
        build_index = cached_in(finished.path / "index")
    return evaluate(
        data.impressions,
        embedded.news_VD,
        embedded.encode_users,
        rng,
        seen=seen,
        pools=pools,
        build_index=build_index,
        report=report,
    )


def score_run(finished: FinishedRun, data: Data, *, report: progress.Report = progress.silent) -> Ragged:
    """Score every candidate of the data."""
    if finished.model.news.is_user_dependent:
        encode_for_user = _encode_for_user(finished.model, data)
        one_pool = np.zeros(len(data.impressions.users), np.int64)
        return score_and_retrieve_user_dependent(data.impressions, encode_for_user, one_pool, report=report)[0]
    embedded = _embed(finished, data, report)
    return score_candidates(data.impressions, embedded.news_VD, embedded.encode_users, report=report)


def write_per_impression(path: Path, data: Data, report: Report) -> None:
    """A Parquet file with a row per impression, in the order of the log; null where it has no value."""
    shown = data.impressions
    columns = {name: pa.array(values, from_pandas=True) for name, values in report.values.items()}
    table = pa.table(
        {
            "impression_id": data.load_ids(),
            **columns,
            "history_length": shown.histories.lengths[shown.users],
            "num_candidates": shown.candidates.lengths,
        }
    )
    with new_file(path) as partial:
        pq.write_table(table, partial)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Embedded:
    """A model's view of a split."""

    news_VD: Embeddings
    """Rows of news the split does not need are zero."""
    encode_users: EncodeUsers


def _embed(finished: FinishedRun, data: Data, report: progress.Report) -> _Embedded:
    """Encode each news of the split once, and make a function of its histories.

    Of the store it was trained on, a run holds the embeddings of all news already.
    """
    model, shown = finished.model, data.impressions
    clicked = latest(shown.histories, LATEST_CLICKS).values
    needed = torch.from_numpy(np.unique(np.concatenate([shown.candidates.values, clicked])).astype(np.int64))
    news_VD = torch.zeros(1 + data.store.num_news, model.news.dim)
    own = _own_store(finished.path)
    if model.catalogue is not None and own is not None and own.path.samefile(data.store.path):
        known_VD = torch.nn.functional.pad(model.catalogue.embeddings_VD, (0, 0, 1, 0))
        news_VD[needed] = known_VD[needed]
    else:
        news_VD[needed] = model.news.encode_all(_open_news(model, data).select(needed), report=report)
    users = user_indices(data.store, data.split, model.id_maps)
    return _Embedded(news_VD=news_VD.numpy(), encode_users=history_encoder(model, news_VD, users))


def _encode_for_user(model: Recommender, data: Data) -> EncodeForUser:
    users = user_indices(data.store, data.split, model.id_maps)
    return user_dependent_encoder(model, _open_news(model, data), users)


def _open_news(model: Recommender, data: Data) -> PackedNews:
    news = open_packed(data.store, words=data.words, id_maps=model.id_maps)
    return replace(news, ids_M=None)  # numbers of this store, not of the run's


def _own_store(path: Path) -> Store | None:
    """The store a run was trained on, if it is still there as it was."""
    try:
        run: RunFolder = open_run(path)
        place = Path(run.facts.store.path)
        return open_store(place) if fingerprint(place) == run.facts.store.fingerprint else None
    except InputError:
        return None


def _seen(path: Path, store: Store) -> NDArray[np.bool_] | None:
    """Of each news of a store, whether the run met it in training; None where its own store is gone."""
    own = _own_store(path)
    if own is None:
        return None
    met = pa.array(seen_in_training(own.train, own.num_news)[1:])
    ids = pc.filter(own.load_titles()["news_id"], met)
    seen = pc.is_in(store.load_titles()["news_id"], value_set=ids)
    return np.concatenate([[False], seen.to_numpy()])


def _days(data: Data) -> NDArray[np.int64]:
    """The day of each impression, counted from 1970."""
    times = data.store.load_impressions(data.split)["time"]
    return np.asarray(times.cast(pa.date32()).cast(pa.int32()).to_numpy(), np.int64)


def _require_same_text(finished: FinishedRun, store: Store) -> None:
    """A store whose tokens mean something else would give figures that mean nothing."""
    remedy = "give the logs themselves, which are then prepared with the run's settings"
    known, found = finished.articles.text, store.manifest
    if finished.model.news.reads_words:
        if known["vocabulary"] != store.vocabulary:
            raise InputError(
                f"{store.path}: its words are numbered otherwise than those the run was trained with; {remedy}"
            )
    elif known["settings"]["tokenizer"] != found["settings"]["tokenizer"]:
        raise InputError(f"{store.path}: holds tokens of another encoder than the run was trained with; {remedy}")
    for name in _SAME_TEXT:
        if known["settings"][name] != found["settings"][name]:
            raise InputError(
                f"{store.path}: prepared with {name} {found['settings'][name]!r}, but the run was trained with "
                f"{known['settings'][name]!r}; {remedy}"
            )
    if json.dumps(known["statistics"]) != json.dumps(found["statistics"]):
        raise InputError(
            f"{store.path}: refined by the word statistics of another collection than the run was trained on; "
            f"{remedy}"
        )
