"""JSON of requests and answers: fields, limits and descriptions, as OpenAPI shows them."""

import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from speedyfeed.retrieval.rerank import RerankConfig
from speedyfeed.serving.feed import Answer, MapPosition, Query, Ranked, Why
from speedyfeed.serving.feedback import Feedback
from speedyfeed.serving.journal import News
from speedyfeed.serving.micro_batcher import Text
from speedyfeed.serving.rules import Rule

MAX_K = 200
MAX_HISTORY = 200
MAX_IDS = 1000
MAX_BATCH = 100

Id = Annotated[str, Field(min_length=1, max_length=2000)]
"""Id of an article: any text, as logs may hold it, such as an address."""
Abstract = Annotated[str, Field(max_length=5_000)]
Body = Annotated[str, Field(max_length=50_000)]
Category = Annotated[str, Field(max_length=100)]
CLICK_ID, CLICK_TEXT = "click-id", "click-text"
"""Forms of a click; validation errors name the one that was meant."""
Coordinates = Annotated[list[float], Field(min_length=2, max_length=2)]
"""x and y on the map of all articles, from -1 to 1."""


class _Body(BaseModel):
    """A request body: unknown fields, wrong types, NaN and Inf are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _kind_of_click(click: object) -> str | None:
    """Which of the two forms of a click was meant."""
    return CLICK_ID if isinstance(click, str) else CLICK_TEXT if isinstance(click, dict | TextBody) else None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _whole(number: object) -> object:
    """Turn 40.0 into 40: JSON does not tell them apart."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _text(time: object) -> object:
    """Refuse a time that is a number: its unit would be a guess."""
    if not isinstance(time, str):
        raise ValueError("should be a time, written like 2026-11-15T08:30:00Z")
    return time


