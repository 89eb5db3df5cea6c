"""What models of item ids reach, which read no text: overall, and on items with few clicks in train.

    popularity     items by their clicks in train
    item-item      cosine of co-clicks of an item and the history (Sarwar et al., 2001)
    EASE           linear item-item weights in closed form (Steck, 2019)
    ids-gru        an embedding per item and a GRU over clicks; negatives are in the batch
    ids-attention  an embedding per item and causal self-attention over clicks

None of them can tell items without clicks in train apart, which is what text is for. Item-item and EASE hold a
matrix of items x items: some ten thousand items fit in memory.

Example: python -m benchmarks id-models --store store/ --epochs 10
"""  # Shapes: V items and padding   B users   M items of a batch   D embedding width

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.newsroom import WORK
from speedyfeed import api
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.data.store import Impressions, Store, open_store
from speedyfeed.data.tables import choose_split
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import MANY_CLICKS, Report, SplitFacts, evaluate
from speedyfeed.evaluation.ranking import EncodeUsers
from speedyfeed.markdown import table
from speedyfeed.models.baselines import Text, register_word_encoder
from speedyfeed.models.config import NewsEncoderConfig, UserConfig
from speedyfeed.models.packed import PackedNews
from speedyfeed.progress import progress_bars
from speedyfeed.ragged import Ragged
from speedyfeed.ranges import MAX_SEED, Ranges, check_ranges
from speedyfeed.retrieval.index import ExactIndex
from speedyfeed.run_evaluation import SEED
from speedyfeed.scoring import Users
from speedyfeed.training.config import RunConfig, TrainConfig

METRICS = {"Hit@10": "hit@10", "NDCG@10": "pool_ndcg@10"}
"""Metrics by the names that tables and `evaluate` have for them."""
GROUPS: dict[str, tuple[str | None, Callable[[NDArray[np.integer]], NDArray[np.bool_]]]] = {
    "all": (None, lambda clicks: clicks >= 0),
    "no clicks": ("news_clicked_0", lambda clicks: clicks == 0),
    "1 to 4": ("news_clicked_1_to_4", lambda clicks: (clicks > 0) & (clicks < MANY_CLICKS)),
    "5 up": ("news_clicked_5_up", lambda clicks: clicks >= MANY_CLICKS),
}
"""Clicks of the split by the clicks of their item in train, and the names that `evaluate` has for them."""
MAX_ITEMS = 30_000
"""Largest catalogue for which matrices of items x items are computed."""

