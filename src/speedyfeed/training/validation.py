"""Validations of a run: measure the AUC, record it, and save the model if none was better.

initial validation --> validations between steps
"""

from dataclasses import dataclass

from speedyfeed.progress import Report
from speedyfeed.training.artifacts import best_name, save_best
from speedyfeed.training.metrics import MetricsFile
from speedyfeed.training.schedule import Schedule
from speedyfeed.training.trainer import Trainer

INITIAL = "initial validation"


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationPoint:
    """AUC of the validation sample at one moment of a run."""

    auc: float
    clicks: float
    """Number of clicks learned from until then, each by its weight in the loss."""
    seconds: float
    """Seconds of training until then."""

    def metrics(self) -> dict[str, float]:
        """Values for a line of metrics."""
        return {"validation_auc": self.auc, "clicks": self.clicks, "seconds": self.seconds}


class Validator:
    """Runs the validations of a run and saves its best model."""

    def __init__(self, trainer: Trainer, metrics: MetricsFile) -> None:
        self._trainer = trainer
        self._metrics = metrics

    def initialize(self, schedule: Schedule, report: Report) -> None:
        """Initialize the model and validate it before the first step."""
        report(INITIAL, 0, 0)
        self._trainer.initialize()
        if self._trainer.validation is not None:
            auc = self._trainer.validate(lambda _, done, total, note="": report(INITIAL, done, total, note))
            self._record(schedule, auc)

    def run(self, schedule: Schedule) -> float | None:
        """Validate the model as it is and return its AUC; None in a run without validation."""
        if self._trainer.validation is None:
            return None
        auc = self._trainer.validate()
        self._record(schedule, auc)
        return auc

    def _record(self, schedule: Schedule, auc: float) -> None:
        """Write a line of metrics, and save the model if it is the initial one or better than all before."""
        progress = schedule.progress
        point = ValidationPoint(auc=auc, clicks=progress.clicks, seconds=progress.seconds)
        self._metrics.write(progress.step, point.metrics())
        if progress.step and not auc > progress.best_auc:
            return
        name = best_name(progress.step)
        trainer = self._trainer
        trainer.group.on_rank_0(lambda: save_best(trainer.run, trainer.model, name, trainer.loss.biases()))
        schedule.record_best(auc)
