"""Boosts and bans of the editor."""

import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from speedyfeed.serving.rules import Rule
from speedyfeed.serving.schemas.fields import Category, Id, RequestBody


class RuleBody(RequestBody):
    """A boost or a ban of one article, or of one category."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["news_id"], "properties": {"news_id": {"type": "string"}}},
                {"required": ["category"], "properties": {"category": {"type": "string"}}},
            ]
        }
    )

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
