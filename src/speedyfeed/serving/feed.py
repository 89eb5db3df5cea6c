"""One trained model with its live catalogue: encodes texts, ranks articles and explains the ranking.

    history --catalogue, encode--> clicks_LD --user encoder--> user_D --search--> hits --explain--> Answer

A feed never changes its model: loading another run makes another feed, and a request uses one feed throughout.

Shapes: L clicks of a history, K hits, V articles, D embedding width.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.errors import InputError, command
from speedyfeed.files import new_file, write_json
from speedyfeed.pretrained import Recommender
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.storage import open_cached
from speedyfeed.runtime import PRECISIONS, Precision, choose_precision
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import GraphConfig, LiveCatalogue, SearchFilter, SearchHits, build_index
from speedyfeed.serving.micro_batcher import BATCH, MicroBatcher, Text
from speedyfeed.serving.projection import Projection

log = logging.getLogger(__name__)

Embeddings = NDArray[np.float32]

PRECISION = "precision.json"
"""File that records the measured precision of encoding."""
QUICK_K, QUICK_IDS = 50, 200
"""Largest k, and largest number of ids in a query, of a query that counts as quick."""
MAX_REASONS = 2
"""Clicks named as reasons for each recommended article, at most."""

MapPosition = tuple[float, float]
"""x and y on the map of all articles, from -1 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A request for recommendations: the history of a user, and which articles to consider."""

    history: Sequence[str | Text] = ()
    """Clicks, oldest first: ids of articles, or texts of articles that are not in the catalogue."""
    k: int = 10
    """Maximum number of articles in the answer."""
    candidates: Sequence[str] | None = None
    """Ids of the only articles to rank; None ranks the whole catalogue."""
    exclude: Sequence[str] = ()
    """Ids of articles to leave out, besides those in the history."""
    categories: Sequence[str] = ()
    """Categories to recommend from; empty means all."""
    max_age_seconds: float | None = None
    """Maximum age of an article in seconds; articles of unknown age are left out. None allows any age."""
    popularity: float = 0.0
    """Weight of popularity in the score, from 0 to 1; the rest is the match with the history."""
    explain: bool = False
    """Whether to name the clicks that contribute most to each score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """A click that contributes to the score of a recommended article."""

    click: int
    """Position of the click in the history, from 0."""
    attention: float | None
    """Attention weight of the click in the user embedding; None if the user encoder has no such weights."""
    similarity: float
    """Cosine similarity of the clicked and the recommended article."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One article of an answer."""

    news: News
    score: float
    map_position: MapPosition
    reasons: Sequence[Reason] = ()
    """Clicks that contribute most to the score, largest contribution first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Recommendations for one query, all computed by one model."""

    model: str
    """Fingerprint of the model."""
    ranked: Sequence[Ranked]
    """Recommended articles, best first."""
    unknown: Sequence[str]
    """Ids in the history and among the candidates that are not in the catalogue."""
    user: MapPosition
    """Map position of the user."""
    clicks: Sequence[MapPosition | None]
    """Map position of each click of the history; None if its id is unknown."""