def _in_utc(time: datetime) -> datetime:
    """Convert to UTC, within the years that datetime can hold."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("should be within the years 1 to 9999") from None


Title = Annotated[str, Field(max_length=500, json_schema_extra={"pattern": r"\S"}), AfterValidator(_not_blank)]


class TextBody(_Body):
    """Text of an article that need not be in the catalogue."""

    title: Title = Field(description="Headline of the article; must not be blank.")
    abstract: Abstract = Field("", description="Summary of the article, if available.")
    body: Body = Field("", description="Full text of the article, if available.")
    category: Category = Field("", description="Name of the category; empty if the article has none.")

    def to_text(self) -> Text:
        """Title, abstract, body and category, as encoders take them."""
        return self.title, self.abstract, self.body, self.category


Click = Annotated[
    Annotated[Id, Tag(CLICK_ID)] | Annotated[TextBody, Tag(CLICK_TEXT)],
    Discriminator(
        _kind_of_click,
        custom_error_type="click_type",
        custom_error_message="should be the id of an article, or an object with its title",
    ),
]


class RecommendBody(_Body):
    """History of a user, and which articles to recommend."""

    history: list[Click] = Field(
        [],
        max_length=MAX_HISTORY,
        description="Clicks of the user, oldest first: ids of articles, or their texts. Empty for a new user.",
    )
    k: Annotated[int, BeforeValidator(_whole)] = Field(
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


class NewsBody(TextBody):
    """An article to add; it replaces the article with the same id, if there is one."""

    news_id: Id | None = Field(None, description="Id of the article; generated if left out.")
    published: Annotated[AwareDatetime, BeforeValidator(_text), AfterValidator(_in_utc)] | None = Field(
        None,
        strict=False,
        description="Time of publication with its time zone, like 2026-11-15T08:30:00Z; now if left out.",
    )

    def to_news(self) -> News:
        """The article with the id and the time that were left out."""
        return News(
            news_id=self.news_id or f"new-{uuid.uuid4().hex[:12]}",
            title=self.title,
            abstract=self.abstract,
            body=self.body,
            category=self.category,
            published=time.time() if self.published is None else self.published.timestamp(),
        )


class AddBody(_Body):
    """Articles to add in one request."""

    news: list[NewsBody] = Field(
        min_length=1,
        max_length=MAX_BATCH,
        description="Articles to add; the last one counts if an id occurs twice.",
    )


class FeedbackBody(_Body):
    """What one user did with the articles of one list."""

    user: Id = Field(description="Id of the user, any text.")
    actions: dict[Id, Literal["click", "skip", "dislike"]] = Field(
        min_length=1,
        max_length=MAX_K,
        description="What the user did with each article, by its id, in the order shown: click, skip or dislike.",
    )
    history: list[Id] = Field(
        [],
        max_length=MAX_HISTORY,
        description="Ids of articles that the user had clicked before, oldest first.",
    )

    def to_feedback(self) -> Feedback:
        """The feedback at this moment."""
        return Feedback(user_id=self.user, time=time.time(), actions=dict(self.actions), history=self.history)


class RuleBody(_Body):
    """A boost or a ban of one article, or of one category."""

    kind: Literal["boost", "ban"] = Field(description="boost adds to the relevance, ban leaves articles out.")
    news_id: Id | None = Field(None, description="Id of the article; give this or a category.")
    category: Annotated[Category, Field(min_length=1)] | None = Field(None, description="Name of the category.")
    weight: float = Field(
        1.0, gt=0, le=100, description="Standard deviations of relevance that a boost adds; unused by a ban."
    )
    hours: float = Field(24.0, gt=0, le=100_000, description="Hours after which the rule ends.")

    @model_validator(mode="after")
    def _concerns_one_thing(self) -> Self:
        if (self.news_id is None) == (self.category is None):
            raise ValueError("give either news_id or category")
        return self

    def to_rule(self) -> Rule:
        """The rule, which begins now, with an id of its own."""
        return Rule(
            rule_id=f"rule-{uuid.uuid4().hex[:12]}",
            kind=self.kind,
            news_id=self.news_id,
            category=self.category,
            weight=self.weight if self.kind == "boost" else 0.0,
            until=time.time() + 3600 * self.hours,
        )


class RuleAnswer(BaseModel):
    """A rule of the editor."""

    rule_id: str = Field(description="Id of the rule.")
    kind: str = Field(description="Kind of the rule: boost or ban.")
    news_id: str | None = Field(description="Id of the article it concerns; null for a category.")
    category: str | None = Field(description="Category it concerns; null for an article.")
    weight: float = Field(description="Standard deviations of relevance that a boost adds; 0 for a ban.")
    until: datetime = Field(description="Time at which the rule ends.")

    @classmethod
    def from_rule(cls, rule: Rule) -> "RuleAnswer":
        """The JSON of a rule."""
        return cls(
            rule_id=rule.rule_id,
            kind=rule.kind,
            news_id=rule.news_id,
            category=rule.category,
            weight=rule.weight,
            until=datetime.fromtimestamp(rule.until, UTC),
        )


class RulesAnswer(BaseModel):
    """Rules of the editor that are in force."""

    rules: list[RuleAnswer] = Field(description="The rules, in the order they were made.")


class ExportAnswer(BaseModel):
    """A log of feedback that was written into the data folder of the service."""

    folder: str = Field(description="Name of the log's folder in the data folder, for speedyfeed prepare.")
    impressions: int = Field(description="Number of impressions in the log.")


class NewsAnswer(BaseModel):
    """An article without its full text."""

    news_id: str = Field(description="Id of the article.")
    title: str = Field(description="Headline of the article.")
    abstract: str = Field(description="Summary of the article; empty if there is none.")
    category: str = Field(description="Name of the category; empty if there is none.")
    published: datetime | None = Field(description="Time of publication; null if unknown.")
    place: Coordinates = Field(description="Map position: x and y, from -1 to 1.")

    @classmethod
    def from_news(cls, news: News, map_position: MapPosition) -> Self:
        """The answer for an article at that map position."""
        return cls(**_fields(news, map_position))


class ReasonAnswer(BaseModel):
    """A click that contributes to the score of a recommended article."""

    click: int = Field(description="Position of the click in the history, from 0.")
    attention: float | None = Field(
        description="Attention weight of the click in the user embedding; null if the model has no such weights."
    )
    similarity: float = Field(description="Cosine similarity of the clicked and the recommended article.")


class RankedNews(NewsAnswer):
    """An article with its score."""

    score: float = Field(description="Match of the article with the history, before re-ranking; larger is better.")
    reasons: list[ReasonAnswer] = Field(
        [], description="Clicks that contribute most to the score, if an explanation was asked for."
    )

    @classmethod
    def from_ranked(cls, ranked: Ranked) -> "RankedNews":
        """The answer for one article of a ranking."""
        reasons = [
            ReasonAnswer(click=one.click, attention=one.attention, similarity=one.similarity)
            for one in ranked.reasons
        ]
        return cls(**_fields(ranked.news, ranked.map_position), score=ranked.score, reasons=reasons)


class WhyAnswer(RankedNews):
    """Why an article is where it is in the feed of a user."""

    position: int | None = Field(description="Position in the feed, from 1; null if not among the first 200.")
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


class ListAnswer(BaseModel):
    """A list of articles."""

    news: list[RankedNews] = Field(description="The articles of the list.")


class AddAnswer(BaseModel):
    """Articles that were added: they are on disk and can be recommended."""

    news_ids: list[str] = Field(description="Ids of the articles, in the order of the request.")


class RemoveAnswer(BaseModel):
    """An article that was removed for good."""

    news_id: str = Field(description="Id of the removed article.")


class ReloadAnswer(BaseModel):
    """The run that is in service after a reload."""

    model: str = Field(description="Fingerprint of the model in service.")
    news: int = Field(description="Number of articles that can be recommended.")
    seconds: float = Field(description="Duration of the reload in seconds.")


class AboutAnswer(BaseModel):
    """What the service serves, and who may write to it."""

    version: str = Field(description="Version of SpeedyFeed in service.")
    model: str = Field(description="Fingerprint of the model in service.")
    news: int = Field(description="Number of articles that can be recommended.")
    categories: dict[str, int] = Field(description="Number of articles in each category, largest first.")
    knows_popularity: bool = Field(
        description="Whether click counts are known, so that popularity can affect scores."
    )
    writes: str = Field(
        description="Who may write: open (this machine), token (whoever has the bearer token) or off (nobody)."
    )


class StateAnswer(BaseModel):
    """State of the service, or of what was asked for."""

    status: str = Field(description="ok if alive, ready if it can recommend; or what was done.")


class Problem(BaseModel):
    """Why a request failed."""

    detail: str = Field(description="One sentence that says what is wrong.")


def _fields(news: News, map_position: MapPosition) -> dict[str, Any]:
    """Fields of `NewsAnswer`."""
    return {
        "news_id": news.news_id,
        "title": news.title,
        "abstract": news.abstract,
        "category": news.category,
        "published": None if news.published is None else datetime.fromtimestamp(news.published, UTC),
        "place": list(map_position),
    }
