"""Articles in requests and answers."""

import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field

from speedyfeed.serving.answer import Ranked
from speedyfeed.serving.journal import News
from speedyfeed.serving.micro_batcher import Text
from speedyfeed.serving.schemas.fields import (
    MAX_BATCH,
    Abstract,
    Body,
    Category,
    Coordinates,
    Id,
    RequestBody,
    Title,
    in_utc,
    text,
)


class TextBody(RequestBody):
    """Text of an article that need not be in the catalogue."""

    title: Title = Field(description="Headline of the article; must not be blank.")
    abstract: Abstract = Field("", description="Summary of the article, if available.")
    body: Body = Field("", description="Full text of the article, if available.")
    category: Category = Field("", description="Name of the category; empty if the article has none.")

    def to_text(self) -> Text:
        """Title, abstract, body and category, as encoders take them."""
        return self.title, self.abstract, self.body, self.category


class NewsBody(TextBody):
    """An article to add; it replaces the article with the same id, if there is one."""

    news_id: Id | None = Field(None, description="Id of the article; generated if left out.")
    published: Annotated[AwareDatetime, BeforeValidator(text), AfterValidator(in_utc)] | None = Field(
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


class AddBody(RequestBody):
    """Articles to add in one request."""

    news: list[NewsBody] = Field(
        min_length=1,
        max_length=MAX_BATCH,
        description="Articles to add; the last one counts if an id occurs twice.",
    )


class NewsAnswer(BaseModel):
    """An article without its full text."""

    news_id: str = Field(description="Id of the article.")
    title: str = Field(description="Headline of the article.")
    abstract: str = Field(description="Summary of the article; empty if there is none.")
    category: str = Field(description="Name of the category; empty if there is none.")
    published: datetime | None = Field(
        description="Time of publication, or when the training log first showed the article; null if unknown."
    )
    place: Coordinates = Field(description="Map position: x and y, from -1 to 1.")
    sketch: list[float] = Field(
        description="The embedding in few numbers from -1 to 1, alike for similar articles: for vignettes."
    )


class StoryAnswer(NewsAnswer):
    """An article with its full text."""

    body: str = Field(description="Full text of the article; empty if there is none.")

    @classmethod
    def from_ranked(cls, ranked: Ranked, body: str) -> Self:
        """The answer for an article with this text."""
        return cls(**_fields(ranked), body=body)


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
        return cls(**_fields(ranked), score=ranked.score, reasons=reasons)


class ListAnswer(BaseModel):
    """A list of articles."""

    news: list[RankedNews] = Field(description="The articles of the list.")


class AddAnswer(BaseModel):
    """Articles that were added: they are on disk and can be recommended."""

    news_ids: list[str] = Field(description="Ids of the articles, in the order of the request.")


class RemoveAnswer(BaseModel):
    """An article that was removed for good."""

    news_id: str = Field(description="Id of the removed article.")


def _fields(ranked: Ranked) -> dict[str, Any]:
    """Fields of `NewsAnswer`."""
    news = ranked.news
    return {
        "news_id": news.news_id,
        "title": news.title,
        "abstract": news.abstract,
        "category": news.category,
        "published": None if news.published is None else datetime.fromtimestamp(news.published, UTC),
        "place": list(ranked.map_position),
        "sketch": list(ranked.sketch),
    }
