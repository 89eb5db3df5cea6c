"""The training loop: a run from its newest checkpoint to its end; when to look, to save, to stop.

first look --> steps, with looks and checkpoints between --> looks at interpolates --> the recommender
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from speedyfeed.batching.batches import Batch
from speedyfeed.batching.loader import Loader, LoaderState
from speedyfeed.data.store import Store
from speedyfeed.progress import Report, silent
from speedyfeed.training.artifacts import write_model
from speedyfeed.training.checkpoint import Progress
from speedyfeed.training.config import TrainConfig
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.interpolation import interpolate
from speedyfeed.training.metrics import Meter, MetricsFile
from speedyfeed.training.run_folder import RunFolder
from speedyfeed.training.signals import Stop, Stopped
from speedyfeed.training.trainer import Trainer

Watch = Callable[[Trainer, Batch], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How far a call of `train` came."""

    progress: Progress
    is_finished: bool
    """False when it was told to stop before its end; training again goes on from there."""


def train(
    run: RunFolder,
    store: Store,
    report: Report = silent,
    ranks: ProcessGroup = SINGLE_PROCESS,
    watch: Watch | None = None,
) -> Outcome:
    """Train from the newest checkpoint, or from the start, until the run's limits or a signal say stop.

    `watch` is shown every batch before it is learned from; its time is not counted.
    """
    with Stop() as stop:
        trainer = Trainer(run, store, ranks)
        progress, state = trainer.restore()
        if ranks.any(run.model.exists()):
            best = run.facts.get("best_auc", progress.best_auc)
            return Outcome(progress=replace(progress, best_auc=best), is_finished=True)
        resume_step = -1 if state is None else progress.step
        with MetricsFile(run.path if ranks.is_rank_0 else None, resume_step=resume_step) as metrics:
            try:
                progress, is_over = _learn(trainer, metrics, progress, state, stop, report, watch)
            except Stopped:
                return Outcome(progress=progress, is_finished=False)
            if is_over:
                progress = _validate_interpolations(trainer, metrics, progress, stop)
        if not is_over or ranks.any(stop.is_asked):
            return Outcome(progress=progress, is_finished=False)
        ranks.on_rank_0(lambda: run.note(best_auc=progress.best_auc))
        try:
            write_model(run, trainer.model, store, trainer.news, stop.heard_by(report, ranks), ranks)
        except Stopped:
            return Outcome(progress=progress, is_finished=False)
    return Outcome(progress=progress, is_finished=True)


