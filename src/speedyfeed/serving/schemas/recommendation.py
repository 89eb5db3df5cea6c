"""Requests for recommendations and their answers."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from speedyfeed.retrieval.rerank import RerankConfig
from speedyfeed.serving.answer import Answer, Why
from speedyfeed.serving.query import Query
from speedyfeed.serving.schemas.fields import (
    MAX_HISTORY,
    MAX_IDS,
    MAX_K,
    Category,
    Coordinates,
    Id,
    RequestBody,
    whole,
)
from speedyfeed.serving.schemas.news import RankedNews, TextBody
from speedyfeed.serving.schemas.rules import RuleAnswer

CLICK_ID, CLICK_TEXT = "click-id", "click-text"
"""Forms of a click; validation errors name the one that was meant."""


def _kind_of_click(click: object) -> str | None:
    """Which of the two forms of a click was meant."""
    return CLICK_ID if isinstance(click, str) else CLICK_TEXT if isinstance(click, dict | TextBody) else None


Click = Annotated[
    Annotated[Id, Tag(CLICK_ID)] | Annotated[TextBody, Tag(CLICK_TEXT)],
    Discriminator(
        _kind_of_click,
        custom_error_type="click_type",
        custom_error_message="should be the id of an article, or an object with its title",
    ),
]


class RecommendBody(RequestBody):
    """History of a user, and which articles to recommend."""

    history: list[Click] = Field(
        [],
        max_length=MAX_HISTORY,
        description="Clicks of the user, oldest first: ids of articles, or their texts. Empty for a new user.",
    )
    k: Annotated[int, BeforeValidator(whole)] = Field(
        10, ge=1, le=MAX_K, description="Maximum number of articles in the answer."
    )
    candidates: list[Id] | None = Field(
        None, max_length=MAX_IDS, description="Ids of the only articles to rank; null ranks all articles."
    )
    exclude: list[Id] = Field(
        [], max_length=MAX_IDS, description="Ids of articles to leave out, besides those in the history."
    )
    categories: list[Category] = Field(
        [], max_length=100, description="Categories to recommend from; empty means all."
    )
    max_age_hours: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        description="Maximum age of an article in hours; articles of unknown age are left out. Null for any age.",
    )
    seen: list[Id] = Field(
        [],
        max_length=MAX_IDS,
        description="Ids of articles shown to the user before; they are left out.",
    )
    diversity: float = Field(
        RerankConfig().diversity,
        ge=0,
        le=1,
        description="Weight of variety against relevance, from 0 (order of relevance) to 1.",
    )
    popularity: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Weight of popularity against the match with the history, from 0 to 1; more for new users.",
    )
    freshness: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Standard deviations of relevance that a new article gains; half of them a day later.",
    )
    explain: bool = Field(False, description="Whether to name the clicks that contribute most to each score.")

    def to_query(self) -> Query:
        """The query that a feed answers."""
        return Query(
            history=[click if isinstance(click, str) else click.to_text() for click in self.history],
            k=self.k,
            candidates=self.candidates,
            exclude=self.exclude,
            categories=self.categories,
            max_age_seconds=None if self.max_age_hours is None else 3600 * self.max_age_hours,
            seen=self.seen,
            rerank=RerankConfig(diversity=self.diversity, popularity=self.popularity, freshness=self.freshness),
            explain=self.explain,
        )


class RecommendAnswer(BaseModel):
    """Recommendations, all computed by one model."""

    model: str = Field(description="Fingerprint of the model that answered.")
    news: list[RankedNews] = Field(description="Recommended articles, best first.")
    unknown: list[str] = Field(description="Ids in the history and the candidates that no article has.")
    user: Coordinates = Field(description="Map position of the user: x and y, from -1 to 1.")
    clicks: list[Coordinates | None] = Field(
        description="Map position of each click of the history; null if its id is unknown."
    )

    @classmethod
    def from_answer(cls, answer: Answer) -> "RecommendAnswer":
        """The JSON of a feed's answer."""
        return cls(
            model=answer.model,
            news=[RankedNews.from_ranked(one) for one in answer.ranked],
            unknown=list(answer.unknown),
            user=list(answer.user),
            clicks=[None if click is None else list(click) for click in answer.clicks],
        )


class WhyAnswer(RankedNews):
    """Why an article is where it is in the feed of a user."""

    position: int | None = Field(description="Position in the feed, from 1; null if not among the first k.")
    is_clicked: bool = Field(description="Whether it is in the history, and therefore not recommended.")
    num_clicks: int | None = Field(description="Number of clicks on it by anybody; null where clicks are unknown.")
    popularity_weight: float = Field(
        description="Weight of popularity in the feed, from 0 to 1; the rest is taste."
    )
    rules: list[RuleAnswer] = Field(description="Rules of the editor that concern it.")

    @classmethod
    def from_why(cls, why: Why) -> "WhyAnswer":
        """The JSON of a feed's explanation."""
        return cls(
            **RankedNews.from_ranked(why.ranked).model_dump(),
            position=why.position,
            is_clicked=why.is_clicked,
            num_clicks=why.num_clicks,
            popularity_weight=why.popularity_weight,
            rules=[RuleAnswer.from_rule(rule) for rule in why.rules],
        )
