"""How far cached embeddings have drifted when they are read: looks at a run while it trains.

At some steps, some of the rows that the step reads are set beside what the model makes of the same news now. The
looks go to `drift.jsonl` in the run folder, so that a run that was stopped keeps those it had.
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
STEPS_PER_LOOK = 5
NEWS_PER_LOOK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Of rows that were read, in the second half of a run's looks."""

    cosine: float
    """Between a row and the same news encoded now, mean."""
    steps: float
    """Since the row was written, mean."""
    looks: int


def watch_drift(trainer: Trainer, batch: Batch) -> None:
    """ValidationPoint at this batch, if its turn has come and it reads anything."""
    if batch.step % STEPS_PER_LOOK or not len(batch.cached_R):
        return
    assert trainer.cache is not None
    ids = batch.cached_R[:: -(-len(batch.cached_R) // NEWS_PER_LOOK)]
    ids_R = torch.from_numpy(ids.astype(np.int64))
    cached_RH = trainer.cache.read(ids_R).to(trainer.device)
    trainer.model.eval()
    with torch.no_grad(), trainer.precision.autocast():
        now = trainer.workflow(_encoding(batch, ids)).merged
        assert torch.equal(now.encoded_E, ids_R)
        then_RD, now_RD = (trainer.model.news.project(rows, None).float() for rows in (cached_RH, now.encoded_EH))
    cosines = torch.nn.functional.cosine_similarity(then_RD, now_RD)
    steps = batch.step - trainer.cache.stamps_V[ids_R].float()
    look = {"step": batch.step, "cosine": float(cosines.mean()), "steps": float(steps.mean())}
    with open(trainer.run.path / DRIFT, "a", encoding="utf-8") as file:
        file.write(json.dumps(look) + "\n")


def load_drift(run: Path) -> Drift | None:
    """What the looks at a run say; None where it had none."""
    if not (run / DRIFT).exists():
        return None
    lines = (run / DRIFT).read_text("utf-8").splitlines()
    looks: dict[int, Any] = {look["step"]: look for look in map(json.loads, lines)}  # a resumed run looks again
    late = [looks[step] for step in sorted(looks)][len(looks) // 2 :]
    return Drift(
        cosine=float(np.mean([look["cosine"] for look in late])),
        steps=float(np.mean([look["steps"] for look in late])),
        looks=len(late),
    )


def _encoding(batch: Batch, ids: NDArray[np.int32]) -> Batch:
    """A batch of one user who clicked these news, all of them to be encoded."""
    return replace(
        batch,
        users_B=batch.users_B[:1],
        history_BL=ids[None],
        targets_BL=ids[None],
        negatives_BLN=np.zeros((1, len(ids), batch.negatives_BLN.shape[2]), ids.dtype),
        has_own_negatives_BL=np.ones((1, len(ids)), np.bool),
        encode_E=ids,
        cached_R=ids[:0],
    )