Matrix = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdModelsConfig:
    """Log on which models of item ids are measured, and how long the trained ones train."""

    store: Path
    """Folder of a store of interactions, with a test or dev split."""
    work: Path = WORK / "id-models"
    """Folder for the trained runs, which a later call continues."""
    epochs: int = 10
    """Number of passes over all users of the trained models; 0 leaves these out."""
    seed: int = 0
    """Seed of the trained models."""
    ridge: float = 200.0
    """Regularization of EASE, added to the diagonal of its co-click counts."""
    lr: float = 1e-3
    """Peak learning rate of the trained models."""
    validations: int = 4
    """Number of validations of a trained model after the initial one; the best model is evaluated."""

    RANGES: ClassVar[Ranges] = {
        "epochs": (0, 10_000),
        "seed": (0, MAX_SEED),
        "ridge": (1e-6, 1e9),
        "lr": (1e-9, 10),
        "validations": (0, 1000),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class IdModel:
    """One model, measured on all clicks of the split and on those of each group."""

    name: str
    metrics: dict[str, dict[str, float]]
    """Metrics by group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdModelsFigures:
    models: list[IdModel]
    clicks: dict[str, int]
    """Number of clicks of the split by group."""


def measure(config: IdModelsConfig) -> IdModelsFigures:
    """Measure the closed forms, then train and measure the others."""
    store = open_store(config.store)
    split = choose_split(store.path, store.splits, None)
    if store.train.has_negatives:
        raise InputError(f"{store.path}: has impressions, expected a log of interactions without any")
    if store.num_news > MAX_ITEMS:
        raise InputError(f"{store.path}: has {store.num_news:,} items, expected at most {MAX_ITEMS:,}")
    shown = store.impressions(split)
    clicks_VV = count_co_clicks(store.train.clicks, store.num_news)
    popularity_V1 = np.diag(clicks_VV)[:, None].copy()
    reports = {
        "popularity": _evaluate(store, shown, popularity_V1, _alike),
        "item-item": _evaluate(store, shown, cosines(clicks_VV), _sum_history(store.num_news)),
        "EASE": _evaluate(store, shown, ease(clicks_VV, config.ridge), _sum_history(store.num_news)),
    }
    if config.epochs:
        register_ids(store.num_news)
        for name, user in (("ids-gru", "gru"), ("ids-attention", "self-attention")):
            run = config.work / f"{name}-{config.seed}"
            with progress_bars() as report:
                api.train(store.path, run, _recipe(config, user), progress=report)
                reports[name] = api.evaluate(run, exact=True, progress=report)
    num_clicks = store.train.count_clicks(store.num_news)[shown.candidates.values[shown.labels == 1]]
    return IdModelsFigures(
        models=[
            IdModel(
                name=name,
                metrics={
                    group: {metric: summary.metrics[name].mean for metric, name in METRICS.items()}
                    for group, summary in _by_group(report).items()
                },
            )
            for name, report in reports.items()
        ],
        clicks={group: int(np.count_nonzero(is_in(num_clicks))) for group, (_, is_in) in GROUPS.items()},
    )


def tables(figures: IdModelsFigures) -> str:
    """A row per model, with both metrics of each group."""
    groups = [group for group, clicks in figures.clicks.items() if clicks]
    header = ["", *(f"{group} ({figures.clicks[group]:,})" for group in groups)]
    rows = [
        [
            model.name,
            *(" / ".join(f"{model.metrics[group][metric]:.4f}" for metric in METRICS) for group in groups),
        ]
        for model in figures.models
    ]
    return f"{' / '.join(METRICS)} by clicks of the item in train\n\n{table(header, rows)}"


def count_co_clicks(clicks: Ragged, num_items: int) -> Matrix:
    """Number of users who clicked both items, counts_VV; users of an item on the diagonal."""
    counts_VV = np.zeros((num_items + 1, num_items + 1), np.float32)
    for row in range(len(clicks)):
        items = np.unique(clicks[row])
        counts_VV[np.ix_(items, items)] += 1
    return counts_VV


def cosines(counts_VV: Matrix) -> Matrix:
    """Item-item cosines of the co-clicks, zero on the diagonal."""
    norms_V = np.sqrt(np.maximum(np.diag(counts_VV), 1))
    cosines_VV: Matrix = (counts_VV / norms_V / norms_V[:, None]).astype(np.float32)
    np.fill_diagonal(cosines_VV, 0)
    return cosines_VV


def ease(counts_VV: Matrix, ridge: float) -> Matrix:
    """Item-item weights that best reconstruct each user's clicks from the others, zero on the diagonal.

    Row j holds the weights of all items of a history in the score of item j.
    """
    inverse_VV = torch.from_numpy(counts_VV).double()
    inverse_VV.diagonal().add_(ridge)
    inverse_VV = torch.cholesky_inverse(torch.linalg.cholesky(inverse_VV))
    weights_VV = -inverse_VV / inverse_VV.diagonal()
    weights_VV.fill_diagonal_(0)
    return np.ascontiguousarray(weights_VV.T.float().numpy())


def register_ids(num_items: int) -> None:
    """Make the news encoder `ids` known: an embedding of each item of a store, whatever its text."""

    class IdNews(nn.Module):
        joins, uses_categories, is_user_dependent = True, False, False

        def __init__(self, *, dim: int, **_: Any) -> None:
            super().__init__()
            self.embedding = nn.Embedding(num_items + 1, dim)
            nn.init.normal_(self.embedding.weight, std=dim**-0.5)

        def encode_segments(self, text: Text) -> Tensor:
            """One row per segment, which is not used."""
            return self.embedding.weight.new_zeros(len(text.owners_K), self.embedding.embedding_dim)

        def combine(self, segments_KD: Tensor, owners_K: Tensor, news: PackedNews) -> Tensor:
            """Look up the items by their ids; raw texts, which have none, are padding."""
            ids_M = torch.zeros(len(news), dtype=torch.long) if news.ids_M is None else news.ids_M
            embeddings_MD: Tensor = self.embedding(ids_M.to(self.embedding.weight.device))
            return embeddings_MD

    register_word_encoder("ids", IdNews)


def _recipe(config: IdModelsConfig, user: str) -> RunConfig:
    """Settings of a trained id model; nothing is expensive to encode, so nothing is cached."""
    return replace(
        RunConfig(),
        news=NewsEncoderConfig(encoder="ids", normalize=False),
        user=UserConfig(name=user),
        loss=replace(RunConfig().loss, temperature=1.0),
        cache=CacheConfig(gamma=0),
        train=TrainConfig(
            epochs=config.epochs,
            lr=config.lr,
            precision="fp32",
            validations=config.validations,
            seed=config.seed,
        ),
    )


def _evaluate(store: Store, shown: Impressions, news_VD: Matrix, encode_users: EncodeUsers) -> Report:
    return evaluate(
        shown,
        news_VD,
        encode_users,
        np.random.default_rng(SEED),
        facts=SplitFacts(train_clicks=store.train.count_clicks(store.num_news), searches_all=True),
        build_index=ExactIndex.build,
        resamples=1,  # intervals are not used
    )


def _alike(histories: Ragged, _: NDArray[np.int64]) -> Users:
    """One user for all."""
    return Users.single(np.ones((len(histories), 1), np.float32))


def _sum_history(num_items: int) -> EncodeUsers:
    """Users as counts of their clicks by item."""

    def encode(histories: Ragged, _: NDArray[np.int64]) -> Users:
        counts_BV = np.zeros((len(histories), num_items + 1), np.float32)
        rows = np.repeat(np.arange(len(histories)), histories.lengths)
        np.add.at(counts_BV, (rows, histories.values), 1)
        return Users.single(counts_BV)

    return encode


def _by_group(report: Report) -> dict[str, Any]:
    return {
        group: report.overall if name is None else report.groups[name]
        for group, (name, _) in GROUPS.items()
        if name is None or name in report.groups
    }
