"""Train and evaluate several variants over several seeds on a store, and print one table of them all.

Every variant gets the same training time, and its best validated model is evaluated on all impressions of dev.
Rankings that read no text are shown beside them: chance, popularity, title length, category counts of the history;
and the best possible AUC of a synthetic newsroom (--logs). Stopped or killed, the same command continues; finished
runs are not trained again, so a table can grow by runs and seeds.

Example: speedyfeed sweep store/ runs/sweep --runs speed-mini nrms --minutes 10
"""

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.files import new_file, write_json
from speedyfeed.sweep.config import SweepConfig

if TYPE_CHECKING:
    from speedyfeed.sweep.table import Sweep

log = logging.getLogger(__name__)

NAME = "sweep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Folder of the prepared store, with a dev split."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """Folder for the runs (NAME-SEED), sweep.md, sweep.json and the figures."""
    config: Annotated[SweepConfig, arg(name="")] = field(default_factory=SweepConfig)
    json: bool = False
    """Print the results as one JSON object."""


def run(arguments: Arguments) -> None:
    from speedyfeed.sweep.table import run_sweep, sweep_table
    from speedyfeed.sweep.variants import named_variants

    variants = named_variants(arguments.config.runs)
    sweep = run_sweep(variants, arguments.config, open_store(arguments.store), arguments.out)
    text = sweep_table(sweep)
    with new_file(arguments.out / f"{NAME}.md") as file:
        file.write_text(text + "\n", encoding="utf-8")
    with new_file(arguments.out / f"{NAME}.json") as file:
        write_json(file, asdict(sweep))
    _draw(sweep, arguments.out)
    print(json.dumps(asdict(sweep)) if arguments.json else text)


def _draw(sweep: "Sweep", folder: Path) -> None:
    """Write the figures; without matplotlib, say what to install."""
    from speedyfeed.drawing import style
    from speedyfeed.sweep.figures import draw_sweep

    try:
        with style():
            draw_sweep(sweep, folder, NAME)
    except InputError as error:
        log.warning("no figures were drawn: %s", error)
