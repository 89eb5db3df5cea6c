"""Validations of a run: measure the AUC, record it, and save the model if none was better.

    initial model saved --> steps --> initial and trained model validated --> steps --> validated --> ...

The initial model is validated from its file when the first trained one is, so that nobody waits for it before the
first step. Shapes: V all articles.
"""

from speedyfeed.progress import Report
from speedyfeed.training.artifacts import best_name, initial_weights, save_best
from speedyfeed.training.metrics import MetricsFile, ValidationPoint
from speedyfeed.training.schedule import Schedule
from speedyfeed.training.trainer import INITIALIZE, Trainer


class Validator:
    """Runs the validations of a run and saves its best model."""

    def __init__(self, trainer: Trainer, metrics: MetricsFile) -> None:
        self._trainer = trainer
        self._metrics = metrics

    def initialize(self, schedule: Schedule, report: Report) -> None:
        """Initialize the model before the first step, and save it; a run of no steps validates it at once."""
        report(INITIALIZE, 0, 0)
        self._trainer.initialize(report)
        if self._trainer.validation is not None:
            self._save_best(schedule)
            if schedule.is_done:
                self._record(schedule, self._trainer.validate(report))

    def run(self, schedule: Schedule) -> float | None:
        """Validate the model as it is and return its AUC; None in a run without validation."""
        if self._trainer.validation is None:
            return None
        if not schedule.progress.best_auc:
            self._validate_initial(schedule)
        auc = self._trainer.validate()
        self._record(schedule, auc)
        return auc

    def _validate_initial(self, schedule: Schedule) -> None:
        """Validate the saved initial model, unless that is in the metrics of a resumed run."""
        trainer = self._trainer
        auc = trainer.group.broadcast(self._metrics.initial_auc or 0.0)
        if not auc:
            with initial_weights(trainer.run, trainer.model, trainer.group) as biases_V:
                auc = trainer.validate(biases_V=biases_V)
            point = ValidationPoint(auc=auc, clicks=0, seconds=0)
            self._metrics.write_initial(point, schedule.progress.step)
        schedule.record_best(auc)

    def _record(self, schedule: Schedule, auc: float) -> None:
        """Write a line of metrics, and save the model if it is the initial one or better than all before."""
        progress = schedule.progress
        point = ValidationPoint(auc=auc, clicks=progress.clicks, seconds=progress.seconds)
        self._metrics.write(progress.step, point.metrics())
        if progress.step and not auc > progress.best_auc:
            return
        self._save_best(schedule)
        schedule.record_best(auc)

    def _save_best(self, schedule: Schedule) -> None:
        trainer, name = self._trainer, best_name(schedule.progress.step)
        trainer.group.on_rank_0(lambda: save_best(trainer.run, trainer.model, name, trainer.loss.biases()))
