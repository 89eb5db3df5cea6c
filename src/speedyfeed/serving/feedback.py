"""What users did with articles they were shown, and the log of it that `speedyfeed prepare` reads.

POST /v1/feedback -> journal -> FOLDER/train/{news,impressions}.parquet -> prepare -> train -> reload
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from speedyfeed.data.tables import IMPRESSIONS, NEWS
from speedyfeed.files import new_folder
from speedyfeed.serving.journal import News

NEWS_PER_BATCH = 10_000
"""Articles that are written at once."""
Action = Literal["click", "skip", "dislike"]
"""What a user did with an article: clicked it, did not click it, or asked for no more like it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What one user did with the articles of one list."""

    user_id: str
    time: float
    """Time in seconds since 1970."""
    actions: Mapping[str, Action]
    """What the user did with each article, by its id, in the order shown."""
    history: Sequence[str] = ()
    """Ids of the articles that the user had clicked before, oldest first."""

    def clicked(self) -> list[str]:
        """Ids of the articles that were clicked."""
        return [news_id for news_id, action in self.actions.items() if action == "click"]

    def skipped(self) -> list[str]:
        """Ids of the articles that were shown but not clicked, disliked ones included."""
        return [news_id for news_id, action in self.actions.items() if action != "click"]


def write_log(folder: Path, feedback: Iterable[Feedback], news: Iterable[News]) -> int:
    """Write feedback as a log in format parquet with one split, train; returns the number of impressions.

    The history of a user is the one that came with the first feedback. `news` are the articles that a run trained
    on the log can recommend. The folder appears complete or not at all.
    """
    histories: dict[str, Sequence[str]] = {}
    rows: list[dict[str, object]] = []
    for number, one in enumerate(sorted(feedback, key=lambda one: one.time), start=1):
        history = histories.setdefault(one.user_id, one.history)
        rows.append(
            {
                "impression_id": str(number),
                "user_id": one.user_id,
                "time": datetime.fromtimestamp(one.time, UTC).replace(tzinfo=None),
                "clicked": one.clicked(),
                "skipped": one.skipped(),
                "history": list(history),
                "candidates": list(one.actions),
            }
        )
    with new_folder(folder) as partial:
        (partial / "train").mkdir()
        with pq.ParquetWriter(partial / "train" / "news.parquet", NEWS, compression="zstd") as writer:
            articles = iter(news)
            while some := list(islice(articles, NEWS_PER_BATCH)):
                writer.write_batch(pa.RecordBatch.from_pylist([_row(one) for one in some], NEWS))
        pq.write_table(pa.Table.from_pylist(rows, IMPRESSIONS), partial / "train" / "impressions.parquet")
    return len(rows)


def _row(news: News) -> dict[str, str]:
    """The article as a row of the canonical table."""
    return {
        "news_id": news.news_id,
        "category": news.category,
        "subcategory": "",
        "title": news.title,
        "abstract": news.abstract,
        "body": news.body,
    }