def _learn(
    trainer: Trainer,
    metrics: MetricsFile,
    progress: Progress,
    state: LoaderState | None,
    stop: Stop,
    report: Report,
    watch: Watch | None,
) -> tuple[Progress, bool]:
    """Steps, looks and checkpoints; returns how far they came, and whether that was to the end."""
    config, ranks = trainer.config.train, trainer.ranks
    is_over = _is_over(progress, config)
    saved_step = progress.step
    factor = 0.0
    meter = Meter()
    with Loader(
        trainer.store.train,
        trainer.news.lengths_M.numpy(),
        trainer.config.batch,
        trainer.config.cache,
        seed=config.seed,
        epochs=config.epochs,
        state=state,
        fallback_negatives=trainer.loss.uses_fallback_negatives,
    ) as loader:
        if state is None:
            heard = stop.heard_by(report, ranks)
            heard("initial validation", 0, 0)
            auc = trainer.initialize(
                lambda _, done, total, note="": heard("initial validation", done, total, note)
            )
            if trainer.validation is not None:
                progress = _record_validation(trainer, metrics, progress, auc)
        while not is_over:
            started = perf_counter()
            batch = next(loader, None)
            if batch is None:
                is_over = True
                trainer.flush(factor)
                metrics.write(progress.step, trainer.check_cache(progress.step))
                trainer.save(progress, loader.state())
                break
            waited = perf_counter() - started
            if watch is not None:
                watch(trainer, batch)
                started = perf_counter() - waited
            ranks.take_traffic()  # what was told between two steps is of neither
            epochs = batch.after.epoch + batch.after.num_instances / loader.num_instances
            share = _share_of_run(config, (progress.epochs + epochs) / 2, batch.step + 0.5, progress.seconds)
            factor = lr_factor(share, config.warmup)
            loss = trainer.step(batch, factor)
            seconds = ranks.broadcast(perf_counter() - started)  # all must agree on how long the run has been
            before = _share_of_run(config, progress.epochs, progress.step, progress.seconds)
            progress = replace(
                progress,
                step=batch.step + 1,
                epochs=epochs,
                clicks=progress.clicks + batch.num_clicks,
                seconds=progress.seconds + seconds,
            )
            after = _share_of_run(config, progress.epochs, progress.step, progress.seconds)
            crossed = int(after * config.validations) > int(before * config.validations)
            meter.add(batch, loss=loss, seconds=seconds, waited=waited, traffic=ranks.take_traffic())
            report("train", min(1000, int(1000 * after)), 1000, meter.note())
            is_stopped = ranks.any(stop.is_asked)
            is_over = _is_over(progress, config)
            if meter.is_due(last=after >= 1 or is_stopped):
                metrics.write(progress.step, meter.take() | {"epochs": epochs, "lr_factor": factor})
            if is_over:
                trainer.flush(factor)
            if trainer.validation is not None and (crossed or is_over):
                progress = _record_validation(trainer, metrics, progress, trainer.validate())
            is_whole = progress.step % config.accumulate == 0  # an update is never half saved
            if is_over or (is_whole and (is_stopped or progress.step - saved_step >= config.checkpoint_every)):
                metrics.write(progress.step, trainer.check_cache(progress.step))
                trainer.save(progress, loader.state())
                saved_step = progress.step
                if is_stopped:
                    break
    return progress, is_over


def lr_factor(share: float, warmup: float) -> float:
    """What peak learning rates are multiplied by after that share of a run: up to 1, then down to 0."""
    if share < warmup:
        return share / warmup
    return max(0.0, (1 - share) / (1 - warmup))


def _share_of_run(config: TrainConfig, epochs: float, step: float, seconds: float) -> float:
    """How far a run is by passes, steps or time, whichever is furthest."""
    return max(
        epochs / config.epochs,
        0.0 if config.steps is None else step / config.steps,
        0.0 if config.minutes is None else seconds / (60 * config.minutes),
    )


def _is_over(progress: Progress, config: TrainConfig) -> bool:
    """Whether steps or time are used up; passes end with the loader's batches."""
    has_steps = config.steps is not None and progress.step >= config.steps
    return has_steps or (config.minutes is not None and progress.seconds >= 60 * config.minutes)


def _record_validation(
    trainer: Trainer, metrics: MetricsFile, progress: Progress, auc: float, alpha: float | None = None
) -> Progress:
    """Note a validation, of a blend perhaps, and keep the model if none was better; the start is always kept."""
    told = {"validation_auc": auc, "clicks": progress.clicks, "seconds": progress.seconds}
    metrics.write(progress.step, told if alpha is None else told | {"interpolation_alpha": alpha})
    if progress.step and not auc > progress.best_auc:
        return progress
    trainer.save_best(progress.step, alpha)
    return replace(progress, best_auc=auc)


def _validate_interpolations(trainer: Trainer, metrics: MetricsFile, progress: Progress, stop: Stop) -> Progress:
    """ValidationPoint at interpolates of the start and the end, where the start was saved."""
    if not progress.step or not trainer.ranks.any(trainer.run.initial_weights.exists()):
        return progress

    def look(share: float) -> None:
        nonlocal progress
        if trainer.ranks.any(stop.is_asked):
            return  # all of them come again when the run is resumed
        progress = _record_validation(trainer, metrics, progress, trainer.validate(), share)

    interpolate(trainer.run.initial_weights, trainer.model, look)
    return progress
