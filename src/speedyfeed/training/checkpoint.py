"""Checkpoints: everything needed to resume a run bit for bit, between any two updates.

    step-00001200/
      model/                 what `Recommender.from_pretrained` loads
      training.safetensors   optimizer, loss parameters, loader position and stamps, cache rows, deferred gradients
      state.json             progress of the run

A checkpoint is written to a temporary folder and renamed when complete; no pickle anywhere.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speedyfeed.batching.loader import LoaderState
from speedyfeed.checksums import damaged, share_equal, verify_checksums, write_checksums
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, read_json, remove_folder, write_json
from speedyfeed.pretrained import Recommender
from speedyfeed.saved_model import WEIGHTS, load_weights
from speedyfeed.training.metrics import MetricsFile
from speedyfeed.training.run_folder import AGAIN
from speedyfeed.training.schedule import Progress, Schedule
from speedyfeed.training.trainer import Trainer

log = logging.getLogger(__name__)

TRAINING = "training.safetensors"
STATE = "state.json"


class Checkpointer:
    """Saves and restores a trainer, and retains its newest checkpoints."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._folder = trainer.run.checkpoints

    def restore(self) -> tuple[Progress, LoaderState | None]:
        """Load the newest checkpoint into the trainer; without one, the progress of a new run and no state."""
        trainer = self._trainer
        step = int(trainer.group.broadcast(trainer.group.on_rank_0(lambda: newest_intact_step(self._folder)) or 0))
        if step < 0:
            return Progress(), None
        restored = load_checkpoint(
            checkpoint_path(self._folder, step),
            model=trainer.model,
            loss=trainer.loss,
            optimizer=trainer.optimizer,
            scaler=trainer.scaler,
            cache=trainer.cache if trainer.group.is_writer else None,
            load_deferred=trainer.load_deferred,
        )
        trainer.group.barrier()  # until every host has the rows
        return restored

    def save(self, schedule: Schedule, loader: LoaderState, metrics: MetricsFile) -> None:
        """Check that the caches of all hosts agree, write a checkpoint, and remove the oldest ones."""
        step = schedule.progress.step
        metrics.write(step, self._trainer.check_cache(step))
        deferred = self._trainer.export_deferred()
        self._trainer.group.on_rank_0(lambda: self._save(schedule.progress, loader, deferred))
        schedule.checkpoint_saved()

    def _save(self, progress: Progress, loader: LoaderState, deferred: dict[str, Tensor]) -> None:
        trainer = self._trainer
        trainer.run.require_store(trainer.store)
        save_checkpoint(
            self._folder,
            progress=progress,
            model=trainer.model,
            loss=trainer.loss,
            optimizer=trainer.optimizer,
            scaler=trainer.scaler,
            loader=loader,
            cache=trainer.cache,
            oldest_row=progress.step - trainer.config.cache_in_use.max_age,
            deferred=deferred,
            best=trainer.run.best.glob("step-*"),
        )
        prune(self._folder, trainer.config.train.max_checkpoints)


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
    deferred: dict[str, Tensor],
    best: Iterable[Path] = (),
) -> Path:
    """Write a checkpoint below `folder`, without cache rows older than step `oldest_row`.

    Files that the saved models `best` hold too are shared with them.
    """
    path = checkpoint_path(folder, progress.step)
    if path.exists():
        return path
    tensors = {f"loader.{name}": torch.as_tensor(array) for name, array in loader.arrays().items()}
    tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
    tensors |= _optimizer_tensors(optimizer)
    if cache is not None:
        tensors |= {f"cache.{name}": value for name, value in cache.export(oldest_row).items()}
    tensors |= {f"deferred.{name}": value for name, value in deferred.items()}
    with new_folder(path) as partial:
        model.save_pretrained(partial / "model")
        share_equal(partial / "model", best)
        save_file({name: value.contiguous() for name, value in tensors.items()}, partial / TRAINING)
        write_json(partial / STATE, {"progress": asdict(progress), "scaler": scaler.state_dict()})
        write_checksums(partial, [TRAINING, STATE])
    return path


def load_checkpoint(
    path: Path,
    *,
    model: Recommender,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    cache: NewsCache | None,
    load_deferred: Callable[[dict[str, Tensor]], None],
) -> tuple[Progress, LoaderState]:
    """Load a checkpoint into the given parts; return the progress and the state of the loader."""
    try:
        state = read_json(path / STATE)
        progress = Progress(**state["progress"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _other_version(path, error) from error
    load_weights(model, path / "model" / WEIGHTS)
    try:
        tensors = load_file(path / TRAINING)
    except SafetensorError as error:
        raise damaged(path / TRAINING, "remove the checkpoint to resume from the one before") from error
    try:
        loss.load_state_dict(_part(tensors, "loss"))
        _load_optimizer(optimizer, _part(tensors, "optimizer"))
        if scaler.is_enabled():
            scaler.load_state_dict(state["scaler"])
        if cache is not None:
            cache.load(_part(tensors, "cache"))
        load_deferred(_part(tensors, "deferred"))
        arrays = {name: value.numpy() for name, value in _part(tensors, "loader").items()}
        return progress, LoaderState.from_arrays(arrays)
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _other_version(path, error) from error


def _other_version(path: Path, found: Exception) -> InputError:
    """Error for a checkpoint that is intact, since its checksums were compared, but cannot be loaded."""
    return InputError(
        f"{path}: is a checkpoint of another version of speedyfeed ({type(found).__name__}: {found}); resume with "
        "that version, or train in another folder"
    )


def checkpoint_path(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def newest_step(folder: Path) -> int:
    """Step of the newest checkpoint; -1 where there is none."""
    saved = checkpoints(folder)
    return step_of(saved[-1]) if saved else -1


def newest_intact_step(folder: Path) -> int:
    """Step of the newest checkpoint whose files have their checksums; -1 where there is no checkpoint at all.

    Damaged ones after it are removed, so that the run can write them again.
    """
    errors: dict[Path, InputError] = {}
    for path in reversed(checkpoints(folder)):
        try:
            verify_checkpoint(path)
        except InputError as error:
            errors[path] = error
            continue
        for newer, reason in errors.items():
            log.warning("%s; resuming from the checkpoint before it, %s", reason, path.name)
            remove_folder(newer)
        return step_of(path)
    if errors:
        raise InputError(f"no checkpoint is intact: {next(iter(errors.values()))}; {AGAIN}")
    return -1


def verify_checkpoint(path: Path, *, needs_record: bool = False) -> None:
    """Compare all files of a checkpoint with their checksums; an error names the first that differs.

    With `needs_record`, missing checksums are an error too.
    """
    for folder, name in ((path, STATE), (path, TRAINING), (path / "model", WEIGHTS)):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: is missing, so this checkpoint cannot be used")
    for folder in (path, path / "model"):
        verify_checksums(folder, "this checkpoint cannot be used", needs_record=needs_record)


def step_of(path: Path) -> int:
    """Step at which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(folder.glob("step-*"))


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[:-keep]:
        remove_folder(path)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of AdamW, all tensors: a step count and two moments for each parameter, by its number."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{number}.{name}": value for number, part in state.items() for name, value in part.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    for parameter, part in state.items():
        if part.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            raise KeyError(f"optimizer.{parameter} with {sorted(part)}")
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Entries whose name begins with the given one, without that prefix."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
