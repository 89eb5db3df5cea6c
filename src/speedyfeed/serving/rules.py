"""Rules of an editor: articles or whole categories that are boosted or banned until some time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["boost", "ban"]
"""A boost adds to the relevance of articles; a ban leaves them out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule: it concerns one article, or all articles of one category."""

    rule_id: str
    kind: Kind
    news_id: str | None = None
    category: str | None = None
    weight: float = 0.0
    """Standard deviations of relevance that a boost adds; unused by a ban."""
    until: float = 0.0
    """Time in seconds since 1970 at which the rule ends."""

    def concerns(self, news_id: str, category: str) -> bool:
        """Whether it concerns this article of this category."""
        return self.news_id == news_id if self.news_id is not None else self.category == category


class Rules:
    """The rules in force at one moment."""

    def __init__(self, rules: Iterable[Rule] = (), *, now: float = 0.0) -> None:
        self.all = [rule for rule in rules if rule.until > now]
        """Rules that have not ended, in the order they were made."""
        self.banned_ids = [rule.news_id for rule in self.all if rule.kind == "ban" and rule.news_id is not None]
        self.banned_categories = [rule.category for rule in self.all if rule.kind == "ban" and rule.category]
        self.boosts = [rule for rule in self.all if rule.kind == "boost"]

    @property
    def need_filters(self) -> bool:
        """Whether a whole category is concerned, so that searches need filters."""
        return any(rule.category for rule in self.all)

    def boost(self, news_id: str, category: str) -> float:
        """Standard deviations of relevance that the boosts of an article add up to."""
        return sum(rule.weight for rule in self.boosts if rule.concerns(news_id, category))
