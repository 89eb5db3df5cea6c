"""The training loop: a run from its newest checkpoint to its end.

initial model --> steps, with validations and checkpoints --> finished recommender
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.batches import Batch
from speedyfeed.batching.loader import Loader, LoaderState
from speedyfeed.data.store import Store, Timelines
from speedyfeed.files import FolderLock
from speedyfeed.progress import Report, silent
from speedyfeed.training.artifacts import best_name, write_model
from speedyfeed.training.checkpoint import Checkpointer
from speedyfeed.training.config import RunConfig
from speedyfeed.training.disk import announce
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.metrics import Meter, MetricsFile
from speedyfeed.training.run_folder import RunFolder, plain_config
from speedyfeed.training.schedule import Progress, Schedule
from speedyfeed.training.signals import Stop, Stopped
from speedyfeed.training.trackers import DEFAULT
from speedyfeed.training.trainer import Trainer
from speedyfeed.training.validation import Validator

log = logging.getLogger(__name__)

Watch = Callable[[Trainer, Batch], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What a callback sees after every step."""

    progress: Progress
    """How far the run has come: step, epochs, clicks, seconds and best AUC."""
    fraction: float
    """Fraction of the run that is over."""
    loss: float
    """Loss of the step."""
    validation_auc: float | None
    """AUC of the validation that followed the step; None where none was due."""


Callback = Callable[[StepReport], bool | None]
"""A function called after every step; one that returns True stops the run as Ctrl-C does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How far a call of `train` came."""

    progress: Progress
    is_finished: bool
    """False if a signal stopped the run before its end; training it again continues from there."""
    signal: int | None = None
    """Number of the signal that stopped the run, where this process received it."""
    best_is_initial: bool = False
    """Whether no validation during training was better than the initial one, whose model was saved."""


def train(
    run: RunFolder,
    store: Store,
    report: Report = silent,
    group: ProcessGroup = SINGLE_PROCESS,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[str] = (DEFAULT,),
) -> Outcome:
    """Train from the newest checkpoint, or from the start, until the run ends or a signal asks to stop.

    `watch` is called with every batch before it is learned from; its time is not counted. `callbacks` are called
    on rank 0 after every step, and may stop the run. `trackers` get the metrics. A run that another process trains
    is refused.
    """
    lock = group.on_rank_0(lambda: FolderLock(run.path))
    try:
        return _train(run, store, report, group, watch, callbacks, trackers)
    finally:
        if lock is not None:
            lock.release()


def _train(
    run: RunFolder,
    store: Store,
    report: Report,
    group: ProcessGroup,
    watch: Watch | None,
    callbacks: Sequence[Callback],
    trackers: Sequence[str],
) -> Outcome:
    with Stop() as stop:
        trainer = Trainer(run, store, group)
        checkpointer = Checkpointer(trainer)
        progress, state = checkpointer.restore()
        _note_start(trainer, is_new=state is None)
        if group.any(run.model.exists()):
            best = progress.best_auc if run.facts.best_auc is None else run.facts.best_auc
            return _finished(run, replace(progress, best_auc=best))
        resume_step = -1 if state is None else progress.step
        with (
            MetricsFile(
                run.path if group.is_rank_0 else None,
                resume_step=resume_step,
                trackers=trackers,
                settings=plain_config(run.config),
            ) as metrics,
            open_loader(run.config, store.train, trainer.news.lengths_M.numpy(), state) as loader,
        ):
            schedule = Schedule(run.config.train, progress, num_instances=loader.num_instances)
            validator = Validator(trainer, metrics)
            try:
                if state is None:
                    validator.initialize(schedule, stop.heard_by(report, group))
                recorder = _Recorder(metrics, report, group)
                _learn(trainer, loader, schedule, validator, checkpointer, recorder, stop, watch, callbacks)
            except Stopped:
                return Outcome(progress=schedule.progress, is_finished=False, signal=stop.signal)
        if not schedule.is_done or group.any(stop.is_asked):
            return Outcome(progress=schedule.progress, is_finished=False, signal=stop.signal)
        group.on_rank_0(lambda: run.note(best_auc=schedule.progress.best_auc or None))
        try:
            write_model(
                run,
                trainer.model,
                store,
                trainer.news,
                stop.heard_by(report, group),
                group,
                biases_V=trainer.loss.biases(),
            )
        except Stopped:
            return Outcome(progress=schedule.progress, is_finished=False, signal=stop.signal)
    return _finished(run, schedule.progress)


