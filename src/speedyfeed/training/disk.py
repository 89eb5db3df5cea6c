"""Room that a run takes on disk, said before it trains."""

import logging
import shutil
from collections.abc import Iterable

from torch import Tensor

from speedyfeed.training.trainer import Trainer

log = logging.getLogger(__name__)

MEGABYTE = 1e6
SMALL_FILES = 1_000_000
"""Bytes of the tokenizer and the settings of a saved model."""
MOMENTS = 2
"""Tensors that AdamW has for each trained one."""


def estimate_bytes(trainer: Trainer) -> int:
    """Largest size of the run folder: a checkpoint or a best model is written before the old one is removed."""
    model, config = trainer.model, trainer.config
    weights = _size(model.state_dict().values()) + SMALL_FILES
    trained = _size(value for value in model.parameters() if value.requires_grad)
    cache = 0 if trainer.cache is None else _size([trainer.cache.rows_VH])
    deferred = cache if config.cache_in_use.gradients else 0
    checkpoint = weights + MOMENTS * trained + cache + deferred
    best = 0 if trainer.validation is None else 2 * weights
    bodies = trainer.store.bodies
    catalogue = 4 * trainer.store.num_news * model.news.dim + (0 if bodies is None else bodies.stat().st_size)
    return best + (config.train.max_checkpoints + 1) * checkpoint + weights + catalogue


def announce(trainer: Trainer) -> None:
    """Say how much room the run may take, and warn where the disk has less."""
    needed, path = estimate_bytes(trainer), trainer.run.path
    free = shutil.disk_usage(path).free
    log.info("%s will take up to %s MB", path, f"{needed / MEGABYTE:,.0f}")
    if free < needed:
        room = f"{free / MEGABYTE:,.0f}"
        log.warning("the disk has %s MB free; make room, or give --max-checkpoints 1", room)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)