class Feed:
    """A recommender that answers queries over a live catalogue."""

    def __init__(
        self,
        model: Recommender,
        fingerprint: str,
        index: HnswIndex | None,
        batcher: MicroBatcher,
        precision: Precision | None = None,
    ) -> None:
        """`index` covers the articles saved with the model; texts are encoded in `precision`, by default fp32."""
        catalogue = model.catalogue
        assert catalogue is not None
        self.fingerprint = fingerprint
        self._model = model
        embeddings_VD = catalogue.embeddings_VD.numpy()
        news = [
            News(news_id=news_id, title=title, abstract=abstract, category=category)
            for news_id, title, abstract, category in zip(
                catalogue.news_ids,
                catalogue.titles,
                catalogue.abstracts or [""] * len(catalogue),
                catalogue.categories,
                strict=True,
            )
        ]
        self.catalogue = LiveCatalogue(news, embeddings_VD, catalogue.num_clicks, index)
        self._projection = Projection.fit(embeddings_VD, catalogue.categories)
        self._batcher = batcher
        self._autocast = nullcontext if precision is None else precision.autocast

    def encode(self, texts: Sequence[Text]) -> "Future[Embeddings]":
        """Encode texts, together with those of other requests; the future holds one row per text, (texts, D)."""
        if not texts:
            nothing: Future[Embeddings] = Future()
            nothing.set_result(self.catalogue.embeddings([]))
            return nothing
        return self._batcher.submit(self._encode, texts)

    def recommend(self, query: Query, texts: Embeddings | None = None) -> Answer:
        """Rank the best articles for a user, without those in the history.

        `texts` holds the embeddings of the texts in the history, if the caller has encoded them already.
        """
        if texts is None:
            texts = self.encode([click for click in query.history if not isinstance(click, str)]).result()
        clicks = _Clicks.resolve(query.history, texts, self.catalogue)
        clicked = {click for click in query.history if isinstance(click, str)}
        excluded = [self.catalogue.row(news_id) for news_id in {*clicked, *query.exclude}]
        since = None if query.max_age_seconds is None else time.time() - query.max_age_seconds
        search_filter = SearchFilter(
            categories=frozenset(query.categories),
            published_since=since,
            excluded_rows=frozenset(row for row in excluded if row is not None),
            popularity=query.popularity,
        )
        user_D = self._model.encode_user(clicks.embeddings)
        unknown = list(clicks.unknown)
        if query.candidates is None:
            hits = self.catalogue.search(user_D, query.k, search_filter)
        else:
            rows = {news_id: self.catalogue.row(news_id) for news_id in query.candidates}
            unknown += [news_id for news_id, row in rows.items() if row is None]
            ordered = self.catalogue.score(
                user_D, [row for row in rows.values() if row is not None], search_filter
            )
            hits = SearchHits(rows=ordered.rows[: query.k], scores=ordered.scores[: query.k])
        map_positions: list[MapPosition | None] = [None] * len(query.history)
        for map_position, click in zip(self.map_positions(clicks.embeddings), clicks.positions, strict=True):
            map_positions[click] = map_position
        return Answer(
            model=self.fingerprint,
            ranked=self._rank(hits, self._explain(hits, clicks) if query.explain else None),
            unknown=list(dict.fromkeys(unknown)),
            user=self.map_positions(user_D[None])[0],
            clicks=map_positions,
        )

    def is_quick(self, query: Query) -> bool:
        """Whether the answer takes about 2 ms or less, which is no more than handing the query to a thread."""
        has_filter = bool(query.categories) or query.max_age_seconds is not None or query.popularity > 0
        num_ids = len(query.history) + len(query.exclude) + len(query.candidates or ())
        return not has_filter and query.k <= QUICK_K and num_ids <= QUICK_IDS

    def similar(self, news_id: str, k: int) -> list[Ranked] | None:
        """The k articles with the highest cosine similarity to this one; None if its id is unknown."""
        row = self.catalogue.row(news_id)
        return None if row is None else self._rank(self.catalogue.similar(row, k))

    def sample(self, limit: int) -> list[Ranked]:
        """At most `limit` articles, evenly spaced over the catalogue, to draw a map; scores are 0."""
        alive = self.catalogue.alive()
        rows = alive[:: max(1, -(-len(alive) // limit))]
        return self._rank(SearchHits(rows=rows, scores=np.zeros(len(rows), np.float32)))

    def map_positions(self, embeddings: Embeddings) -> list[MapPosition]:
        """Map positions of articles, clicks or users, rounded to 4 decimals."""
        return [(x, y) for x, y in self._projection.project(embeddings).astype(np.float64).round(4).tolist()]

    def _encode(self, texts: Sequence[Text]) -> Embeddings:
        with self._autocast():
            return self._model.encode_news([text[:3] for text in texts], [category for *_, category in texts])

    def _rank(self, hits: SearchHits, reasons: Sequence[Sequence[Reason]] | None = None) -> list[Ranked]:
        map_positions = self.map_positions(self.catalogue.embeddings(hits.rows))
        return [
            Ranked(
                news=self.catalogue.news(row),
                score=score,
                map_position=map_position,
                reasons=reasons[number] if reasons else (),
            )
            for number, (row, score, map_position) in enumerate(
                zip(hits.rows.tolist(), hits.scores.tolist(), map_positions, strict=True)
            )
        ]

    def _explain(self, hits: SearchHits, clicks: "_Clicks") -> list[list[Reason]]:
        """Clicks that contribute most to the score of each hit: attention weight times inner product."""
        clicks = clicks.select(self._model.config.latest_clicks)
        if not len(clicks.positions):
            return [[] for _ in hits.rows]
        attention_L = self._model.weigh_clicks(clicks.embeddings)
        news_KD = self.catalogue.embeddings(hits.rows)
        products_KL = news_KD @ clicks.embeddings.T
        norms_KL = np.linalg.norm(news_KD, axis=1)[:, None] * np.linalg.norm(clicks.embeddings, axis=1)
        cosines_KL = products_KL / np.maximum(norms_KL, 1e-12)
        contributions_KL = products_KL if attention_L is None else products_KL * attention_L
        order_KL = np.argsort(-contributions_KL, axis=1)[:, :MAX_REASONS]
        return [
            [
                Reason(
                    click=clicks.positions[click],
                    attention=None if attention_L is None else float(attention_L[click]),
                    similarity=float(cosines_KL[number, click]),
                )
                for click in order
                if contributions_KL[number, click] > 0
            ]
            for number, order in enumerate(order_KL.tolist())
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clicks:
    """Clicks of a history that are texts or articles of the catalogue."""

    embeddings: Embeddings
    """One row per click, (L, D)."""
    positions: Sequence[int]
    """Position of each row in the whole history."""
    unknown: Sequence[str]
    """Ids of the other clicks."""

    def select(self, part: slice) -> "_Clicks":
        """Some of the clicks."""
        return _Clicks(embeddings=self.embeddings[part], positions=self.positions[part], unknown=self.unknown)

    @classmethod
    def resolve(cls, history: Sequence[str | Text], texts: Embeddings, catalogue: LiveCatalogue) -> "_Clicks":
        """Look up the ids of a history, and take the rows of `texts` for its texts."""
        is_text = [not isinstance(click, str) for click in history]
        rows = [catalogue.row(click) if isinstance(click, str) else 0 for click in history]
        embeddings = catalogue.embeddings([row or 0 for row in rows])  # row 0 is a placeholder
        embeddings[is_text] = texts
        positions = [position for position, row in enumerate(rows) if row is not None]
        unknown = [str(click) for click, row in zip(history, rows, strict=True) if row is None]
        return cls(embeddings=embeddings[positions], positions=positions, unknown=unknown)


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
        known = json.loads(measured.read_text("utf-8"))
        if known["key"] == key and known["name"] in PRECISIONS:
            log.info("precision %s: as measured at an earlier start", known["name"])
            return Precision(name=known["name"], device=device, reason=str(known["reason"]))
    texts = [(title, title, "") for title in catalogue.titles[:BATCH]] or [("An article", "", "")]

    def encode() -> None:
        model.encode_news(texts)

    chosen = choose_precision(name, device, encode, seconds=1)
    with suppress(OSError), new_file(measured) as partial:  # where nothing can be written, the next start measures
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
