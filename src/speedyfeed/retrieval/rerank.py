"""From scores to a feed: a re-ranking of what retrieval found, so that a list is varied and follows the user.

    user, interests --retrieve--> candidates --relevance--> --greedy choice--> the feed

    relevance   =  (1 - w) taste + w popularity + freshness 2^(-age / 24 h) + boost
    choice      =  (1 - diversity) relevance - diversity (likeness to what is chosen + miscalibration of the list)

Taste is the score of the model (a quarter of it that of the best interest, where users have one vector), and
popularity the logarithm of clicks, all standardized over the candidates; an article nobody clicked is taken as
average, because most are new. For a new user w is 1, and every `halving_clicks` clicks halve what it has above
`popularity`; the shares of sections that the list should have move from those of all clicks to the user's own at
the same rate. Likeness is the largest cosine to an article above (maximal marginal relevance, Carbonell and
Goldstein, 1998) and the sum of those from `EVENT` up, so that each further story of one event costs more;
miscalibration is the divergence of the list's sections from these shares (Steck, 2018).

Calibration weighs, and does not promise. What is promised: among the first n articles every section has at least
`diversity` times its share of the user's clicks, rounded down, as far as there are candidates. One click each on
three sections puts all three into the first ten.

Of near-duplicates, by cosine or by an identical headline, one is shown; none where the user has read one already.

A list is made in stages of `STAGE` articles, each from the candidates of a list that ends with it. So a list is
the beginning of every longer one: whoever asks for ten articles and then for thirty keeps the first ten.

Shapes: N candidates, L clicks, Q queries (the user, then each interest), G sections, K positions of a list, X any
shape, D embedding width.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from speedyfeed.data.headlines import NO_HEADLINE
from speedyfeed.ranges import Ranges, check_ranges

HALF_LIFE_HOURS = 24.0
"""Age at which an article has lost half of its freshness."""
NO_SECTION = 0
"""Code of articles without a section; they count for no section."""
LEAST_NEWNESS = 0.01
"""Newness below which a user is not new at all."""
EVENT = 0.7
"""Cosine similarity from which two articles tell of the same event."""
STAGE = 25
"""Articles of a list that are chosen from the same candidates."""
SPARE = 5
"""Candidates of each clicked section, beyond those that a list must have, because some may be near-duplicates."""
INTEREST = 0.25
"""Weight of the score for the best interest in taste; the rest is the score for the user."""
ROUNDING = 1e-9
"""Added before numbers of articles are rounded down, as 10 times .3 times a third should be 1."""
SMOOTHING = 0.01
"""Part of the wanted shares mixed into those of a list, so that a missing section is bad but not infinitely so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankConfig:
    """How a list of recommendations is made from scores; the defaults were chosen by measurement."""

    diversity: float = 0.3
    """Weight of diversity against relevance, from 0 to 1: dissimilar articles, from categories in the proportions
    of the user's clicks; at least this part of each proportion is kept."""
    popularity: float = 0.0
    """Weight of popularity against the user's taste, from 0 to 1, for users with many clicks; new users get
    more."""
    freshness: float = 0.0
    """Bonus of an article published just now, in standard deviations of relevance; halved with each day of age."""
    halving_clicks: float = 2.0
    """Number of clicks after which the additional weight of popularity for new users is halved; 0 gives them
    none."""
    interests: int = 3
    """Maximum number of interests that clicks are grouped into; articles are retrieved for each of them. Unused by
    models that score by a soft maximum over the clicks (`train --user.sharpness`)."""
    duplicates: float = 0.97
    """Cosine similarity from which two articles are duplicates, as are those with the same headline. One of them
    is shown, and none if the user has read one; 1.01 shows all."""

    RANGES: ClassVar[Ranges] = {
        "diversity": (0, 1),
        "popularity": (0, 1),
        "freshness": (0, 100),
        "halving_clicks": (0, 1000),
        "interests": (1, 20),
        "duplicates": (0, 1.01),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


PLAIN = RerankConfig(diversity=0, halving_clicks=0, interests=1, duplicates=1.01)
"""No re-ranking: the order of the scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Articles to choose from, with what is known of them."""

    embeddings_ND: NDArray[np.float32]
    scores_NQ: NDArray[np.float32]
    """Scores of the model for the user, and for each interest of the user if there are several."""
    clicks_N: NDArray[np.floating] | None = None
    """Number of clicks on each article; None where it is unknown."""
    sections_N: NDArray[np.integer] | None = None
    """Code of each article's section; `NO_SECTION` for none."""
    headlines_N: NDArray[np.integer] | None = None
    """Code of each article's headline (`headline_codes`); None where headlines are unknown."""
    ages_N: NDArray[np.floating] | None = None
    """Hours since publication; NaN where unknown."""
    boosts_N: NDArray[np.floating] | None = None
    """Standard deviations of relevance that an editor adds to each article."""

    def take(self, positions: NDArray[np.int64]) -> "Candidates":
        """The candidates at these positions."""

        def at(values_N: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values_N is None else values_N[positions]

        return Candidates(
            embeddings_ND=self.embeddings_ND[positions],
            scores_NQ=self.scores_NQ[positions],
            clicks_N=at(self.clicks_N),
            sections_N=at(self.sections_N),
            headlines_N=at(self.headlines_N),
            ages_N=at(self.ages_N),
            boosts_N=at(self.boosts_N),
        )

    def shortlist(self, k: int, config: RerankConfig, user: "UserClicks") -> NDArray[np.int64]:
        """Positions of those to choose a list of k from."""
        return shortlist(
            self.scores_NQ,
            self.sections_N,
            k,
            config,
            user,
            clicks_N=self.clicks_N,
            ages_N=self.ages_N,
            boosts_N=self.boosts_N,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UserClicks:
    """What re-ranking needs to know of a user: how many clicks there are, on which sections and on what."""

    num_clicks: int
    sections_G: NDArray[np.floating]
    """Number of the user's clicks on each section."""
    all_sections_G: NDArray[np.floating]
    """Number of everybody's clicks on each section."""
    read_LD: NDArray[np.float32] | None = None
    """Embeddings of all that the user has read; None where nothing is."""
    headlines_L: NDArray[np.integer] | None = None
    """Codes of their headlines; None where headlines are unknown."""

    @property
    def own_shares_G(self) -> NDArray[np.float64]:
        """Share of each section in the user's clicks on any section; all 0 without such clicks."""
        own_G = self.sections_G.astype(np.float64)
        own_G[NO_SECTION] = 0
        return np.asarray(own_G / max(own_G.sum(), 1e-12))

    @classmethod
    def from_sections(
        cls,
        sections_L: NDArray[np.integer],
        all_sections_G: NDArray[np.floating],
        *,
        read_LD: NDArray[np.float32] | None = None,
        headlines_L: NDArray[np.integer] | None = None,
    ) -> "UserClicks":
        """A user whose latest clicks are on these sections, among everybody's clicks on each section."""
        own_G = np.bincount(sections_L, minlength=len(all_sections_G)).astype(np.float64)
        return cls(
            num_clicks=len(sections_L),
            sections_G=own_G,
            all_sections_G=all_sections_G,
            read_LD=read_LD,
            headlines_L=headlines_L,
        )


def retrieval_size(k: int, config: RerankConfig) -> int:
    """Number of articles to retrieve for the user, for each interest, and of the most popular and the newest."""
    return k if config == PLAIN else 2 * _whole_stages(k) + 20


def shortlist(
    scores_NQ: NDArray[np.floating],
    sections_N: NDArray[np.integer] | None,
    k: int,
    config: RerankConfig,
    user: UserClicks,
    *,
    clicks_N: NDArray[np.floating] | None = None,
    ages_N: NDArray[np.floating] | None = None,
    boosts_N: NDArray[np.floating] | None = None,
) -> NDArray[np.int64]:
    """Positions of the articles to choose a list of k from, in ascending order.

    They are the best for each query and of each clicked section, the most popular where popularity counts for the
    user, the newest where freshness counts, and all that are boosted. Articles with a score of -inf are left out.
    """
    size = retrieval_size(k, config)
    found = [top_positions(scores_N, size) for scores_N in scores_NQ.T]
    if config.diversity and sections_N is not None:
        for section in np.flatnonzero(user.own_shares_G):
            of_section = np.flatnonzero(sections_N == section)
            num = math.ceil(config.diversity * user.own_shares_G[section] * _whole_stages(k)) + SPARE
            found.append(of_section[top_positions(scores_NQ[of_section, 0], num)])
    if clicks_N is not None and popularity_weight(config, user.num_clicks) > 0:
        found.append(top_positions(np.where(np.isinf(scores_NQ[:, 0]), -np.inf, clicks_N), size))
    if ages_N is not None and config.freshness:
        is_out_N = np.isinf(scores_NQ[:, 0]) | np.isnan(ages_N)
        found.append(top_positions(np.where(is_out_N, -np.inf, -ages_N), size))
    if boosts_N is not None:
        found.append(np.flatnonzero(boosts_N))
    return np.unique(np.concatenate(found))


def top_positions(values_N: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """Positions of the k largest values, largest first and equal ones in order; those of -inf are left out."""
    top = np.arange(len(values_N))
    if k < len(values_N):
        top = np.flatnonzero(values_N >= np.partition(values_N, -k)[-k])
    top = top[~np.isinf(values_N[top])]
    return np.asarray(top[np.argsort(-values_N[top], kind="stable")][:k], np.int64)


def _whole_stages(k: int) -> int:
    return -(-k // STAGE) * STAGE


def relevance(candidates: Candidates, config: RerankConfig, num_clicks: int) -> NDArray[np.float64]:
    """Relevance of each candidate: taste, popularity and freshness in standard deviations."""
    scores_NQ = candidates.scores_NQ.astype(np.float64)
    found = _standardize(scores_NQ[:, 0])
    if scores_NQ.shape[1] > 1:
        found = (1 - INTEREST) * found + INTEREST * _standardize(scores_NQ[:, 1:].max(1))
    weight = popularity_weight(config, num_clicks)
    if weight and candidates.clicks_N is not None and candidates.clicks_N.any():
        found = (1 - weight) * found + weight * _popularity(candidates.clicks_N.astype(np.float64))
    if config.freshness and candidates.ages_N is not None:
        ages_N = np.maximum(np.nan_to_num(candidates.ages_N, nan=np.inf), 0)
        found = found + config.freshness * np.exp2(-ages_N / HALF_LIFE_HOURS)
    return found if candidates.boosts_N is None else found + candidates.boosts_N


def popularity_weight(config: RerankConfig, num_clicks: int) -> float:
    """Weight of popularity for a user with this many clicks."""
    return config.popularity + (1 - config.popularity) * newness(config, num_clicks)


def newness(config: RerankConfig, num_clicks: int) -> float:
    """How new a user with this many clicks is: 1 without any, halved every `halving_clicks`, 0 in the end."""
    left = 2.0 ** (-num_clicks / config.halving_clicks) if config.halving_clicks else 0.0
    return left if left >= LEAST_NEWNESS else 0.0


def rerank(candidates: Candidates, k: int, config: RerankConfig, user: UserClicks) -> NDArray[np.int64]:
    """Positions of the k candidates that make the best list, in its order.

    Near-duplicates and candidates with a score of -inf are left out.
    """
    among = candidates.shortlist(k, config, user)
    candidates = candidates.take(among)
    if config == PLAIN:
        return among[np.argsort(-relevance(candidates, config, user.num_clicks), kind="stable")][:k]
    units_ND = _unit(candidates.embeddings_ND)
    nearest_N, told_N = np.full(len(units_ND), -np.inf), np.zeros(len(units_ND))
    headlines_N = candidates.headlines_N if config.duplicates <= 1 else None
    is_left = ~_is_read(units_ND, headlines_N, config, user)
    chosen: list[int] = []
    for end in range(STAGE, _whole_stages(k) + 1, STAGE):
        of_stage = candidates.shortlist(end, config, user)
        base_N = np.full(len(units_ND), -np.inf)
        base_N[of_stage] = (1 - config.diversity) * relevance(candidates.take(of_stage), config, user.num_clicks)
        sections = _Sections(candidates.sections_N, of_stage, end, config, user)
        for one in chosen:
            sections.add(one)
        while len(chosen) < min(end, k) and (is_left & np.isfinite(base_N)).any():
            gain_N = base_N
            if config.diversity:
                gain_N = base_N - config.diversity * sections.divergence_N()
                if chosen:
                    gain_N = gain_N - config.diversity * (nearest_N + told_N)
            is_open = is_left & np.isfinite(base_N)
            if (is_due := sections.is_due_N(len(chosen))) is not None and (is_due & is_open).any():
                is_open &= is_due
            best = int(np.where(is_open, gain_N, -np.inf).argmax())
            chosen.append(best)
            sections.add(best)
            cosines_N = units_ND @ units_ND[best]
            nearest_N = np.maximum(nearest_N, cosines_N)
            told_N += cosines_N * (cosines_N >= EVENT)
            is_left[best] = False
            is_left &= nearest_N < config.duplicates
            if headlines_N is not None and headlines_N[best] != NO_HEADLINE:
                is_left &= headlines_N != headlines_N[best]
    return among[np.array(chosen, np.int64)]


def _is_read(
    units_ND: NDArray[np.float32], headlines_N: NDArray[np.integer] | None, config: RerankConfig, user: UserClicks
) -> NDArray[np.bool_]:
    """Which candidates are near-duplicates of what the user has read."""
    is_read_N = np.zeros(len(units_ND), bool)
    if config.duplicates > 1:
        return is_read_N
    if user.read_LD is not None and len(user.read_LD):
        is_read_N |= (units_ND @ _unit(user.read_LD).T).max(1) >= config.duplicates
    if user.headlines_L is not None and headlines_N is not None:
        is_read_N |= np.isin(headlines_N, user.headlines_L) & (headlines_N != NO_HEADLINE)
    return is_read_N


class _Sections:
    """Sections of a list so far, and how far each candidate would bring them from the wanted shares."""

    def __init__(
        self,
        codes_N: NDArray[np.integer] | None,
        of_stage: NDArray[np.int64],
        k: int,
        config: RerankConfig,
        user: UserClicks,
    ) -> None:
        """A list that has k articles at the end of its stage, which are chosen from those `of_stage`."""
        self._codes_N = codes_N
        if codes_N is None:
            return
        present_G = np.bincount(codes_N[of_stage], minlength=len(user.sections_G)) > 0
        present_G[NO_SECTION] = False
        self._wanted_G = shares(user, newness(config, user.num_clicks)) * present_G
        self._is_used = bool(self._wanted_G.sum() > 0 and present_G.sum() > 1)
        self._wanted_G = self._wanted_G / max(self._wanted_G.sum(), 1e-12)
        self._counts_G = np.zeros(len(self._wanted_G))
        self._promised_KG = np.floor(
            config.diversity * user.own_shares_G * present_G * np.arange(1, k + 1)[:, None] + ROUNDING
        )
        self._promises = bool(self._promised_KG[-1:].any())

    def add(self, candidate: int) -> None:
        if self._codes_N is not None and self._codes_N[candidate] != NO_SECTION:
            self._counts_G[self._codes_N[candidate]] += 1

    def is_due_N(self, num: int) -> NDArray[np.bool_] | None:
        """Which candidates must come next after `num` articles, lest a promise is broken; None if any may.

        That is so when as many promised articles are missing from a beginning of the list as it has free places.
        """
        if self._codes_N is None or not self._promises:
            return None
        missing_KG = np.maximum(self._promised_KG[num:] - self._counts_G, 0)
        is_full_K = missing_KG.sum(1) >= np.arange(1, len(missing_KG) + 1)
        first = int(is_full_K.argmax())
        return np.asarray((missing_KG[first] > 0)[self._codes_N]) if is_full_K[first] else None

    def divergence_N(self) -> NDArray[np.float64] | float:
        """Divergence of the list's sections from the wanted ones with each candidate added.

        One more article of section g changes only the term of g beside the length of the list, so all sections
        cost as much as one.
        """
        if self._codes_N is None or not self._is_used:
            return 0.0
        counts_G, wanted_G, num = self._counts_G, self._wanted_G, self._counts_G.sum()
        before_G = (1 - SMOOTHING) * counts_G / (num + 1) + SMOOTHING * wanted_G + 1e-12
        after_G = before_G + (1 - SMOOTHING) / (num + 1)
        divergence_G = self._shared(before_G) + wanted_G * np.log(before_G / after_G)
        divergence_G[NO_SECTION] = self._shared((1 - SMOOTHING) * counts_G / max(num, 1) + SMOOTHING * wanted_G)
        return np.asarray(divergence_G[self._codes_N])

    def _shared(self, found_G: NDArray[np.float64]) -> float:
        is_wanted = self._wanted_G > 0
        wanted_G = self._wanted_G[is_wanted]
        return float((wanted_G * np.log(wanted_G / found_G[is_wanted])).sum())


def shares(user: UserClicks, newness: float) -> NDArray[np.float64]:
    """Shares of sections that a list should have: those of all clicks for a new user, then the user's own."""
    own_G = user.own_shares_G
    everyone_G = user.all_sections_G.astype(np.float64)
    everyone_G[NO_SECTION] = 0
    weight = newness if own_G.any() else 1.0
    return np.asarray((1 - weight) * own_G + weight * everyone_G / max(everyone_G.sum(), 1e-12))


def divergence(wanted_G: NDArray[np.floating], found_XG: NDArray[np.floating]) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of each list's shares of sections from the wanted ones (Steck, 2018)."""
    smooth_XG = (1 - SMOOTHING) * found_XG + SMOOTHING * wanted_G
    ratio_XG = np.log(np.where(wanted_G > 0, wanted_G / np.maximum(smooth_XG, 1e-12), 1.0))
    return np.asarray((wanted_G * ratio_XG).sum(-1))


def _popularity(clicks_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardized logarithm of clicks; 0, the mean, without clicks."""
    is_known = clicks_N > 0
    found_N = np.zeros(len(clicks_N))
    found_N[is_known] = _standardize(np.log(clicks_N[is_known]))
    return found_N


def _standardize(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values.mean()) / max(float(values.std()), 1e-12) if len(values) else values


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
