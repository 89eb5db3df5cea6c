"""The training loop: a run from its newest checkpoint to its end.

initial model --> steps, with validations and checkpoints --> finished recommender

Shapes: V all articles.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from speedyfeed.training.metrics import MetricsFile, find_best
from speedyfeed.training.recorder import StepClock, StepRecorder
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
                recorder = StepRecorder(metrics, report, group)
                _learn(trainer, loader, schedule, validator, checkpointer, recorder, stop, watch, callbacks)
            except Stopped:
                return Outcome(progress=schedule.progress, is_finished=False, signal=stop.signal)
        if not schedule.is_done or group.any(stop.is_asked):
            return Outcome(progress=schedule.progress, is_finished=False, signal=stop.signal)
        group.on_rank_0(lambda: _note_best(run))
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


def _note_best(run: RunFolder) -> None:
    """Record the best validation in run.json, now that the metrics are complete."""
    best = find_best(run.path)
    if best is not None:
        run.note(best_auc=best.auc, best_clicks=best.clicks)


def _finished(run: RunFolder, progress: Progress) -> Outcome:
    best_is_initial = progress.step > 0 and (run.best / best_name(0)).exists()
    return Outcome(progress=progress, is_finished=True, best_is_initial=best_is_initial)


def _learn(
    trainer: Trainer,
    loader: Loader,
    schedule: Schedule,
    validator: Validator,
    checkpointer: Checkpointer,
    recorder: StepRecorder,
    stop: Stop,
    watch: Watch | None,
    callbacks: Sequence[Callback],
) -> None:
    """Take steps until the schedule is done or a signal asks to stop."""
    clock = StepClock()
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


def _finish(trainer: Trainer, schedule: Schedule, recorder: StepRecorder, lr_factor: float) -> None:
    """Apply and deliver what the last step leaves behind."""
    trainer.finish(schedule.progress.step, lr_factor)
    recorder.metrics.write(schedule.progress.step, trainer.deferred_metrics() | trainer.drift.by_age())


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

    `lengths_V` holds the number of tokens of every article. Clicks get negatives only for a loss that uses them.
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
        without_negatives=config.loss_on(train).without_negatives,
    )
