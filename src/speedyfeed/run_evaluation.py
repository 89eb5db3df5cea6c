"""A finished run evaluated on data: articles and users are encoded, candidates ranked, metrics measured.

    FinishedRun, EvaluationData --> embeddings --> evaluate | rank | compare

Only articles that the split needs are encoded.

Shapes: V articles, D embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.headlines import headline_codes
from speedyfeed.data.store import Impressions, Store
from speedyfeed.encoding.histories import history_encoder, user_dependent_encoder
from speedyfeed.encoding.ids import user_indices
from speedyfeed.encoding.inputs import open_packed
from speedyfeed.errors import InputError
from speedyfeed.evaluation.beyond import NewsFacts, measure_feeds
from speedyfeed.evaluation.evaluate import (
    Report,
    SplitFacts,
    evaluate,
    evaluate_user_dependent,
    seen_in_training,
)
from speedyfeed.evaluation.metrics import Pool
from speedyfeed.evaluation.ranking import EncodeUsers, add_biases, score_candidates
from speedyfeed.evaluation.user_dependent import EncodeForUser, score_and_retrieve_user_dependent
from speedyfeed.files import new_file
from speedyfeed.finished_run import USER, EvaluationData, FinishedRun, days_of, training_store
from speedyfeed.models.packed import PackedNews
from speedyfeed.pretrained import Recommender
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import BuildIndex, Embeddings, ExactIndex
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig
from speedyfeed.retrieval.storage import cached_in

EXACT_NEWS = 50_000
"""Largest number of articles that are searched exactly for users with several vectors."""
SEED = 0
"""Seed of the bootstrap, so that the same values give the same intervals."""


def evaluate_run(
    finished: FinishedRun,
    data: EvaluationData,
    *,
    pool: Pool | None = None,
    exact: bool = False,
    popularity: bool | None = None,
    report: progress.Report = progress.silent,
) -> Report:
    """Measure ranking and recall of a run; recall searches candidates of the day, of the split, or all articles.

    By default (`pool`) it is the day, or all articles in a log of clicks without impressions. Search in
    user-dependent models is always exact, and so is that of users with several vectors among at most `EXACT_NEWS`
    articles. With `popularity`, the biases that training learned are added to the scores, and search is exact; by
    default where they are part of the model, as after training on a log without impressions.
    """
    rng = np.random.default_rng(SEED)
    pool = pool or default_pool(data.impressions)
    facts = SplitFacts(
        clusters=data.number_users(),
        seen=_seen(finished.path, data.store),
        train_clicks=_train_clicks(finished, data.store),
        pools=days_of(data.store, data.split) if pool == "day" else None,
        searches_all=pool == "all",
    )
    if finished.model.news.is_user_dependent:
        if popularity:
            raise InputError("--popularity: this model scores articles differently for every user; leave it out")
        encode_for_user = _encode_for_user(finished.model, data)
        return evaluate_user_dependent(data.impressions, encode_for_user, rng, facts=facts, report=report)
    embedded = _embed(finished, data, report, needs_all=pool == "all")
    popularity = _adds_popularity(finished) if popularity is None else popularity
    if popularity:
        embedded = _with_popularity(finished, data, embedded)
    has_vectors = finished.model.config.user.sharpness > 0
    exact = exact or popularity or (has_vectors and data.store.num_news <= EXACT_NEWS)
    build_index: BuildIndex = ExactIndex.build if exact else HnswIndex.build
    if not exact and pool != "day" and finished.path.is_dir():
        build_index = cached_in(finished.path / "index")
    return evaluate(
        data.impressions,
        embedded.news_VD,
        embedded.encode_users,
        rng,
        facts=facts,
        build_index=build_index,
        report=report,
    )


def evaluate_feeds(
    finished: FinishedRun,
    data: EvaluationData,
    config: RerankConfig,
    *,
    pool: Pool | None = None,
    report: progress.Report = progress.silent,
) -> Mapping[str, Mapping[str, float]]:
    """Measure lists of recommendations beyond accuracy: `scores` in the order of the scores, `feed` re-ranked."""
    if finished.model.news.is_user_dependent:
        raise InputError("--beyond: this model embeds articles differently for every user; leave it out")
    pool = pool or default_pool(data.impressions)
    if pool == "all":
        raise InputError("--beyond: expected impressions with candidates; give --pool day or --pool split")
    num = len(data.impressions.users)
    pools = days_of(data.store, data.split) if pool == "day" else np.zeros(num, np.int64)
    embedded = _embed(finished, data, report)
    codes = {"": 0}
    titles = data.store.load_titles()
    sections = [codes.setdefault(name or "", len(codes)) for name in titles["category"].to_pylist()]
    known = finished.model.catalogue
    clicks_V = None
    if known is not None and known.num_clicks is not None:
        clicks_V = np.append(0.0, _by_id(titles, known.news_ids, known.num_clicks))
    facts = NewsFacts(
        news_VD=embedded.news_VD,
        sections_V=np.array([0, *sections]),
        clicks_V=clicks_V,
        headlines_V=headline_codes(["", *(title or "" for title in titles["title"].to_pylist())]),
    )
    return {
        name: measure_feeds(
            data.impressions,
            facts,
            embedded.encode_users,
            pools,
            chosen,
            max_clicks=finished.model.config.max_clicks,
            report=report,
        )
        for name, chosen in (("scores", PLAIN), ("feed", config))
    }


def score_run(finished: FinishedRun, data: EvaluationData, *, report: progress.Report = progress.silent) -> Ragged:
    """Score every candidate of every impression."""
    if finished.model.news.is_user_dependent:
        encode_for_user = _encode_for_user(finished.model, data)
        one_pool = np.zeros(len(data.impressions.users), np.int64)
        return score_and_retrieve_user_dependent(data.impressions, encode_for_user, one_pool, report=report)[0]
    embedded = _embed(finished, data, report)
    if _adds_popularity(finished):
        embedded = _with_popularity(finished, data, embedded)
    return score_candidates(data.impressions, embedded.news_VD, embedded.encode_users, report=report)


def write_per_impression(path: Path, data: EvaluationData, report: Report) -> None:
    """Write every metric of every impression to a Parquet file, in the order of the log; null for no value."""
    shown = data.impressions
    columns = {name: pa.array(values, from_pandas=True) for name, values in report.values.items()}
    table = pa.table(
        {
            "impression_id": data.load_ids(),
            USER: data.load_users(),
            **columns,
            "history_length": shown.histories.lengths[shown.users],
            "num_candidates": shown.candidates.lengths,
        }
    )
    with new_file(path) as partial:
        pq.write_table(table, partial)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Embedded:
    """Embeddings of the articles of a split, and a function that encodes its users."""

    news_VD: Embeddings
    """Embeddings of all articles; zero for those that the split does not need."""
    encode_users: EncodeUsers
    """Function from histories to users."""


def _embed(
    finished: FinishedRun, data: EvaluationData, report: progress.Report, *, needs_all: bool = False
) -> _Embedded:
    """Encode each article that the split needs once, or each of the store.

    For the store it was trained on, a run holds the embeddings of all articles already.
    """
    model, shown = finished.model, data.impressions
    clicked = shown.histories.tails(model.config.max_clicks).values
    every = np.arange(1 + data.store.num_news if needs_all else 0)
    needed = torch.from_numpy(
        np.unique(np.concatenate([shown.candidates.values, clicked, every])).astype(np.int64)
    )
    news_VD = torch.zeros(1 + data.store.num_news, model.news.dim)
    own = training_store(finished.path)
    if model.catalogue is not None and own is not None and own.path.samefile(data.store.path):
        known_VD = torch.nn.functional.pad(model.catalogue.embeddings_VD, (0, 0, 1, 0))
        news_VD[needed] = known_VD[needed]
    else:
        news_VD[needed] = model.news.encode_all(_open_news(model, data).select(needed), report=report)
    users = user_indices(data.store, data.split, model.id_maps)
    return _Embedded(news_VD=news_VD.numpy(), encode_users=history_encoder(model, news_VD, users))


def _adds_popularity(finished: FinishedRun) -> bool:
    """Whether learned popularity is part of the scores of this model."""
    return finished.model.catalogue is not None and finished.model.catalogue.adds_biases


def _with_popularity(finished: FinishedRun, data: EvaluationData, embedded: _Embedded) -> _Embedded:
    """Embeddings with one more dimension: the bias of each article, by its id, and 1 for every user."""
    known = finished.model.catalogue
    if known is None or known.biases is None:
        raise InputError(
            f"{finished.path}: has learned no popularity of articles; set --popularity off, or train without "
            "--loss.no-article-bias"
        )
    biases = _by_id(data.store.load_titles(), known.news_ids, known.biases)
    news_VD, encode_users = add_biases(embedded.news_VD, embedded.encode_users, np.append(0.0, biases))
    return _Embedded(news_VD=news_VD, encode_users=encode_users)


def _by_id(titles: pa.Table, news_ids: Sequence[str], values: Sequence[float]) -> NDArray[np.float64]:
    """Value of each article of a store by its id; 0 where the id is unknown."""
    rows = pc.index_in(titles["news_id"], value_set=pa.array(news_ids, pa.string()))
    return np.asarray(np.append(np.asarray(values, np.float64), 0.0)[pc.fill_null(rows, len(news_ids)).to_numpy()])


def _encode_for_user(model: Recommender, data: EvaluationData) -> EncodeForUser:
    users = user_indices(data.store, data.split, model.id_maps)
    return user_dependent_encoder(model, _open_news(model, data), users)


def _open_news(model: Recommender, data: EvaluationData) -> PackedNews:
    news = open_packed(data.store, word_tokens=data.uses_words, id_maps=model.id_maps)
    return replace(news, ids_M=None)  # ids of this store, not of the run's


def _seen(path: Path, store: Store) -> NDArray[np.bool_] | None:
    """Whether each article of a store was seen in training; None where the training store is missing."""
    own = training_store(path)
    if own is None:
        return None
    is_seen = pa.array(seen_in_training(own.train, own.num_news)[1:])
    ids = pc.filter(own.load_titles()["news_id"], is_seen)
    seen = pc.is_in(store.load_titles()["news_id"], value_set=ids)
    return np.concatenate([[False], seen.to_numpy()])


def _train_clicks(finished: FinishedRun, store: Store) -> NDArray[np.int64] | None:
    """Number of clicks in train on each article of a store; None where the model does not know them."""
    known = finished.model.catalogue
    if known is None or known.num_clicks is None:
        return None
    return np.append(0, _by_id(store.load_titles(), known.news_ids, known.num_clicks)).astype(np.int64)


def default_pool(shown: Impressions) -> Pool:
    """Pool that recall searches: of the day, or all articles where impressions are single clicks."""
    is_target = (shown.candidates.lengths == 1).all() and (shown.labels == 1).all()
    return "all" if is_target else "day"
