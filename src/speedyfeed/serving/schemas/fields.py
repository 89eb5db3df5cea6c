"""Types of fields and limits that several bodies share."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_K = 200
MAX_HISTORY = 200
MAX_IDS = 1000
MAX_BATCH = 100

Id = Annotated[str, Field(min_length=1, max_length=2000)]
"""Id of an article: any text, as logs may hold it, such as an address."""
Abstract = Annotated[str, Field(max_length=5_000)]
Body = Annotated[str, Field(max_length=50_000)]
Category = Annotated[str, Field(max_length=100)]
Coordinates = Annotated[list[float], Field(min_length=2, max_length=2)]
"""x and y on the map of all articles, from -1 to 1."""


class RequestBody(BaseModel):
    """A request body: unknown fields, wrong types, NaN and Inf are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def whole(number: object) -> object:
    """Turn 40.0 into 40: JSON does not tell them apart."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def text(time: object) -> object:
    """Refuse a time that is a number: its unit would be a guess."""
    if not isinstance(time, str):
        raise ValueError("should be a time, written like 2026-11-15T08:30:00Z")
    return time


def in_utc(time: datetime) -> datetime:
    """Convert to UTC, within the years that datetime can hold."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("should be within the years 1 to 9999") from None


Title = Annotated[str, Field(max_length=500, json_schema_extra={"pattern": r"\S"}), AfterValidator(not_blank)]
