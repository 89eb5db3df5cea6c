"""Steps of a run as they happen: timed, shown on a progress bar, and written as lines of metrics."""

import logging
from collections.abc import Iterator
from time import perf_counter

from speedyfeed.batching.batches import Batch
from speedyfeed.batching.loader import Loader
from speedyfeed.progress import Report
from speedyfeed.training.distributed.process_group import ProcessGroup
from speedyfeed.training.metrics import Meter, MetricsFile
from speedyfeed.training.schedule import Schedule
from speedyfeed.training.trainer import Trainer

log = logging.getLogger(__name__)


class StepClock:
    """Times steps: waiting for the batch, and learning from it."""

    def __init__(self) -> None:
        self._started = 0.0
        self.waited = 0.0
        """Seconds spent waiting for the batch of this step."""

    def time_steps(self, loader: Loader, schedule: Schedule) -> Iterator[Batch]:
        """Batches until the schedule is done or the loader ends; a step begins with the wait for its batch."""
        while not schedule.is_done:
            self._started = perf_counter()
            batch = next(loader, None)
            if batch is None:
                return
            self.waited = perf_counter() - self._started
            yield batch

    def leave_out(self) -> None:
        """Do not count the time since the batch was there."""
        self._started = perf_counter() - self.waited

    def lap(self) -> float:
        """Seconds of the step until now."""
        return perf_counter() - self._started


class StepRecorder:
    """Metrics of steps: added up, shown on a progress bar, and written every few seconds."""

    def __init__(self, metrics: MetricsFile, report: Report, group: ProcessGroup) -> None:
        self.metrics = metrics
        self._report = report
        self._group = group
        self._meter = Meter()
        self._has_told = False

    def add(
        self,
        batch: Batch,
        *,
        clicks: float,
        loss: float,
        seconds: float,
        waited: float,
        count: tuple[int, int],
    ) -> None:
        """Count a step and show how far the run is."""
        traffic = self._group.take_traffic()
        self._meter.add(batch, clicks=clicks, loss=loss, seconds=seconds, waited=waited, traffic=traffic)
        self._report("train", *count, self._meter.note())

    def write(self, schedule: Schedule, trainer: Trainer, *, lr_factor: float, is_last: bool) -> None:
        """Write a line of metrics, if one is due."""
        if self._meter.is_due(last=is_last):
            progress = schedule.progress
            values = self._meter.take() | {"epochs": progress.epochs, "lr_factor": lr_factor}
            if values["max_clicks_share"] > 0.5 and not self._has_told and self._group.is_rank_0:
                self._has_told = True
                log.info(
                    "most batches now end at --batch.max-clicks-per-batch %d, before --batch.token-budget %d; "
                    "raise the first for larger batches",
                    trainer.config.batch.clicks_per_batch,
                    trainer.config.batch.tokens_per_batch,
                )
            self.metrics.write(progress.step, values | trainer.deferred_metrics() | trainer.drift.take())
