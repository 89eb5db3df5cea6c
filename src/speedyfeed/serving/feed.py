"""One trained model and its news: encodes, ranks and says why.

A feed never changes its model: another run is another feed, and a request that began with one ends with it.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.errors import InputError
from speedyfeed.pretrained import Recommender
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.storage import open_index
from speedyfeed.runtime import Precision, choose_precision
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import GraphConfig, LiveCatalogue, SearchFilter, SearchHits, build_index
from speedyfeed.serving.micro_batcher import MicroBatcher, Text
from speedyfeed.serving.projection import Projection

log = logging.getLogger(__name__)

Embeddings = NDArray[np.float32]

QUICK_K, QUICK_IDS = 50, 200
"""An answer of at most so many news, to a query that names at most so many, may be quick."""
REASONS = 2
"""Clicks named for each recommendation, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """Who asks, and for what."""

    history: Sequence[str | Text] = ()
    """Clicks, oldest first: news ids, or texts of news the feed has not."""
    k: int = 10
    candidates: Sequence[str] | None = None
    """Rank only these."""
    exclude: Sequence[str] = ()
    categories: Sequence[str] = ()
    """Only these; none is any."""
    max_age_seconds: float | None = None
    """Only news known to be no older."""
    popularity: float = 0.0
    """Share of popularity in the score; the rest is taste."""
    explain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """A click that speaks for a recommendation."""

    click: int
    """Its place in the history."""
    attention: float | None
    """Its share of the user; None where the user encoder has no such thing."""
    similarity: float
    """Cosine of the angle between the two news."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One news of an answer."""

    news: News
    score: float
    place: tuple[float, float]
    """On the map."""
    reasons: Sequence[Reason] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a user gets."""

    model: str
    """Fingerprint of the one model that made all of it."""
    ranked: Sequence[Ranked]
    unknown: Sequence[str]
    """Ids of the query that name no news here."""
    user: tuple[float, float]
    """On the map."""
    clicks: Sequence[tuple[float, float] | None]
    """Places of the history on the map; None where unknown."""


class Feed:
    """A recommender at work."""

    def __init__(
        self,
        model: Recommender,
        fingerprint: str,
        index: HnswIndex | None,
        batcher: MicroBatcher,
        precision: Precision | None = None,
    ) -> None:
        """`index` is of the model's own news; texts are encoded in `precision`, fp32 if none is given."""
        catalogue = model.catalogue
        assert catalogue is not None
        self.fingerprint = fingerprint
        self._model = model
        embeddings_VD = catalogue.embeddings_VD.numpy()
        news = [
            News(news_id=news_id, title=title, category=category)
            for news_id, title, category in zip(
                catalogue.news_ids, catalogue.titles, catalogue.categories, strict=True
            )
        ]
        self.catalogue = LiveCatalogue(news, embeddings_VD, catalogue.num_clicks, index)
        self._projection = Projection.fit(embeddings_VD, catalogue.categories)
        self._batcher = batcher
        self._autocast = nullcontext if precision is None else precision.autocast

    def encode(self, texts: Sequence[Text]) -> "Future[Embeddings]":
        """One row per text, encoded together with what others submit."""
        if not texts:
            nothing: Future[Embeddings] = Future()
            nothing.set_result(self.catalogue.embeddings([]))
            return nothing
        return self._batcher.submit(self._encode, texts)

    def recommend(self, query: Query, texts: Embeddings | None = None) -> Answer:
        """The best news for a user, without those in the history.

        `texts` are the embeddings of the texts in the history, where the caller has encoded them already.
        """
        if texts is None:
            texts = self.encode([click for click in query.history if not isinstance(click, str)]).result()
        clicks = _Clicks.resolve(query.history, texts, self.catalogue)
        read = {click for click in query.history if isinstance(click, str)}
        excluded = [self.catalogue.row(news_id) for news_id in {*read, *query.exclude}]
        since = None if query.max_age_seconds is None else time.time() - query.max_age_seconds
        wanted = SearchFilter(
            categories=frozenset(query.categories),
            published_since=since,
            without=frozenset(row for row in excluded if row is not None),
            popularity=query.popularity,
        )
        user_D = self._model.encode_user(clicks.embeddings)
        unknown = list(clicks.unknown)
        if query.candidates is None:
            found = self.catalogue.search(user_D, query.k, wanted)
        else:
            rows = {news_id: self.catalogue.row(news_id) for news_id in query.candidates}
            unknown += [news_id for news_id, row in rows.items() if row is None]
            ordered = self.catalogue.score(user_D, [row for row in rows.values() if row is not None], wanted)
            found = SearchHits(rows=ordered.rows[: query.k], scores=ordered.scores[: query.k])
        places = [None] * len(query.history)
        for place, number in zip(self.places(clicks.embeddings), clicks.numbers, strict=True):
            places[number] = place  # type: ignore[call-overload]
        return Answer(
            model=self.fingerprint,
            ranked=self._rank(found, self._explain(found, clicks) if query.explain else None),
            unknown=list(dict.fromkeys(unknown)),
            user=self.places(user_D[None])[0],
            clicks=places,
        )

    def is_quick(self, query: Query) -> bool:
        """Whether it is answered within some 2 ms; waking a thread for it, and being woken, takes as long."""
        has_filter = bool(query.categories) or query.max_age_seconds is not None or query.popularity > 0
        num_ids = len(query.history) + len(query.exclude) + len(query.candidates or ())
        return not has_filter and query.k <= QUICK_K and num_ids <= QUICK_IDS

    def similar(self, news_id: str, k: int) -> list[Ranked] | None:
        """News that say about the same, by angle; None where there is no such news."""
        row = self.catalogue.row(news_id)
        return None if row is None else self._rank(self.catalogue.similar(row, k))

    def sample(self, most: int) -> list[Ranked]:
        """Some news, evenly taken from all, to draw the map with."""
        alive = self.catalogue.alive()
        rows = alive[:: max(1, -(-len(alive) // most))]
        return self._rank(SearchHits(rows=rows, scores=np.zeros(len(rows), np.float32)))

    def places(self, embeddings: Embeddings) -> list[tuple[float, float]]:
        """On the map."""
        return [(x, y) for x, y in self._projection.place(embeddings).astype(np.float64).round(4).tolist()]

    def _encode(self, texts: Sequence[Text]) -> Embeddings:
        with self._autocast():
            return self._model.encode_news([text[:3] for text in texts], [category for *_, category in texts])

    def _rank(self, found: SearchHits, reasons: Sequence[Sequence[Reason]] | None = None) -> list[Ranked]:
        places = self.places(self.catalogue.embeddings(found.rows))
        return [
            Ranked(
                news=self.catalogue.news(row), score=score, place=place, reasons=reasons[number] if reasons else ()
            )
            for number, (row, score, place) in enumerate(
                zip(found.rows.tolist(), found.scores.tolist(), places, strict=True)
            )
        ]

    def _explain(self, found: SearchHits, clicks: "_Clicks") -> list[list[Reason]]:
        """For each news found, the clicks that gave most to its score: attention times inner product."""
        if not len(clicks.numbers):
            return [[] for _ in found.rows]
        attention_L = self._model.weigh_clicks(clicks.embeddings)
        news_KD = self.catalogue.embeddings(found.rows)
        products_KL = news_KD @ clicks.embeddings.T
        lengths_KL = np.linalg.norm(news_KD, axis=1)[:, None] * np.linalg.norm(clicks.embeddings, axis=1)
        cosines_KL = products_KL / np.maximum(lengths_KL, 1e-12)
        gives_KL = products_KL if attention_L is None else products_KL * attention_L
        order_KL = np.argsort(-gives_KL, axis=1)[:, :REASONS]
        return [
            [
                Reason(
                    click=clicks.numbers[click],
                    attention=None if attention_L is None else float(attention_L[click]),
                    similarity=float(cosines_KL[number, click]),
                )
                for click in order
                if gives_KL[number, click] > 0
            ]
            for number, order in enumerate(order_KL.tolist())
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clicks:
    """The known part of a history."""

    embeddings: Embeddings
    numbers: Sequence[int]
    """Beside each row, its place in the history."""
    unknown: Sequence[str]

    @classmethod
    def resolve(cls, history: Sequence[str | Text], texts: Embeddings, catalogue: LiveCatalogue) -> "_Clicks":
        is_text = [not isinstance(click, str) for click in history]
        rows = [catalogue.row(click) if isinstance(click, str) else 0 for click in history]
        embeddings = catalogue.embeddings([row or 0 for row in rows])  # of row 0 where there is another or none
        embeddings[is_text] = texts
        numbers = [number for number, row in enumerate(rows) if row is not None]
        unknown = [str(click) for click, row in zip(history, rows, strict=True) if row is None]
        return cls(embeddings=embeddings[numbers], numbers=numbers, unknown=unknown)


def open_feed(
    run: Path, cache: Path, batcher: MicroBatcher, config: GraphConfig | None = None, *, precision: str = "fp32"
) -> Feed:
    """The feed of a finished run; its graphs, where it needs any, are kept in the folder `cache`."""
    run = run.resolve()  # a link that is turned elsewhere meanwhile must not mix two runs
    if not run.is_dir():
        raise InputError(f"{run}: no such folder; train a run with: speedyfeed train STORE {run}")
    model = Recommender.from_pretrained(run)
    if model.news.is_user_dependent:
        raise InputError(
            f"{run}: encoder {model.config.news.encoder!r} makes another embedding of a news for every user: "
            "there is none to index and serve; use speedyfeed recommend, or serve another run"
        )
    if model.catalogue is None:
        raise InputError(f"{run}: holds no news to recommend; let the training finish")
    chosen = choose_precision(precision, torch.device("cpu"), model.news.trial_step(), seconds=1)
    fingerprint = _fingerprint(run)
    kept = cache / f"graphs-{fingerprint}"
    if kept.is_dir():
        index = open_index(kept)
        assert isinstance(index, HnswIndex)
        return Feed(model, fingerprint, index, batcher, chosen)
    built = build_index(model.catalogue.embeddings_VD.numpy(), config or GraphConfig())
    if built is not None:
        built.save(kept)
    return Feed(model, fingerprint, built, batcher, chosen)


def remove_other_graphs(cache: Path, fingerprint: str) -> None:
    """Graphs of models that are served no more."""
    for folder in cache.glob("graphs-*"):
        if folder.name != f"graphs-{fingerprint}":
            shutil.rmtree(folder, ignore_errors=True)


def _fingerprint(run: Path) -> str:
    """Of all that decides what the model makes of a text, and of its news."""
    files = [file for file in (run / "model").rglob("*") if file.is_file()] or list(run.glob("**/*.*"))
    whole = hashlib.sha256()
    for file in sorted([*files, *run.glob("document_frequencies.parquet")]):
        whole.update(file.relative_to(run).as_posix().encode())
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()[:16]
