"""One rank of the `ranks` benchmark, started by torchrun; rank 0 prints the figures of all.

Example: torchrun --nproc-per-node 2 -m benchmarks.speed.rank --store store/
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
import tyro
from numpy.typing import NDArray

from speedyfeed.data.store import open_store
from speedyfeed.ranges import MANY
from speedyfeed.recipes import recipe
from speedyfeed.training.distributed.partition import balanced_partition
from speedyfeed.training.distributed.process_group import ProcessGroup, open_process_group
from speedyfeed.training.loop import open_loader
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer

WARM_STEPS = 2
MESSAGES = 20
PLANNED_BATCHES = 100
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """What all ranks train, and how many steps."""

    store: Path
    """Folder of the prepared store."""
    recipe: str = "speed-mini"
    """Recipe of the run that is timed."""
    token_budget: int = 4096
    """Token budget of one step, summed over all ranks."""
    steps: int = 6
    """Timed steps, after two to warm up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldFigures:
    """Means over the timed steps of one number of ranks."""

    world: int
    step_seconds: float
    communication_seconds: float
    """Seconds of communication in a step, waiting for slower ranks included."""
    communication_share: float
    communicated_bytes: float
    """Bytes that a rank sends in a step."""
    news: float
    """Articles encoded in a step, summed over all ranks."""
    tokens: float
    token_imbalance: float
    """Tokens of the busiest rank over the mean, minus 1; the largest of all steps."""
    row_bytes: float
    """Bytes of the embeddings of the articles encoded in a step."""
    gradient_bytes: int
    gradient_seconds: float
    """Seconds to all-reduce all gradients, timed separately."""
    message_seconds: float
    """Seconds of a barrier, timed separately."""
    planned_tokens_per_second: float
    """Tokens per second that the loader plans without training."""


def main() -> None:
    """Measure as one rank, in a folder named by the id of the launch, which all ranks know."""
    config = tyro.cli(RankConfig)
    folder = Path(tempfile.gettempdir()) / f"speedyfeed-ranks-{os.environ['TORCHELASTIC_RUN_ID']}"
    with open_process_group() as ranks:
        figures = measure_rank(config, folder, ranks)
    if ranks.is_rank_0:
        shutil.rmtree(folder)
        print(json.dumps(asdict(figures)))


def measure_rank(config: RankConfig, folder: Path, ranks: ProcessGroup) -> WorldFigures:
    """Time training steps as one of the ranks."""
    store = open_store(config.store)
    chosen = recipe(config.recipe)
    run = replace(
        chosen,
        batch=replace(chosen.batch, token_budget=config.token_budget),
        train=replace(chosen.train, precision="fp32", device="cpu", validations=0, epochs=MANY),
    )
    ranks.on_rank_0(lambda: start_run(folder, run, store))
    trainer = Trainer(open_run(folder), store, ranks)
    lengths_V = trainer.news.lengths_M.numpy()
    with open_loader(trainer.config, store.train, lengths_V) as loader:
        started = perf_counter()
        planned = sum(batch.num_tokens for batch in islice(loader, PLANNED_BATCHES))
        planned_tokens_per_second = planned / (perf_counter() - started)
    seconds, traffic, batches = [], [], []
    with open_loader(trainer.config, store.train, lengths_V) as loader:
        for batch in islice(loader, WARM_STEPS + config.steps):
            ranks.barrier()
            ranks.take_traffic()
            started = perf_counter()
            trainer.step(batch, 1.0)
            seconds.append(perf_counter() - started)
            traffic.append(ranks.take_traffic())
            batches.append(batch)
    seconds, traffic, batches = seconds[WARM_STEPS:], traffic[WARM_STEPS:], batches[WARM_STEPS:]
    news = float(np.mean([len(batch.encode_E) for batch in batches]))
    step_seconds, communication = float(np.mean(seconds)), float(np.mean([one.seconds for one in traffic]))
    parameters = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    return WorldFigures(
        world=ranks.world,
        step_seconds=step_seconds,
        communication_seconds=communication,
        communication_share=communication / step_seconds,
        communicated_bytes=float(np.mean([one.num_bytes for one in traffic])),
        news=news,
        tokens=float(np.mean([batch.num_tokens for batch in batches])),
        token_imbalance=max(_imbalance(lengths_V[batch.encode_E], ranks.world) for batch in batches),
        row_bytes=FLOAT_BYTES * trainer.model.news.width * news,
        gradient_bytes=FLOAT_BYTES * sum(parameter.numel() for parameter in parameters),
        gradient_seconds=_time(ranks, lambda: ranks.all_reduce_gradients(parameters)),
        message_seconds=_time(ranks, ranks.barrier),
        planned_tokens_per_second=planned_tokens_per_second,
    )


def _imbalance(lengths_E: NDArray[np.int64], world: int) -> float:
    loads = [int(lengths_E[share].sum()) for share in balanced_partition(lengths_E, world)]
    return max(loads) * world / max(1, sum(loads)) - 1


def _time(ranks: ProcessGroup, message: Callable[[], object]) -> float:
    ranks.barrier()
    started = perf_counter()
    for _ in range(MESSAGES):
        message()
    return (perf_counter() - started) / MESSAGES


if __name__ == "__main__":
    main()
