"""Make a synthetic newsroom: articles and click logs like the paper's, with a known best possible AUC.

Example: speedyfeed synth newsroom/ --shape small --seed 7
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.progress import progress_bars
from speedyfeed.synthetic import Newsroom, SynthConfig, synthesize


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """Folder of the newsroom to make."""
    config: Annotated[SynthConfig, arg(name="")] = field(default_factory=SynthConfig)
    json: bool = False
    """Print the figures of the newsroom as one JSON object."""


def run(arguments: Arguments) -> None:
    with progress_bars() as report:
        newsroom = synthesize(arguments.out, arguments.config, report)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(newsroom)))
    else:
        print_newsroom(newsroom)
        print(f"{arguments.out} is ready")


def print_newsroom(newsroom: Newsroom) -> None:
    """Print the figures of the log beside the paper's, and the AUC that can be reached on dev."""
    print(
        f"{newsroom.num_users:,} users, {newsroom.num_news:,} articles, {newsroom.num_clicks:,} clicks, "
        f"{newsroom.num_train_impressions:,} train, {newsroom.num_dev_impressions:,} dev and "
        f"{newsroom.num_test_impressions:,} test impressions"
    )
    print(f"{'':40}{'found':>9}{'paper':>9}")
    for figure in newsroom.figures:
        paper = "" if figure.paper is None else f"{figure.paper:.2f}"
        print(f"{figure.name:40}{figure.found:9.2f}{paper:>9}")
    print("AUC on dev, from the true click model")
    for rung in newsroom.ladder:
        print(f"{rung.name:40}{rung.auc:9.4f}")
