"""References for trained models: rankings without any text, and the best possible AUC where it is known.

chance            all candidates alike
popularity        clicks in train
title length      longest or shortest title first, as clicks of train have it
category counts   clicks of the history with the category of the candidate

Shapes: B users, C categories, V all articles, D embedding width.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.checksums import sha256
from speedyfeed.data.store import PAD_NEWS, Impressions, Store
from speedyfeed.data.tables import choose_split
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import RECALL_AT, TARGET_AT, SplitFacts, evaluate
from speedyfeed.evaluation.metrics import RANKING, Pool, measure_ranking
from speedyfeed.evaluation.ranking import EncodeUsers
from speedyfeed.files import read_json
from speedyfeed.finished_run import days_of
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.index import Embeddings, ExactIndex
from speedyfeed.run_evaluation import SEED, default_pool
from speedyfeed.scoring import Users

NEWSROOM = "newsroom.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The metrics of a ranking that needs no training."""

    name: str
    metrics: dict[str, float | None]
    """Metrics by name; None where one is undefined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """All references on one split."""

    impressions: int
    """Impressions of the split that have an AUC or, where each is one click and nothing else, a target."""
    are_targets: bool
    """Whether the log has clicks without impressions: each is searched among all articles."""
    pools: int
    """Number of pools that recall searches: days, or 1 for the whole split."""
    news_per_pool: float
    """Mean number of articles in a pool."""
    references: list[Reference]


def find_references(
    store: Store,
    logs: Path | None,
    split: str | None = None,
    *,
    pool: Pool | None = None,
) -> References:
    """References on a split and a pool, by default those of evaluated runs; `logs` are the store's raw logs."""
    split = choose_split(store.path, store.splits, split)
    shown = store.impressions(split)
    are_targets = default_pool(shown) == "all"
    pool = pool or default_pool(shown)
    pools = days_of(store, split) if pool == "day" else np.zeros(len(shown.users), np.int64)
    num_all = store.num_news if pool == "all" else None
    titles = store.load_titles()
    known = [] if logs is None else _newsroom(store, logs)
    return References(
        impressions=len(shown.users) if are_targets else int(np.count_nonzero(~np.isnan(_tied(shown)["auc"]))),
        are_targets=are_targets,
        pools=len(np.unique(pools)),
        news_per_pool=num_all or _mean_size(shown, pools),
        references=[
            measure_chance(shown, pools, num_all=num_all),
            measure_popularity(store, shown, pools, searches_all=pool == "all"),
            measure_title_length(store, shown, pools, titles["title"], searches_all=pool == "all"),
            *measure_categories(shown, pools, titles["category"], searches_all=pool == "all"),
            *known,
        ],
    )


def measure_chance(shown: Impressions, pools: NDArray[np.int64], *, num_all: int | None = None) -> Reference:
    """All candidates tied. A metric of ties is its mean over all their orders, so this is exact.

    `num_all` is the number of articles where recall searches all of them; None where it searches pools.
    """
    found = {
        name: None if np.isnan(values).all() else float(np.nanmean(values))
        for name, values in _tied(shown).items()
    }
    sizes = _count_retrievable(shown, pools, num_all)
    recall = {f"recall@{k}": float(np.mean(np.minimum(1.0, k / sizes))) for k in RECALL_AT}
    targets = _chance_of_targets(sizes) if default_pool(shown) == "all" else {}
    return Reference(name="chance", metrics={**found, **recall, **targets})


def _chance_of_targets(sizes: NDArray[np.int64]) -> dict[str, float]:
    """Expected hit and NDCG of a target whose rank among so many articles is any, all alike."""
    gains = 1 / np.log2(np.arange(1, TARGET_AT + 1) + 1)
    ndcg = np.cumsum(gains)[np.minimum(sizes, TARGET_AT) - 1] / sizes
    return {
        f"hit@{TARGET_AT}": float(np.mean(np.minimum(1.0, TARGET_AT / sizes))),
        f"pool_ndcg@{TARGET_AT}": float(np.mean(ndcg)),
    }


def measure_popularity(
    store: Store, shown: Impressions, pools: NDArray[np.int64], *, searches_all: bool = False
) -> Reference:
    """Articles ranked by all their clicks in train, those of histories included."""
    num_clicks_V = np.bincount(store.train.clicks.values, minlength=store.num_news + 1)
    return _rank_alike("popularity", shown, pools, num_clicks_V.astype(np.float32), searches_all=searches_all)


def measure_title_length(
    store: Store,
    shown: Impressions,
    pools: NDArray[np.int64],
    titles: pa.ChunkedArray,
    *,
    searches_all: bool = False,
) -> Reference:
    """Articles ranked by the length of their title in characters: longest first, or shortest if train says so."""
    lengths_V = np.concatenate([[0.0], pc.utf8_length(titles).to_numpy()]).astype(np.float32)
    clicked = store.train.clicks.values[store.train.click_pools[:] >= 0]
    skipped = store.train.pools.values
    is_longer = not len(skipped) or lengths_V[clicked].mean() >= lengths_V[skipped].mean()
    scores_V = lengths_V if is_longer else -lengths_V
    return _rank_alike("title length", shown, pools, scores_V, searches_all=searches_all)


