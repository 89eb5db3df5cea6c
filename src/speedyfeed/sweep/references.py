"""References for trained models: chance, popularity, and the best possible AUC where it is known."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedyfeed.checksums import sha256
from speedyfeed.data.store import PAD_NEWS, Impressions, Store
from speedyfeed.data.tables import choose_split
from speedyfeed.errors import InputError
from speedyfeed.evaluation.evaluate import RECALL_AT, evaluate
from speedyfeed.evaluation.metrics import RANKING, measure_ranking
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.index import ExactIndex
from speedyfeed.run_evaluation import SEED

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
    """Impressions of the split that have a ranking score."""
    references: list[Reference]


def find_references(store: Store, logs: Path | None) -> References:
    """References on the split that runs are evaluated on; `logs` are the raw logs of the store."""
    shown = store.impressions(choose_split(store.path, store.splits, None))
    chance = measure_chance(shown)
    known = [] if logs is None else _newsroom(store, logs)
    return References(
        impressions=int(np.count_nonzero(~np.isnan(_tied(shown)["auc"]))),
        references=[chance, measure_popularity(store, shown), *known],
    )


def measure_chance(shown: Impressions) -> Reference:
    """All candidates tied. A metric of ties is its mean over all their orders, so this is exact."""
    found = {name: float(np.nanmean(values)) for name, values in _tied(shown).items()}
    news = np.unique(shown.candidates.values)
    num_news = np.count_nonzero(news != PAD_NEWS)
    recall = {f"recall@{k}": min(1.0, k / num_news) for k in RECALL_AT}
    return Reference(name="chance", metrics={**found, **recall})


def measure_popularity(store: Store, shown: Impressions) -> Reference:
    """Articles ranked by their clicks in train: embeddings of width 1, and one user for all."""
    num_clicks_V = np.bincount(store.train.clicks.values, minlength=store.num_news + 1)
    report = evaluate(
        shown,
        num_clicks_V[:, None].astype(np.float32),
        lambda histories, _: np.ones((len(histories), 1), np.float32),
        np.random.default_rng(SEED),
        build_index=ExactIndex.build,
    )
    means = {name: found.mean for name, found in report.overall.metrics.items()}
    return Reference(
        name="popularity", metrics={name: None if math.isnan(mean) else mean for name, mean in means.items()}
    )


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
    facts = json.loads((logs / NEWSROOM).read_text("utf-8"))
    return [
        Reference(name="planted popularity and freshness", metrics={"auc": facts["popularity_auc"]}),
        Reference(name="best possible", metrics={"auc": facts["best_auc"]}),
    ]
