"""Drift of cached embeddings, measured while a run trains.

Every few steps, some of the rows that the step reads from the cache are compared with the same articles encoded by
the current weights. The comparisons are appended to `drift.jsonl` in the run folder, so that they survive a stop.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from speedyfeed.batching.batches import Batch
from speedyfeed.training.trainer import Trainer

DRIFT = "drift.jsonl"
EVERY_STEPS = 5
"""Steps between two comparisons."""
MAX_NEWS = 64
"""Articles compared at a time, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Means over the cached rows compared in the second half of a run."""

    cosine: float
    """Mean cosine between a cached row and the same article encoded by the current weights."""
    steps: float
    """Mean number of steps since a row was written."""
    comparisons: int
    """Steps at which rows were compared."""


def watch_drift(trainer: Trainer, batch: Batch) -> None:
    """Compare cached rows of this batch with fresh embeddings, every few steps."""
    if batch.step % EVERY_STEPS or not len(batch.cached_R):
        return
    assert trainer.cache is not None
    ids = batch.cached_R[:: -(-len(batch.cached_R) // MAX_NEWS)]
    ids_R = torch.from_numpy(ids.astype(np.int64))
    cached_RH = trainer.cache.read(ids_R).to(trainer.device)
    trainer.model.eval()
    with torch.no_grad(), trainer.precision.autocast():
        now = trainer.workflow(_encoding(batch, ids)).merged
        assert torch.equal(now.encoded_E, ids_R)
        then_RD, now_RD = (trainer.model.news.project(rows, None).float() for rows in (cached_RH, now.encoded_EH))
    cosines = torch.nn.functional.cosine_similarity(then_RD, now_RD)
    steps = batch.step - trainer.cache.stamps_V[ids_R].float()
    line = {"step": batch.step, "cosine": float(cosines.mean()), "steps": float(steps.mean())}
    with open(trainer.run.path / DRIFT, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def load_drift(run: Path) -> Drift | None:
    """Summarise the comparisons of a run; None if there were none."""
    if not (run / DRIFT).exists():
        return None
    lines = (run / DRIFT).read_text("utf-8").splitlines()
    by_step: dict[int, Any] = {line["step"]: line for line in map(json.loads, lines)}  # resuming repeats some
    late = [by_step[step] for step in sorted(by_step)][len(by_step) // 2 :]
    return Drift(
        cosine=float(np.mean([line["cosine"] for line in late])),
        steps=float(np.mean([line["steps"] for line in late])),
        comparisons=len(late),
    )


def _encoding(batch: Batch, ids: NDArray[np.int32]) -> Batch:
    """A batch of one user who clicked these articles, all of them to be encoded."""
    return replace(
        batch,
        users_B=batch.users_B[:1],
        history_BL=ids[None],
        targets_BL=ids[None],
        negatives_BLN=np.zeros((1, len(ids), batch.negatives_BLN.shape[2]), ids.dtype),
        has_own_negatives_BL=np.ones((1, len(ids)), np.bool),
        encode_E=ids,
        cached_R=ids[:0],
        deliver_E=ids[:0],
    )
