"""Recommend articles to one user, by the articles they clicked.

Example: speedyfeed recommend runs/first --history N12,N7 --k 5
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig
from speedyfeed.run_evaluation import open_finished_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or name of a recommender on the Hub."""
    history: str = ""
    """Ids of the articles the user clicked, oldest first, separated by commas; empty for a new user."""
    user: str | None = None
    """Id of the user, for recommenders that learn user ids (lstur, npa); others ignore it."""
    k: int = 10
    """Number of articles to recommend."""
    seen: str = ""
    """Ids of articles that were shown to the user before, separated by commas; they are left out."""
    rerank: RerankConfig = field(default_factory=RerankConfig)
    plain: bool = False
    """List the articles in the order of their scores, without re-ranking."""
    json: bool = False
    """Print the recommendations as one JSON object."""


def run(arguments: Arguments) -> None:
    if arguments.k < 1:
        raise InputError(f"k {arguments.k}: expected at least 1")
    model = open_finished_run(arguments.run).model
    found = model.recommend(
        _split(arguments.history),
        k=arguments.k,
        user=arguments.user,
        seen=_split(arguments.seen),
        rerank=PLAIN if arguments.plain else arguments.rerank,
    )
    if arguments.json:
        print(json.dumps({"recommendations": [dataclasses.asdict(one) for one in found]}))
        return
    for one in found:
        print(f"{one.score:8.3f}  {one.news_id:10} {one.category:16} {one.title}")


def _split(news_ids: str) -> list[str]:
    return [news_id for news_id in news_ids.split(",") if news_id]