def _finished(run: RunFolder, progress: Progress) -> Outcome:
    best_is_initial = progress.step > 0 and (run.best / best_name(0)).exists()
    return Outcome(progress=progress, is_finished=True, best_is_initial=best_is_initial)


def _learn(
    trainer: Trainer,
    loader: Loader,
    schedule: Schedule,
    validator: Validator,
    checkpointer: Checkpointer,
    recorder: "_Recorder",
    stop: Stop,
    watch: Watch | None,
    callbacks: Sequence[Callback],
) -> None:
    """Take steps until the schedule is done or a signal asks to stop."""
    clock = _Clock()
    factor = 0.0
    for batch in clock.time_steps(loader, schedule):
        if watch is not None:
            watch(trainer, batch)
            clock.leave_out()
        trainer.group.take_traffic()  # traffic between two steps belongs to neither
        factor = schedule.lr_factor(batch)
        loss = trainer.step(batch, factor)
        seconds = trainer.group.broadcast(clock.lap())  # all ranks must agree on the time of the run
        clicks = batch.weigh_clicks(trainer.loss.config.fallback_click_weight)
        schedule.advance(batch, clicks=clicks, seconds=seconds)
        recorder.add(batch, clicks=clicks, loss=loss, seconds=seconds, waited=clock.waited, count=schedule.count)
        is_stopped = trainer.group.any(stop.is_asked)
        recorder.write(schedule, trainer, lr_factor=factor, is_last=schedule.fraction >= 1 or is_stopped)
        if schedule.is_done:
            _finish(trainer, schedule, recorder, factor)
        auc = validator.run(schedule) if schedule.validation_is_due else None
        if callbacks:
            _call(callbacks, schedule, stop, trainer.group, loss=loss, auc=auc)
            is_stopped = trainer.group.any(stop.is_asked)
        if schedule.checkpoint_is_due or (is_stopped and schedule.is_between_updates):
            checkpointer.save(schedule, loader.state(), recorder.metrics)
            if is_stopped:
                return
    if not schedule.is_done:  # the loader has no more batches
        schedule.finish()
        _finish(trainer, schedule, recorder, factor)
        checkpointer.save(schedule, loader.state(), recorder.metrics)


def _call(
    callbacks: Sequence[Callback],
    schedule: Schedule,
    stop: Stop,
    group: ProcessGroup,
    *,
    loss: float,
    auc: float | None,
) -> None:
    """Call all callbacks on rank 0; one of them may ask to stop, but not after the last step."""
    if group.is_rank_0:
        report = StepReport(progress=schedule.progress, fraction=schedule.fraction, loss=loss, validation_auc=auc)
        asked = [callback(report) for callback in callbacks]
        if any(asked) and not schedule.is_done:
            stop.is_asked = True


def _finish(trainer: Trainer, schedule: Schedule, recorder: "_Recorder", lr_factor: float) -> None:
    """Apply and deliver what the last step leaves behind."""
    trainer.finish(schedule.progress.step, lr_factor)
    recorder.metrics.write(schedule.progress.step, trainer.deferred_metrics() | trainer.drift.by_age())


class _Clock:
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


class _Recorder:
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


def _note_start(trainer: Trainer, *, is_new: bool) -> None:
    """Record the precision, repeat warnings about the store, and load word vectors into a new run."""
    run, group = trainer.run, trainer.group
    group.on_rank_0(lambda: run.note(precision=trainer.precision_fact))
    for note in trainer.store.manifest.counts.notes if group.is_rank_0 else ():
        if note.startswith("warning: "):
            log.warning("%s", note)
    if is_new:
        group.on_rank_0(lambda: announce(trainer))
        vectors = trainer.model.news.load_vectors()
        group.on_rank_0(lambda: run.note(word_vectors=vectors))


def open_loader(
    config: RunConfig, train: Timelines, lengths_V: NDArray[np.int64], state: LoaderState | None = None
) -> Loader:
    """Open a loader of the batches that a run learns from, from a state on or from the start.

    `lengths_V` holds the number of tokens of every article. Clicks that weigh nothing get no negatives.
    """
    return Loader(
        train,
        lengths_V,
        config.batch,
        config.cache_in_use,
        seed=config.train.seed,
        epochs=config.train.epochs,
        accumulate=config.train.accumulate,
        state=state,
        fallback_negatives=config.loss_on(train).fallback_click_weight > 0,
    )
