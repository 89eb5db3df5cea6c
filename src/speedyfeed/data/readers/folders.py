"""Where a log keeps its splits: `train/`, `dev/` and `test/` below one folder, or the folder is one split."""

from pathlib import Path

from speedyfeed.data.tables import SPLITS
from speedyfeed.errors import InputError

_ALIASES = {"valid": "dev", "validation": "dev"}


def find_splits(folder: Path) -> dict[str, Path]:
    """Folder of each split below `folder`, in the order train, dev, test; empty if there is none."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = split_name(path)
        if name not in SPLITS or not path.is_dir():
            continue
        if name in found:
            raise InputError(
                f"{folder}: found {found[name].name}/ and {path.name}/, expected one {name} split; remove one"
            )
        found[name] = path
    return {name: found[name] for name in SPLITS if name in found}


def split_name(folder: Path) -> str:
    """The split a folder's own name stands for, if any: `validation/` is dev."""
    return _ALIASES.get(folder.name, folder.name)


def find_split_or_self(folder: Path) -> dict[str, Path]:
    """As `find_splits`, or the folder as one split: its own name if that is a split's, else test."""
    name = split_name(folder.resolve())
    return find_splits(folder) or {name if name in SPLITS else "test": folder}


def require_file(path: Path, expected: str) -> Path:
    """The path of a file that must be there; `expected` says which files a log of this format has."""
    if not path.is_file():
        raise InputError(f"{path}: found no such file, expected {expected}; add the file")
    return path
