"""Measure where the time of a training step goes: waiting for data, encoder, user model, update, cache.

The real loader feeds the real trainer, with learning rates of zero. The encoder should take at least 85% of a
step, and waiting for data less than 2%.

Example: speedyfeed profile store/ --recipe speed-mini --steps 12
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.data.store import open_store
from speedyfeed.progress import progress_bars
from speedyfeed.training.config import ProfileConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Folder of the prepared store."""
    config: Annotated[ProfileConfig, arg(name="")] = field(default_factory=ProfileConfig)
    json: bool = False
    """Print the shares as one JSON object."""


def run(arguments: Arguments) -> None:
    from speedyfeed.profile import profile, profile_table

    with progress_bars() as report:
        found = profile(open_store(arguments.store), arguments.config, report)
    print(json.dumps(dataclasses.asdict(found)) if arguments.json else profile_table(found))
