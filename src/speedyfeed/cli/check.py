"""Compare every file of a store or a run with the checksum it was written with, and name the first damaged one.

Every command compares the files that it uses; this compares all of them.

Example: speedyfeed check store/
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    path: Annotated[Positional[Path], arg(metavar="STORE|RUN")]
    """Folder of a prepared store, of a run, or of a saved recommender."""
    json: bool = False
    """Print the number of files and their size in bytes as one JSON object."""


def run(arguments: Arguments) -> None:
    from speedyfeed.model_card import CARD
    from speedyfeed.pretrained import MODULES
    from speedyfeed.training.trackers import DEFAULT

    if not verify(arguments.path, needs_record=True):
        raise InputError(f"{arguments.path}: neither a store nor a run nor a saved recommender; check the path")
    files = [file for file in arguments.path.rglob("*") if file.is_file()]
    edited = (CARD, MODULES)  # by people, so nothing is compared
    sizes = [file.stat().st_size for file in files if file.name not in edited and file.parent.name != DEFAULT]
    if arguments.json:
        print(json.dumps({"files": len(sizes), "bytes": sum(sizes)}))
    else:
        print(f"{arguments.path}: {len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB, all intact")


def verify(path: Path, *, needs_record: bool = False) -> bool:
    """Verify all files of a store, a run or a saved recommender; False for any other folder.

    With `needs_record`, missing checksums are an error too.
    """
    from speedyfeed.checksums import verify_checksums
    from speedyfeed.data.manifest import MANIFEST
    from speedyfeed.data.store import open_store
    from speedyfeed.saved_model import CONFIG, remedy_for

    if (path / MANIFEST).exists():
        open_store(path).verify()
    elif (path / "run.json").exists():
        _verify_run(path, needs_record=needs_record)
    elif (path / CONFIG).exists():
        verify_checksums(path, remedy_for(path), needs_record=needs_record)
    else:
        return False
    return True


def _verify_run(path: Path, *, needs_record: bool) -> None:
    from speedyfeed.checksums import verify_checksums
    from speedyfeed.saved_model import remedy_for
    from speedyfeed.training.checkpoint import checkpoints, verify_checkpoint
    from speedyfeed.training.metrics import load_saved
    from speedyfeed.training.run_folder import AGAIN, open_run

    run = open_run(path)
    for best in run.best.glob("step-*"):
        verify_checksums(best, AGAIN, needs_record=needs_record)
    if run.model.exists():
        load_saved(path)
        verify_checksums(run.model, remedy_for(run.model), needs_record=needs_record)
    for checkpoint in checkpoints(run.checkpoints):
        verify_checkpoint(checkpoint, needs_record=needs_record)
