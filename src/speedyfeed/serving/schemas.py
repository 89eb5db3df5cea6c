"""What goes over the wire: bodies with their limits, and answers."""

import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from speedyfeed.serving.feed import Answer, Query, Ranked
from speedyfeed.serving.journal import News
from speedyfeed.serving.micro_batcher import Text

MAX_K = 200
MAX_HISTORY = 200
MAX_IDS = 1000
MAX_BATCH = 100

NewId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~@+-]*$", max_length=128)]
"""Safe in a path as it is."""
AnyId = Annotated[str, Field(min_length=1, max_length=128)]
Title = Annotated[str, Field(min_length=1, max_length=500, pattern=r"\S")]
Abstract = Annotated[str, Field(max_length=5_000)]
Body = Annotated[str, Field(max_length=50_000)]
Category = Annotated[str, Field(max_length=100)]
Place = Annotated[list[float], Field(min_length=2, max_length=2)]
"""x and y on the map of all news, from -1 to 1."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _whole(number: object) -> object:
    """To JSON 40.0 and 40 are the same."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _text(time: object) -> object:
    if not isinstance(time, str):
        raise ValueError("should be a time, written like 2026-11-15T08:30:00Z")
    return time


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("should be within the years 1 to 9999") from None


class TextBody(_Body):
    """The text of a news the feed does not have."""

    title: Title
    abstract: Abstract = ""
    body: Body = ""
    category: Category = ""

    def to_text(self) -> Text:
        return self.title, self.abstract, self.body, self.category


class RecommendBody(_Body):
    """A user, and what to look for."""

    history: list[AnyId | TextBody] = Field(
        [], max_length=MAX_HISTORY, description="Clicks, oldest first: ids, or texts. Empty is a new user."
    )
    k: Annotated[int, BeforeValidator(_whole)] = Field(
        10, ge=1, le=MAX_K, description="How many news to answer with, at most."
    )
    candidates: list[AnyId] | None = Field(None, max_length=MAX_IDS, description="Rank only these.")
    exclude: list[AnyId] = Field([], max_length=MAX_IDS, description="Leave out these, and the history.")
    categories: list[Category] = Field([], max_length=100, description="Only these; empty is any.")
    max_age_hours: float | None = Field(
        None, gt=0, le=1_000_000, description="Only news known to have been published within so many hours."
    )
    popularity: float = Field(0.0, ge=0, le=1, description="Share of popularity in the score; the rest is taste.")
    explain: bool = Field(False, description="Say which clicks speak for each news.")

    def to_query(self) -> Query:
        return Query(
            history=[click if isinstance(click, str) else click.to_text() for click in self.history],
            k=self.k,
            candidates=self.candidates,
            exclude=self.exclude,
            categories=self.categories,
            max_age_seconds=None if self.max_age_hours is None else 3600 * self.max_age_hours,
            popularity=self.popularity,
            explain=self.explain,
        )


class NewsBody(TextBody):
    """A news to add, or to change if its id is taken."""

    news_id: NewId | None = Field(None, description="Left out, a new one is given.")
    published: Annotated[AwareDatetime, BeforeValidator(_text), AfterValidator(_in_utc)] | None = Field(
        None, strict=False, description="Left out, it is now."
    )

    def to_news(self) -> News:
        return News(
            news_id=self.news_id or f"new-{uuid.uuid4().hex[:12]}",
            title=self.title,
            abstract=self.abstract,
            body=self.body,
            category=self.category,
            published=time.time() if self.published is None else self.published.timestamp(),
        )


class AddBody(_Body):
    """News to add together."""

    news: list[NewsBody] = Field(min_length=1, max_length=MAX_BATCH)


class NewsAnswer(BaseModel):
    """A news."""

    news_id: str
    title: str
    abstract: str
    category: str
    published: datetime | None = Field(description="None: not known.")
    place: Place = Field(description="x and y on the map of all news, from -1 to 1.")

    @classmethod
    def of(cls, news: News, place: tuple[float, float]) -> Self:
        return cls(**_fields(news, place))


class ReasonAnswer(BaseModel):
    """A click that speaks for a news."""

    click: int = Field(description="Its place in the history, from 0.")
    attention: float | None = Field(description="Its share of the user; null where the model has no such thing.")
    similarity: float = Field(description="Cosine between the two news.")


class RankedNews(NewsAnswer):
    """A news with its score."""

    score: float
    reasons: list[ReasonAnswer] = []

    @classmethod
    def from_ranked(cls, ranked: Ranked) -> "RankedNews":
        reasons = [
            ReasonAnswer(click=one.click, attention=one.attention, similarity=one.similarity)
            for one in ranked.reasons
        ]
        return cls(**_fields(ranked.news, ranked.place), score=ranked.score, reasons=reasons)


class RecommendAnswer(BaseModel):
    """Recommendations, all by one model."""

    model: str = Field(description="Fingerprint of the model that answered.")
    news: list[RankedNews] = Field(description="Best first.")
    unknown: list[str] = Field(description="Ids of the request that name no news here.")
    user: Place = Field(description="The user's place on the map.")
    clicks: list[Place | None] = Field(description="Places of the history; null where unknown.")

    @classmethod
    def from_answer(cls, answer: Answer) -> "RecommendAnswer":
        return cls(
            model=answer.model,
            news=[RankedNews.from_ranked(one) for one in answer.ranked],
            unknown=list(answer.unknown),
            user=list(answer.user),
            clicks=[None if place is None else list(place) for place in answer.clicks],
        )


class ListAnswer(BaseModel):
    """Some news."""

    news: list[RankedNews]


class AddAnswer(BaseModel):
    """News that are on disk and can be found."""

    news_ids: list[str]


class RemoveAnswer(BaseModel):
    """A news that is gone for good."""

    news_id: str


class ReloadAnswer(BaseModel):
    """The run that answers now."""

    model: str
    news: int
    seconds: float


class AboutAnswer(BaseModel):
    """What is served."""

    version: str
    model: str
    news: int
    categories: dict[str, int] = Field(description="News of each, the largest first.")
    knows_popularity: bool
    writes: str = Field(description="open, token (one is needed) or off.")


class StateAnswer(BaseModel):
    """How the service is."""

    status: str


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str


def _fields(news: News, place: tuple[float, float]) -> dict[str, Any]:
    return {
        "news_id": news.news_id,
        "title": news.title,
        "abstract": news.abstract,
        "category": news.category,
        "published": None if news.published is None else datetime.fromtimestamp(news.published, UTC),
        "place": list(place),
    }
