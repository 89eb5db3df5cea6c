"""Feedback of users, and the log of it."""

import time
from typing import Literal

from pydantic import BaseModel, Field

from speedyfeed.serving.feedback import Feedback
from speedyfeed.serving.schemas.fields import MAX_HISTORY, MAX_K, Id, RequestBody


class FeedbackBody(RequestBody):
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


class ExportAnswer(BaseModel):
    """A log of feedback that was written into the data folder of the service."""

    folder: str = Field(description="Name of the log's folder in the data folder, for speedyfeed prepare.")
    impressions: int = Field(description="Number of impressions in the log.")
