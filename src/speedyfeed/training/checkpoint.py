"""A moment of a run on disk: all it takes to go on as if nothing had happened.

    step-00001200/
      model/                 what `Recommender.from_pretrained` loads
      training.safetensors   optimizer, loss parameters, loader position and stamps, cache rows
      state.json             how far the run was

Written beside its place and renamed when whole; no pickle anywhere.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from speedyfeed.batching.loader import LoaderState
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, remove_folder, write_json
from speedyfeed.pretrained import WEIGHTS, Recommender

TRAINING = "training.safetensors"
STATE = "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    """Batches trained on."""
    epochs: float = 0.0
    """Passes over the users, the present one in part."""
    clicks: int = 0
    """Clicks learned from."""
    seconds: float = 0.0
    """Time spent training."""
    best_auc: float = 0.0
    """On the validation sample; 0 before the first."""


def save_checkpoint(
    folder: Path,
    *,
    progress: Progress,
    model: Recommender,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    loader: LoaderState,
    cache: NewsCache | None,
    oldest_row: int,
) -> Path:
    """Write a checkpoint of the run below `folder`; cache rows older than step `oldest_row` are left out."""
    path = checkpoint_path(folder, progress.step)
    if path.exists():
        return path
    tensors = {f"loader.{name}": torch.as_tensor(array) for name, array in loader.arrays().items()}
    tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
    tensors |= _optimizer_tensors(optimizer)
    if cache is not None:
        tensors |= {f"cache.{name}": value for name, value in cache.export(oldest_row).items()}
    with new_folder(path) as partial:
        model.save_pretrained(partial / "model")
        save_file({name: value.contiguous() for name, value in tensors.items()}, partial / TRAINING)
        write_json(partial / STATE, {"progress": asdict(progress), "scaler": scaler.state_dict()})
    return path


def load_checkpoint(
    path: Path,
    *,
    model: Recommender,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    cache: NewsCache | None,
) -> tuple[Progress, LoaderState]:
    """Put everything back where it was; the loader's part is returned."""
    try:
        state = json.loads((path / STATE).read_text("utf-8"))
        progress = Progress(**state["progress"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: not a checkpoint of this version; remove it to resume from the one before"
        ) from error
    load_model(model, str(path / "model" / WEIGHTS))
    tensors = load_file(path / TRAINING)
    loss.load_state_dict(_part(tensors, "loss"))
    _load_optimizer(optimizer, _part(tensors, "optimizer"))
    if scaler.is_enabled():
        scaler.load_state_dict(state["scaler"])
    if cache is not None:
        cache.load(_part(tensors, "cache"))
    arrays = {name: value.numpy() for name, value in _part(tensors, "loader").items()}
    return progress, LoaderState.from_arrays(arrays)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of that step is."""
    return folder / f"step-{step:08d}"


def newest_step(folder: Path) -> int:
    """Of the newest checkpoint; -1 where there is none."""
    saved = checkpoints(folder)
    return int(saved[-1].name.removeprefix("step-")) if saved else -1


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(folder.glob("step-*"))


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[:-keep]:
        remove_folder(path)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW keeps tensors only: a step count and two moments for each parameter, told by its number."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{number}.{name}": value for number, part in state.items() for name, value in part.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The entries below a name, without it."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
