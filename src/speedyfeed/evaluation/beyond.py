"""Beyond accuracy: what lists of recommendations are like, in the order of the scores and re-ranked as a feed.

    impression --candidates re-ranked--> AUC, nDCG, click-through rate
               --k articles of its pool--> recall, diversity, calibration error, sections, coverage, novelty

Definitions and sources are in docs/evaluation.md.
Shapes: V articles (row 0 is padding), G sections, Q queries of a user, L articles of a list, N candidates of a
list, D embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed import progress
from speedyfeed.data.store import PAD_NEWS, Impressions
from speedyfeed.evaluation.metrics import measure_ranking
from speedyfeed.evaluation.ranking import EncodeUsers
from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.retrieval.index import Embeddings
from speedyfeed.retrieval.interests import group_clicks
from speedyfeed.retrieval.rerank import (
    NO_SECTION,
    Candidates,
    RerankConfig,
    UserClicks,
    divergence,
    rerank,
    shares,
)
from speedyfeed.scoring import Users

LIST = 10
"""Number of articles of a measured list."""
MAX_IMPRESSIONS = 1000
"""Number of impressions measured, evenly spaced over the split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsFacts:
    """What re-ranking knows of each article, article 0 included."""

    news_VD: Embeddings
    sections_V: NDArray[np.int64]
    """Section as a number from 1; 0 for none."""
    clicks_V: NDArray[np.float64] | None
    """Number of clicks in the training log; None where they are unknown."""
    headlines_V: NDArray[np.int64]
    """Headline as a code (`headline_codes`)."""

    @property
    def section_clicks_G(self) -> NDArray[np.float64]:
        """Number of clicks on each section, and one for each article of it."""
        clicks_V = np.ones(len(self.sections_V)) if self.clicks_V is None else 1 + self.clicks_V
        totals_G = np.zeros(1 + self.sections_V.max(initial=0))
        np.add.at(totals_G, self.sections_V[1:], clicks_V[1:])
        return totals_G


def measure_feeds(
    impressions: Impressions,
    facts: NewsFacts,
    encode_users: EncodeUsers,
    pools: NDArray[np.integer],
    config: RerankConfig,
    *,
    max_clicks: int | None = None,
    max_impressions: int = MAX_IMPRESSIONS,
    report: progress.Report = progress.silent,
) -> Mapping[str, float]:
    """Measure lists made by this config; `pools` is the pool of each impression, as for recall.

    Of every history the latest `max_clicks` count. Unlabelled impressions count for the lists alone.
    """
    num = len(impressions.users)
    rows = np.unique(np.linspace(0, num - 1, min(num, max_impressions)).astype(np.int64)) if num else np.arange(0)
    pool_news = {int(pool): _news(impressions, np.flatnonzero(pools == pool)) for pool in np.unique(pools[rows])}
    section_clicks_G = facts.section_clicks_G
    scores: list[NDArray[np.float32]] = []
    lists: list[dict[str, float]] = []
    shown: set[int] = set()
    for done, row in enumerate(rows.tolist()):
        report("lists", done, len(rows))
        user = int(impressions.users[row])
        history = impressions.histories[user]
        latest = history[-max_clicks:] if max_clicks else history
        users = _encode_interests(latest, user, facts.news_VD, encode_users, config)
        own = UserClicks.from_sections(
            facts.sections_V[latest],
            section_clicks_G,
            read_LD=facts.news_VD[history],
            headlines_L=facts.headlines_V[history],
        )
        candidates = impressions.candidates[row]
        scores.append(_rescore(candidates, users, facts, config, own))
        pool = pool_news[int(pools[row])]
        pool = pool[~np.isin(pool, history)]
        chosen = pool[rerank(_candidates(pool, users, facts), LIST, config, own)]
        clicked = candidates[_labels(impressions, row) == 1]
        lists.append(_measure_list(chosen, clicked[~np.isin(clicked, history)], facts, own))
        shown.update(chosen.tolist())
    report("lists", len(rows), len(rows))
    ranked = Ragged(
        values=np.concatenate([np.zeros(0, np.float32), *scores]),
        offsets=offsets_of(np.array([len(one) for one in scores], np.int64)),
    )
    labels = np.concatenate([np.zeros(0, np.int8), *(_labels(impressions, row) for row in rows.tolist())])
    ranking = measure_ranking(ranked, labels).values
    available = len(np.unique(np.concatenate([np.zeros(0, np.int64), *pool_news.values()])))
    return {
        **{name: _mean(values) for name, values in ranking.items()},
        **{name: _mean(np.array([one[name] for one in lists])) for name in (lists[0] if lists else {})},
        "coverage": len(shown) / available if available else np.nan,
        "impressions": len(rows),
    }