def measure_categories(
    shown: Impressions, pools: NDArray[np.int64], categories: pa.ChunkedArray, *, searches_all: bool = False
) -> list[Reference]:
    """Articles ranked by the number of clicks of the history with the same category; empty without categories."""
    encoded = categories.combine_chunks().dictionary_encode()
    codes, names = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    is_known = np.array([bool(name) for name in names])[codes]
    if not is_known.any():
        return []
    onehot_VC = np.zeros((1 + len(codes), len(names)), np.float32)
    onehot_VC[1 + np.flatnonzero(is_known), codes[is_known]] = 1

    def count(histories: Ragged, _: NDArray[np.int64]) -> Users:
        rows = np.repeat(np.arange(len(histories)), histories.lengths)
        counts_BC = np.zeros((len(histories), len(names)), np.float32)
        np.add.at(counts_BC, rows, onehot_VC[histories.values])
        return Users.single(counts_BC)

    return [_measure("category counts", shown, pools, onehot_VC, count, searches_all=searches_all)]


def _rank_alike(
    name: str,
    shown: Impressions,
    pools: NDArray[np.int64],
    scores_V: NDArray[np.float32],
    *,
    searches_all: bool,
) -> Reference:
    """Articles ranked by one score, whoever the user is: embeddings of width 1, and one user for all."""

    def encode_users(users: Ragged, _: NDArray[np.int64]) -> Users:
        return Users.single(np.ones((len(users), 1), np.float32))

    return _measure(name, shown, pools, scores_V[:, None], encode_users, searches_all=searches_all)


def _measure(
    name: str,
    shown: Impressions,
    pools: NDArray[np.int64],
    news_VD: Embeddings,
    encode_users: EncodeUsers,
    *,
    searches_all: bool,
) -> Reference:
    report = evaluate(
        shown,
        news_VD,
        encode_users,
        np.random.default_rng(SEED),
        facts=SplitFacts(pools=pools, searches_all=searches_all),
        build_index=ExactIndex.build,
        resamples=1,  # intervals are not used
    )
    means = {metric: found.mean for metric, found in report.overall.metrics.items()}
    return Reference(
        name=name, metrics={metric: None if math.isnan(mean) else mean for metric, mean in means.items()}
    )


def _mean_size(shown: Impressions, pools: NDArray[np.int64]) -> float:
    """Mean number of articles in a pool."""
    sizes = [len(_news_of(shown, np.flatnonzero(pools == pool))) for pool in np.unique(pools)]
    return float(np.mean(sizes)) if sizes else 0.0


def _news_of(shown: Impressions, rows: NDArray[np.int64]) -> NDArray[np.integer]:
    """Candidates of some impressions, each once, less those without text."""
    news = np.unique(shown.candidates.take(rows).values)
    return np.asarray(news[news != PAD_NEWS])


def _count_retrievable(shown: Impressions, pools: NDArray[np.int64], num_all: int | None) -> NDArray[np.int64]:
    """Number of articles that each impression with a click can retrieve: its pool, less the user's history."""
    users = np.repeat(np.arange(len(shown.histories)), shown.histories.lengths)
    clicks = np.unique(np.stack([users, shown.histories.values.astype(np.int64)]), axis=1)
    sizes = np.zeros(len(shown.users), np.int64)
    for pool in np.unique(pools):
        rows = np.flatnonzero(pools == pool)
        news = _news_of(shown, rows) if num_all is None else np.arange(1, num_all + 1)
        num_clicked = np.bincount(clicks[0, np.isin(clicks[1], news)], minlength=len(shown.histories))
        sizes[rows] = len(news) - num_clicked[shown.users[rows]]
    is_clicked = np.repeat(np.arange(len(shown.users)), shown.candidates.lengths)[shown.labels == 1]
    return np.asarray(np.maximum(sizes[np.unique(is_clicked)], 1))


def _tied(shown: Impressions) -> dict[str, np.ndarray]:
    """The ranking metrics of every impression when all candidates have the same score."""
    scores = Ragged(values=np.zeros(len(shown.labels), np.float32), offsets=shown.candidates.offsets)
    values = measure_ranking(scores, shown.labels).values
    return {name: values[name] for name in RANKING}


def _newsroom(store: Store, logs: Path) -> list[Reference]:
    """AUCs that a synthetic newsroom states in its newsroom.json; empty for other logs."""
    for name, checksum in store.manifest.inputs.items():
        if not (logs / name).is_file() or sha256(logs / name) != checksum:
            raise InputError(
                f"{logs / name}: is missing or differs; expected the logs {store.path} was prepared from"
            )
    if not (logs / NEWSROOM).exists():
        return []
    facts = read_json(logs / NEWSROOM)
    return [
        Reference(name="planted popularity and freshness", metrics={"auc": facts["popularity_auc"]}),
        Reference(name="best possible", metrics={"auc": facts["best_auc"]}),
    ]
