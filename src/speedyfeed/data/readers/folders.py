"""Folders of the splits of a log: `train/`, `dev/` and `test/` below one folder, or the folder itself.

`MINDsmall_train/` and `MINDsmall_dev/` are splits as well, where no folder is called after a split alone.

`valid/` and `validation/` are the validation split where there is `dev/` too, and other names of dev elsewhere.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from speedyfeed.data.tables import SPLITS
from speedyfeed.errors import InputError

_ALIASES = {"valid": "dev", "validation": "dev"}


def find_splits(folder: Path) -> dict[str, Path]:
    """Find the folder of each split below `folder`, in the order train, valid, dev, test; empty without any.

    Only where none is called `train`, `dev` or the like, names may have something before it.
    """
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return _find(folder, {path: path.name for path in folders}) or _find(
        folder, {path: re.split(r"[_-]", path.name)[-1] for path in folders}
    )


def _find(folder: Path, names: Mapping[Path, str]) -> dict[str, Path]:
    """Folder of each split, by what the folders are called."""
    found: dict[str, Path] = {}
    has_dev = "dev" in names.values()
    for path, own in names.items():
        name = "valid" if has_dev and own in _ALIASES else split_name(Path(own))
        if name not in SPLITS:
            continue
        if name in found:
            raise InputError(
                f"{folder}: found {found[name].name}/ and {path.name}/, expected one {name} split; remove one"
            )
        found[name] = path
    return {name: found[name] for name in SPLITS if name in found}


def split_name(folder: Path) -> str:
    """Split that a folder is named after, in any case, aliases resolved (`Valid/` is dev); else its own name."""
    name = folder.name.lower()
    name = _ALIASES.get(name, name)
    return name if name in SPLITS else folder.name


def find_split_or_self(folder: Path) -> dict[str, Path]:
    """Find the splits below `folder`, or take it as one split: the one it is named after, or test."""
    name = split_name(folder.resolve())
    return find_splits(folder) or {name if name in SPLITS else "test": folder}


def require_file(path: Path, expected: str) -> Path:
    """Return the path of a file that must exist; `expected` lists the files of the format."""
    if not path.is_file():
        raise InputError(f"{path}: found no such file, expected {expected}; add the file")
    return path