def _measure_list(
    chosen: NDArray[np.int64], clicked: NDArray[np.integer], facts: NewsFacts, own: UserClicks
) -> dict[str, float]:
    """Figures of one list; NaN where it has none."""
    units_LD = facts.news_VD[chosen].astype(np.float64)
    units_LD /= np.maximum(np.linalg.norm(units_LD, axis=1, keepdims=True), 1e-12)
    num = len(chosen)
    cosines = ((units_LD @ units_LD.T).sum() - num) / max(num * (num - 1), 1)
    counts_G = np.bincount(facts.sections_V[chosen], minlength=len(own.sections_G)).astype(np.float64)
    counts_G[NO_SECTION] = 0
    has_sections = counts_G.sum() > 0 and own.sections_G[1:].sum() > 0
    wanted_G = shares(own, 0.0)
    novelty = np.nan
    if facts.clicks_V is not None and num:
        total = facts.clicks_V.sum() + len(facts.clicks_V) - 1
        novelty = float(-np.log2((1 + facts.clicks_V[chosen]) / total).mean())
    return {
        f"recall@{LIST}": float(np.isin(clicked, chosen).mean()) if len(clicked) else np.nan,
        "diversity": 1 - float(cosines) if num > 1 else np.nan,
        "calibration_error": float(divergence(wanted_G, counts_G / counts_G.sum())) if has_sections else np.nan,
        "sections": float((counts_G > 0).sum()) if counts_G.sum() else np.nan,
        "novelty": novelty,
    }


def _rescore(
    candidates: NDArray[np.integer],
    users: Users,
    facts: NewsFacts,
    config: RerankConfig,
    own: UserClicks,
) -> NDArray[np.float32]:
    """Scores that put the candidates of an impression into the order of the feed; those without text come last."""
    scores = np.full(len(candidates), -np.inf, np.float32)
    known = np.flatnonzero(candidates != PAD_NEWS)
    config = replace(config, duplicates=1.01)  # all of them are to be ordered
    order = rerank(_candidates(candidates[known], users, facts), len(known), config, own)
    scores[known[order]] = -np.arange(len(known), dtype=np.float32)
    return scores


def _encode_interests(
    history: NDArray[np.integer], user: int, news_VD: Embeddings, encode_users: EncodeUsers, config: RerankConfig
) -> Users:
    groups = group_clicks(news_VD[history], config.interests)
    parts = [history, *([history[group] for group in groups] if len(groups) > 1 else [])]
    offsets = offsets_of(np.array([len(part) for part in parts], np.int64))
    found = encode_users(
        Ragged(values=np.concatenate(parts), offsets=offsets), np.full(len(parts), user, np.int64)
    )
    return found if found.weights_BPK is None else found.take(slice(0, 1))  # a soft maximum has all interests


def _score(users: Users, news_ND: Embeddings) -> Embeddings:
    """Scores of these articles for the user and each interest, scores_NQ."""
    scores_NQ: Embeddings = users.score_all(torch.from_numpy(news_ND))[:, 0].numpy().T
    return scores_NQ


def _candidates(news: NDArray[np.integer], users: Users, facts: NewsFacts) -> Candidates:
    return Candidates(
        embeddings_ND=facts.news_VD[news],
        scores_NQ=_score(users, facts.news_VD[news]),
        clicks_N=None if facts.clicks_V is None else facts.clicks_V[news],
        sections_N=facts.sections_V[news],
        headlines_N=facts.headlines_V[news],
    )


def _news(impressions: Impressions, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    news = np.unique(impressions.candidates.take(rows).values)
    return np.asarray(news[news != PAD_NEWS], np.int64)


def _labels(impressions: Impressions, row: int) -> NDArray[np.int8]:
    return np.asarray(impressions.labels[slice(*impressions.candidates.offsets[row : row + 2])])


def _mean(values: NDArray[np.float64]) -> float:
    return float(values[~np.isnan(values)].mean()) if (~np.isnan(values)).any() else np.nan
