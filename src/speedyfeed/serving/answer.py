"""What the feed answers: ranked articles with their reasons, and why an article is where it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from speedyfeed.serving.journal import News
from speedyfeed.serving.rules import Rule

MapPosition = tuple[float, float]
"""x and y on the map of all articles, from -1 to 1."""


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
    """Score for the user, or similarity: the match before re-ranking."""
    map_position: MapPosition
    sketch: Sequence[float] = ()
    """The embedding in few numbers from -1 to 1, alike for similar articles: to draw a vignette from."""
    reasons: Sequence[Reason] = ()
    """Clicks that contribute most to the score and are like the article, largest contribution first."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """Why an article is where it is in the feed of a user."""

    ranked: Ranked
    """The article with its score and reasons."""
    position: int | None
    """Position in the feed, from 1; None if it is not in a list of the length asked for."""
    is_clicked: bool
    """Whether it is in the history, and therefore not recommended."""
    num_clicks: int | None
    """Number of clicks on it by anybody; None where clicks are unknown."""
    popularity_weight: float
    """Weight of popularity in this user's feed, from 0 to 1; the rest is taste."""
    rules: Sequence[Rule]
    """Rules of the editor that concern it."""
