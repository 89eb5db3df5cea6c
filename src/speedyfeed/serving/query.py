"""A request for recommendations, as the feed takes it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from speedyfeed.retrieval.rerank import RerankConfig
from speedyfeed.serving.micro_batcher import Text


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
    seen: Sequence[str] = ()
    """Ids of articles that were shown to the user before; they are left out."""
    rerank: RerankConfig = field(default_factory=RerankConfig)
    """How the list is made from scores."""
    explain: bool = False
    """Whether to name the clicks that contribute most to each score."""
