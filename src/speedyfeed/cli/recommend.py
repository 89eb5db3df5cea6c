"""Recommend articles to one user, by the articles they clicked.

Example: speedyfeed recommend runs/first --history N12,N7 --k 5
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
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
    json: bool = False
    """Print the recommendations as one JSON object."""


def run(arguments: Arguments) -> None:
    if arguments.k < 1:
        raise InputError(f"k {arguments.k}: expected at least 1")
    model = open_finished_run(arguments.run).model
    history = [news_id for news_id in arguments.history.split(",") if news_id]
    found = model.recommend(history, k=arguments.k, user=arguments.user)
    if arguments.json:
        print(json.dumps({"recommendations": [dataclasses.asdict(one) for one in found]}))
        return
    for one in found:
        print(f"{one.score:8.3f}  {one.news_id:10} {one.category:16} {one.title}")
