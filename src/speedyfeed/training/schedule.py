"""The schedule of a run: how far it is, its learning rates, and when a validation or a checkpoint is due.

    fraction of the run    0 ----- warmup ------------------------------ 1     linear; constant is 1 throughout
    learning-rate factor   0 /////// 1 \\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\ 0
    validations            |          |          |          |            |     evenly spaced

A run ends by epochs, steps or minutes, whichever comes first, and its fraction is the largest of the three.
"""

from dataclasses import dataclass, replace

from speedyfeed.batching.batches import Batch
from speedyfeed.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    """Number of batches trained on."""
    epochs: float = 0.0
    """Number of passes over the users, the current one in part."""
    clicks: float = 0
    """Number of clicks learned from, each by its weight in the loss."""
    seconds: float = 0.0
    """Seconds spent training."""
    best_auc: float = 0.0
    """Best AUC on the validation sample so far; 0 before the first validation."""


class Schedule:
    """Progress of a run, and what is due after each of its steps."""

    def __init__(self, config: TrainConfig, progress: Progress, *, num_instances: int) -> None:
        """Continue from `progress`; `num_instances` is the number of training instances of an epoch."""
        self._config = config
        self._num_instances = num_instances
        self._saved_step = progress.step
        self._fraction_before = 0.0
        self.progress = progress
        self.is_done = self._has_reached_limit()

    @property
    def fraction(self) -> float:
        """Fraction of the run that is over: by epochs, steps or time, whichever is largest."""
        return self._fraction_at(self.progress.epochs, self.progress.step)

    @property
    def count(self) -> tuple[int, int]:
        """How much is done, and of how much: instances, steps or seconds, whichever ends the run first."""
        config, progress = self._config, self.progress
        limits = [
            (progress.epochs * self._num_instances, config.epochs * self._num_instances),
            (progress.step, config.steps or 0),
            (progress.seconds, 60 * (config.minutes or 0.0)),
        ]
        done, total = max((limit for limit in limits if limit[1]), key=lambda limit: limit[0] / limit[1])
        return min(round(done), round(total)), round(total)

    def lr_factor(self, batch: Batch) -> float:
        """Factor on the peak learning rates for a batch, taken in the middle of its step."""
        if self._config.schedule == "constant":
            return 1.0
        epochs = (self.progress.epochs + self._epochs_after(batch)) / 2
        return lr_factor(self._fraction_at(epochs, batch.step + 0.5), self._config.warmup)

    def advance(self, batch: Batch, *, clicks: float, seconds: float) -> None:
        """Count a batch with the clicks learned from it, by their weight, and the seconds it took."""
        self._fraction_before = self.fraction
        self.progress = replace(
            self.progress,
            step=batch.step + 1,
            epochs=self._epochs_after(batch),
            clicks=self.progress.clicks + clicks,
            seconds=self.progress.seconds + seconds,
        )
        self.is_done = self._has_reached_limit()

    @property
    def validation_is_due(self) -> bool:
        """Whether the last step crossed one of the evenly spaced validation points, or ended the run."""
        count = self._config.validations
        return self.is_done or int(self.fraction * count) > int(self._fraction_before * count)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether enough steps have passed since the last checkpoint, or the run has ended."""
        is_late = self.progress.step - self._saved_step >= self._config.checkpoint_every
        return self.is_done or (is_late and self.is_between_updates)

    @property
    def is_between_updates(self) -> bool:
        """Whether all accumulated gradients are applied: a checkpoint never splits an update."""
        return self.progress.step % self._config.accumulate == 0

    def checkpoint_saved(self) -> None:
        """Note that a checkpoint of the current step was saved."""
        self._saved_step = self.progress.step

    def record_best(self, auc: float) -> None:
        """Set the best validation AUC."""
        self.progress = replace(self.progress, best_auc=auc)

    def _epochs_after(self, batch: Batch) -> float:
        return batch.after.epoch + batch.after.num_instances / self._num_instances

    def _fraction_at(self, epochs: float, step: float) -> float:
        config = self._config
        return max(
            epochs / config.epochs,
            0.0 if not config.steps else step / config.steps,
            0.0 if config.minutes is None else self.progress.seconds / (60 * config.minutes),
        )

    def _has_reached_limit(self) -> bool:
        """Whether epochs, steps or minutes are used up."""
        return self.fraction >= 1 or self._config.steps == 0


def lr_factor(fraction: float, warmup: float) -> float:
    """Factor on the peak learning rates after a fraction of the run: linearly up to 1, then down to 0."""
    if fraction < warmup:
        return fraction / warmup
    return max(0.0, (1 - fraction) / (1 - warmup))
