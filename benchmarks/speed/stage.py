"""A run set up to have its training steps timed."""

from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.harness import now
from speedyfeed.batching.batches import Batch
from speedyfeed.data.store import Store
from speedyfeed.training.run_folder import RunConfig, start_run
from speedyfeed.training.trainer import Trainer


class Stage:
    """A model, an optimizer and a cache of its own, which answers for every news, so that steps can be skipped.

    Learning rates are zero: steps cost what they always do, and no variant goes astray from the pretrained model.
    Where batches are cut to pieces, what their pieces share, the update of the weights, is left out.
    """

    def __init__(self, run: RunConfig, store: Store, scratch: Path) -> None:
        accumulate = 1 if run.batch.central else run.batch.size
        run = replace(run, train=replace(run.train, accumulate=accumulate))
        self.trainer = Trainer(start_run(scratch, run, store), store)
        cache = self.trainer.cache
        if cache is not None:
            rows_VH = torch.nn.functional.normalize(torch.randn(cache.rows_VH[1:].shape), dim=1)
            cache.write(torch.arange(1, len(cache.rows_VH)), rows_VH, step=0)

    def time_step(self, batch: Batch) -> float:
        """Seconds of a training step."""
        started = now()
        self.trainer.step(batch, lr_factor=0.0)
        return now() - started
