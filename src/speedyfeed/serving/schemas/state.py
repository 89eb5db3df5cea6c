"""What the service serves, its state, and why a request failed."""

from datetime import datetime

from pydantic import BaseModel, Field


class AboutAnswer(BaseModel):
    """What the service serves, and who may write to it."""

    version: str = Field(description="Version of SpeedyFeed in service.")
    model: str = Field(description="Fingerprint of the model in service.")
    news: int = Field(description="Number of articles that can be recommended.")
    categories: dict[str, int] = Field(description="Number of articles in each category, largest first.")
    knows_popularity: bool = Field(
        description="Whether click counts are known, so that popularity can affect scores."
    )
    newest: datetime | None = Field(description="Time of publication of the newest article; null if unknown.")
    others: list[str] = Field(description="Names of other runs that are served beside this one, below /runs/.")
    writes: str = Field(
        description="Who may write: open (this machine), token (whoever has the bearer token) or off (nobody)."
    )


class StateAnswer(BaseModel):
    """State of the service, or of what was asked for."""

    status: str = Field(description="ok if alive, ready if it can recommend; or what was done.")


class Problem(BaseModel):
    """Why a request failed."""

    detail: str = Field(description="One sentence that says what is wrong.")


class ReloadAnswer(BaseModel):
    """The run that is in service after a reload."""

    model: str = Field(description="Fingerprint of the model in service.")
    news: int = Field(description="Number of articles that can be recommended.")
    seconds: float = Field(description="Duration of the reload in seconds.")
