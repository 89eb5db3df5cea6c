"""Everything in one go on a small synthetic newsroom: make it and prepare it.

Example: speedyfeed demo --out runs/demo
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from speedyfeed.commands.prepare import print_summary
from speedyfeed.commands.synth import print_newsroom
from speedyfeed.data.prepare import PrepareConfig, prepare
from speedyfeed.data.synthetic import SynthConfig, synthesize
from speedyfeed.progress import progress_bars


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    out: Path = Path("runs/demo")
    """Folder for all that the demo makes."""


def run(arguments: Arguments) -> None:
    logs, store = arguments.out / "newsroom", arguments.out / "store"
    if (logs / "newsroom.json").exists():
        shutil.rmtree(logs)  # made by a demo before, and made again the same
    with progress_bars() as report:
        newsroom = synthesize(logs, SynthConfig(), report)
    print(f"A synthetic newsroom in {logs}")
    print_newsroom(newsroom)
    with progress_bars() as report:
        prepared = prepare(logs, store, PrepareConfig(), report=report)
    print(f"\nPrepared for training in {store}")
    print_summary(prepared.store)
    model = arguments.out / "run"
    print(f"\nTrain on it:  speedyfeed train {store} {model}\nThen open it: speedyfeed serve {model}")
