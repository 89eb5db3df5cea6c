"""Recommend articles to one user, by the articles they clicked.

Example: speedyfeed recommend runs/first --history N12,N7 --k 5
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional, UseAppendAction, arg

from speedyfeed.ranges import MANY, Ranges, check_ranges
from speedyfeed.retrieval.rerank import PLAIN, RerankConfig

if TYPE_CHECKING:
    from speedyfeed.pretrained import Recommender


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or name of a recommender on the Hub."""
    history: UseAppendAction[tuple[str, ...]] = ()
    """Ids of the articles the user clicked, oldest first, separated by commas; empty for a new user. An id
    that has a comma is given alone; the option can be repeated."""
    user: str | None = None
    """Id of the user, for recommenders that learn user ids (lstur, npa); others ignore it."""
    k: int = 10
    """Number of articles to recommend."""
    seen: UseAppendAction[tuple[str, ...]] = ()
    """Ids of articles that were shown to the user before, separated by commas like those of the history; they are
    left out."""
    rerank: RerankConfig = field(default_factory=RerankConfig)
    plain: bool = False
    """List the articles in the order of their scores, without re-ranking."""
    json: bool = False
    """Print the recommendations as one JSON object."""

    RANGES: ClassVar[Ranges] = {"k": (1, MANY)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


def run(arguments: Arguments) -> None:
    from speedyfeed.pretrained import Recommender

    model = Recommender.from_pretrained(arguments.run, with_encoder=False)
    found = model.recommend(
        _ids(arguments.history, model),
        k=arguments.k,
        user=arguments.user,
        seen=_ids(arguments.seen, model),
        rerank=PLAIN if arguments.plain else arguments.rerank,
    )
    if arguments.json:
        print(json.dumps({"recommendations": [dataclasses.asdict(one) for one in found]}))
        return
    for one in found:
        print(f"{one.score:8.3f}  {one.news_id:10} {one.category:16} {one.title}")


def _ids(history: Sequence[str], model: "Recommender") -> list[str]:
    """Ids of a history as it was typed: a value is one id if there is such an article, else ids and commas."""
    known = model.catalogue.row if model.catalogue else {}
    typed = [[value] if value in known else value.split(",") for value in history]
    return [news_id for ids in typed for one in ids if (news_id := one.strip())]
