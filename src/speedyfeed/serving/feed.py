"""One trained model with its live catalogue: encodes texts, ranks articles and explains the ranking.

    history --catalogue, encode--> clicks_LD --user encoder--> users_QD --retrieve, re-rank, explain--> Answer

A feed never changes its model: loading another run makes another feed, and a request uses one feed throughout.

The rows of users_QD are the user and the user's interests.

Shapes: L clicks of a history, Q queries, K hits, N candidates, V articles, D embedding width.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from speedyfeed.data.bodies import Bodies
from speedyfeed.pretrained import Recommender
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.rerank import (
    Candidates,
    RerankConfig,
    UserClicks,
    popularity_weight,
    rerank,
)
from speedyfeed.runtime import Precision
from speedyfeed.serving.answer import Answer, MapPosition, Ranked, Reason, Why
from speedyfeed.serving.clicks import Clicks
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import Embeddings, LiveCatalogue, SearchFilter, SearchHits
from speedyfeed.serving.micro_batcher import MicroBatcher, Text
from speedyfeed.serving.projection import Projection
from speedyfeed.serving.query import Query
from speedyfeed.serving.reasons import find_reasons
from speedyfeed.serving.retriever import Retriever
from speedyfeed.serving.rules import Rules

QUICK_K, QUICK_IDS = 50, 200
"""Largest k, and largest number of ids in a query, of a query that counts as quick."""
NO_RULES = Rules()
SKETCH = 8
"""Numbers that an embedding is sketched with."""
SKETCHED = 10_000
"""Articles, evenly spaced over the catalogue, that the axes of sketches are chosen for."""


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
            News(news_id=news_id, title=title, abstract=abstract, category=category, published=published)
            for news_id, title, abstract, category, published in zip(
                catalogue.news_ids,
                catalogue.titles,
                catalogue.abstracts or [""] * len(catalogue),
                catalogue.categories,
                catalogue.published or [None] * len(catalogue),
                strict=True,
            )
        ]
        self.catalogue = LiveCatalogue(news, embeddings_VD, catalogue.num_clicks, index)
        self._retriever = Retriever(
            catalogue=self.catalogue, added=catalogue.added, adds_biases=catalogue.adds_biases
        )
        self._bodies = None if catalogue.bodies is None else Bodies(catalogue.bodies)
        self._projection = Projection.fit(embeddings_VD, catalogue.categories)
        some_VD = embeddings_VD[:: max(1, len(embeddings_VD) // SKETCHED)]
        self._sketches = Projection.fit(some_VD, num_axes=SKETCH)
        self._batcher = batcher
        self._autocast = nullcontext if precision is None else precision.autocast

    def encode(self, texts: Sequence[Text]) -> "Future[Embeddings]":
        """Encode texts, together with those of other requests; the future holds one row per text, (texts, D)."""
        if not texts:
            nothing: Future[Embeddings] = Future()
            nothing.set_result(self.catalogue.embeddings([]))
            return nothing
        return self._batcher.submit(self._encode, texts)

    def recommend(self, query: Query, texts: Embeddings | None = None, rules: Rules = NO_RULES) -> Answer:
        """Rank the best articles for a user, without those in the history, by the rules of the editor.

        `texts` holds the embeddings of the texts in the history, if the caller has encoded them already.
        """
        if texts is None:
            texts = self.encode([click for click in query.history if not isinstance(click, str)]).result()
        clicks = Clicks.resolve(query.history, texts, self.catalogue)
        users = self._model.encode_interests(clicks.embeddings, query.rerank.interests)
        search_filter = self._filter(query, rules)
        unknown = list(clicks.unknown)
        seen = [row for row in map(self.catalogue.row, query.seen) if row is not None]
        reads = UserClicks.from_sections(
            clicks.select(self._model.config.latest_clicks).sections,
            self.catalogue.section_clicks(),
            read_LD=np.concatenate([clicks.embeddings, self.catalogue.embeddings(seen)]),
            headlines_L=np.concatenate([clicks.headlines, self.catalogue.headlines(seen)]),
        )
        config = query.rerank
        if query.candidates is None:
            rows, scores_NQ = self._retriever.retrieve(users, query.k, config, reads, search_filter, rules)
        else:
            known = {news_id: self.catalogue.row(news_id) for news_id in query.candidates}
            unknown += [news_id for news_id, row in known.items() if row is None]
            rows = self.catalogue.passing([row for row in known.values() if row is not None], search_filter)
            config = replace(config, duplicates=1.01)  # whoever asks for these gets them all
            scores_NQ = self._retriever.score(users, rows)
        hits = self._rerank(rows, scores_NQ, query.k, config, reads, rules)
        map_positions: list[MapPosition | None] = [None] * len(query.history)
        for map_position, click in zip(self.map_positions(clicks.embeddings), clicks.positions, strict=True):
            map_positions[click] = map_position
        return Answer(
            model=self.fingerprint,
            ranked=self._rank(hits, self._explain(hits, clicks) if query.explain else None),
            unknown=list(dict.fromkeys(unknown)),
            user=self.map_positions(users.means_BPD[0, :1].numpy())[0],
            clicks=map_positions,
        )

    def why(self, news_id: str, query: Query, rules: Rules = NO_RULES) -> Why | None:
        """Why an article is where it is in the answer to this query; None if its id is unknown.

        The history of the query holds ids only.
        """
        row = self.catalogue.row(news_id)
        if row is None:
            return None
        clicks = Clicks.resolve(query.history, self.catalogue.embeddings([]), self.catalogue)
        answer = self.recommend(query, rules=rules)
        found = [one.news.news_id for one in answer.ranked]
        rows = np.array([row])
        scores_NQ = self._retriever.score(self._model.encode_clicks(clicks.embeddings), rows)
        hits = SearchHits(rows=rows, scores=scores_NQ[:, 0])
        num_clicks = self.catalogue.clicks(hits.rows)
        news = self.catalogue.news(row)
        return Why(
            ranked=self._rank(hits, self._explain(hits, clicks))[0],
            position=1 + found.index(news_id) if news_id in found else None,
            is_clicked=news_id in query.history,
            num_clicks=None if num_clicks is None else int(num_clicks[0]),
            popularity_weight=popularity_weight(query.rerank, len(clicks.positions)),
            rules=[rule for rule in rules.all if rule.concerns(news_id, news.category)],
        )

    def is_quick(self, query: Query, rules: Rules = NO_RULES) -> bool:
        """Whether the answer takes few milliseconds, hardly more than handing the query to a thread."""
        has_filter = bool(query.categories) or query.max_age_seconds is not None or rules.need_filters
        num_ids = len(query.history) + len(query.exclude) + len(query.seen) + len(query.candidates or ())
        return not has_filter and query.k <= QUICK_K and num_ids <= QUICK_IDS

    def full_news(self, news_id: str) -> News | None:
        """The article with its full text; None if its id is unknown."""
        row = self.catalogue.row(news_id)
        return None if row is None else self._full(row)

    def all_news(self) -> Iterator[News]:
        """All articles with their full texts, as they are now."""
        return map(self._full, self.catalogue.alive().tolist())

    def _full(self, row: int) -> News:
        news = self.catalogue.news(row)
        if self._bodies is None or row >= len(self._bodies):  # added since: it has its text itself
            return news
        return replace(news, body=self._bodies[row])

    def rank_one(self, news_id: str) -> Ranked | None:
        """The article as answers hold it, with score 0; None if its id is unknown."""
        row = self.catalogue.row(news_id)
        return (
            None
            if row is None
            else self._rank(SearchHits(rows=np.array([row]), scores=np.zeros(1, np.float32)))[0]
        )

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

    def _filter(self, query: Query, rules: Rules) -> SearchFilter:
        """The articles that a query may be answered with."""
        clicked = {click for click in query.history if isinstance(click, str)}
        left_out = {*clicked, *query.exclude, *query.seen, *rules.banned_ids}
        excluded = [self.catalogue.row(news_id) for news_id in left_out]
        return SearchFilter(
            categories=frozenset(query.categories),
            published_since=None if query.max_age_seconds is None else time.time() - query.max_age_seconds,
            excluded_rows=frozenset(row for row in excluded if row is not None),
            excluded_categories=frozenset(rules.banned_categories),
        )

    def _rerank(
        self,
        rows: NDArray[np.int64],
        scores_NQ: Embeddings,
        k: int,
        config: RerankConfig,
        reads: UserClicks,
        rules: Rules,
    ) -> SearchHits:
        """Choose the k of these rows that make the best list."""
        candidates = Candidates(
            embeddings_ND=self.catalogue.embeddings(rows),
            scores_NQ=scores_NQ,
            clicks_N=self.catalogue.clicks(rows),
            sections_N=self.catalogue.sections(rows),
            headlines_N=self.catalogue.headlines(rows),
            ages_N=self.catalogue.ages(rows) if config.freshness else None,
            boosts_N=self._boosts(rows, rules) if rules.boosts else None,
        )
        chosen = rerank(candidates, k, config, reads)
        return SearchHits(rows=rows[chosen], scores=scores_NQ[chosen, 0])

    def _boosts(self, rows: NDArray[np.int64], rules: Rules) -> NDArray[np.float64]:
        news = [self.catalogue.news(row) for row in rows.tolist()]
        return np.array([rules.boost(one.news_id, one.category) for one in news])

    def _encode(self, texts: Sequence[Text]) -> Embeddings:
        with self._autocast():
            return self._model.encode_news([text[:3] for text in texts], [category for *_, category in texts])

    def _rank(self, hits: SearchHits, reasons: Sequence[Sequence[Reason]] | None = None) -> list[Ranked]:
        embeddings_KD = self.catalogue.embeddings(hits.rows)
        map_positions = self.map_positions(embeddings_KD)
        sketches = self._sketches.project(embeddings_KD).astype(np.float64).round(2).tolist()
        return [
            Ranked(
                news=self.catalogue.news(row),
                score=score,
                map_position=map_position,
                sketch=sketch,
                reasons=reasons[number] if reasons else (),
            )
            for number, (row, score, map_position, sketch) in enumerate(
                zip(hits.rows.tolist(), hits.scores.tolist(), map_positions, sketches, strict=True)
            )
        ]

    def _explain(self, hits: SearchHits, clicks: Clicks) -> list[list[Reason]]:
        return find_reasons(self._model, self.catalogue.embeddings(hits.rows), clicks)
