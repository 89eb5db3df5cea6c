"""What a trained model is to be seen beside: chance, popularity, and the best possible where it is known."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedyfeed.data.store import PAD_NEWS, Impressions, Store, sha256
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
    """A ranking that was not learned."""

    name: str
    metrics: dict[str, float | None]
    """None where it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """Of one split."""

    impressions: int
    """Those that have a ranking score."""
    references: list[Reference]


def find_references(store: Store, logs: Path | None) -> References:
    """Of the split that runs are evaluated on; `logs` are those the store was prepared from."""
    shown = store.impressions(choose_split(store.path, store.splits, None))
    chance = measure_chance(shown)
    known = [] if logs is None else _newsroom(store, logs)
    return References(
        impressions=int(np.count_nonzero(~np.isnan(_alike(shown)["auc"]))),
        references=[chance, measure_popularity(store, shown), *known],
    )


def measure_chance(shown: Impressions) -> Reference:
    """All candidates alike: a metric is its mean over all orders of what ties, so this is exact."""
    found = {name: float(np.nanmean(values)) for name, values in _alike(shown).items()}
    news = np.unique(shown.candidates.values)
    num_news = np.count_nonzero(news != PAD_NEWS)
    recall = {f"recall@{k}": min(1.0, k / num_news) for k in RECALL_AT}
    return Reference(name="chance", metrics={**found, **recall})


def measure_popularity(store: Store, shown: Impressions) -> Reference:
    """News by their clicks in train: embeddings of one number, the same user for all."""
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


def _alike(shown: Impressions) -> dict[str, np.ndarray]:
    """The ranking metrics of every impression when no candidate is told from another."""
    scores = Ragged(values=np.zeros(len(shown.labels), np.float32), offsets=shown.candidates.offsets)
    values = measure_ranking(scores, shown.labels).values
    return {name: values[name] for name in RANKING}


def _newsroom(store: Store, logs: Path) -> list[Reference]:
    """What a synthetic newsroom knows of itself; nothing, of other logs."""
    for name, checksum in store.manifest["inputs"].items():
        if not (logs / name).is_file() or sha256(logs / name) != checksum:
            raise InputError(f"{logs / name}: is not what {store.path} was prepared from; give those logs")
    if not (logs / NEWSROOM).exists():
        return []
    facts = json.loads((logs / NEWSROOM).read_text("utf-8"))
    return [
        Reference(name="popularity and freshness, as planted", metrics={"auc": facts["popularity_auc"]}),
        Reference(name="best possible", metrics={"auc": facts["best_auc"]}),
    ]
