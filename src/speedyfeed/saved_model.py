"""The folder of a saved recommender: where it is, its weights, and what to do if it cannot be loaded."""

import shlex
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from speedyfeed import __version__
from speedyfeed.checksums import damaged
from speedyfeed.errors import InputError, command
from speedyfeed.files import read_json

CONFIG = "recommender.json"
"""File that holds the settings of a saved recommender."""
WEIGHTS = "model.safetensors"
"""File that holds its weights."""


def find_recommender(path: str | Path) -> Path:
    """Find the folder of a recommender: the `model` folder of a run, the folder itself, or a download."""
    folder = Path(path)
    if (folder / "model" / CONFIG).exists():
        return folder / "model"
    if (folder / "run.json").exists() and not (folder / "model").exists():
        raise InputError(
            f"{path}: the run has not finished; resume: {command('train', 'STORE', path, '--resume')}"
        )
    if (folder / CONFIG).exists():
        return folder
    if folder.exists():
        raise InputError(f"{path}: holds no recommender ({CONFIG}); give a finished run or a saved recommender")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: no such folder, and no such model on the Hub (or it cannot be reached)"
        ) from error


def load_weights(model: nn.Module, path: Path, *, without: str | None = None) -> None:
    """Load the weights of a model from a file; one of other weights, or that holds NaN or Inf, is refused.

    Weights in the file whose names begin with `without` are left out.
    """
    try:
        missing, unexpected = load_model(model, str(path), strict=False)
    except SafetensorError as error:
        raise damaged(path, remedy_for(path.parent)) from error
    except RuntimeError as error:
        raise other_version(path.parent, "weights of other shapes") from error
    if without is not None:
        unexpected = [name for name in unexpected if not name.startswith(without)]
    if missing or unexpected:
        found = [f"no weights {name}" for name in sorted(missing)] + [f"weights {name}" for name in unexpected]
        raise other_version(path.parent, found[0])
    if not all(bool(value.isfinite().all()) for value in model.parameters()):
        raise InputError(f"{path}: holds NaN or Inf; {remedy_for(path.parent)}")


def other_version(folder: Path, found: str) -> InputError:
    """Error for an intact recommender that this version cannot load."""
    try:
        version = read_json(folder / CONFIG)["speedyfeed"]
    except (OSError, KeyError, TypeError, ValueError):
        version = "of an unknown version"
    return InputError(
        f"{folder}: was saved by speedyfeed {version}, this is {__version__}: found {found}; train it again, or "
        "use it with the version that saved it"
    )


def remedy_for(folder: Path) -> str:
    """Advice on how to get a damaged recommender back: a run can write its model again."""
    if folder.name == "model" and (folder.parent / "run.json").exists():
        return f"remove {shlex.quote(str(folder))}, then: {command('train', 'STORE', folder.parent, '--resume')}"
    return "save or download it again"
