"""What more ranks cost and gain: the same steps by 1, 2 and 4 processes, a thread each, and what that says of 512.

Bytes are counted, times are rank 0's; the time of a message is also taken on its own. These unit costs make a
model of many devices; --tokens-per-second, --gigabytes-per-second and --hop-microseconds imagine other ones.

Example: speedyfeed bench ranks --store runs/demo/store --json
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.loader import Loader
from speedyfeed.bench.harness import Machine
from speedyfeed.bench.launch import printed_by, some_store, start_ranks
from speedyfeed.bench.scaling import DeviceCosts, Scaled, scale
from speedyfeed.data.store import open_store
from speedyfeed.recipes import recipe
from speedyfeed.training.distributed import Ranks, is_under_torchrun, open_ranks
from speedyfeed.training.run import open_run, start_run
from speedyfeed.training.shares import deal
from speedyfeed.training.trainer import Trainer

WARM_STEPS = 2
MESSAGES = 20
PLANNED_BATCHES = 100
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksBenchConfig:
    """How much is measured, and which devices are imagined."""

    store: Path | None = None
    """Prepared log; without one a small newsroom is made."""
    worlds: tuple[int, ...] = (2, 4)
    """Numbers of ranks, beside one."""
    steps: int = 6
    """Timed steps, after two to warm up."""
    recipe: str = "speedy-mini"
    token_budget: int = 4096
    """Of a step, all ranks together; in the model, of each device."""
    devices: tuple[int, ...] = (8, 64, 512)
    """Numbers of devices in the model."""
    tokens_per_second: float | None = None
    """What a device of the model learns from; without, what a rank did here."""
    gigabytes_per_second: float | None = None
    """What it sends; without, what a rank did here."""
    hop_microseconds: float | None = None
    """What the shortest message takes from one to the next; without, what it took here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldFigures:
    """Of so many ranks; means over the timed steps."""

    world: int
    step_seconds: float
    communication_seconds: float
    """Of a step, waiting for slower ranks included."""
    communication_share: float
    communicated_bytes: float
    """Sent by a rank in a step."""
    news: float
    """Encoded in a step by all ranks."""
    tokens: float
    token_imbalance: float
    """How far the rank with the most tokens is above the mean; the largest of all steps."""
    row_bytes: float
    """Of the news encoded in a step."""
    gradient_bytes: int
    gradient_seconds: float
    """To add all gradients up, on its own."""
    message_seconds: float
    """To agree on one number, on its own."""
    planned_tokens_per_second: float
    """What the loader makes on its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksFigures:
    worlds: list[WorldFigures]
    costs: DeviceCosts
    scaled: list[Scaled]
    machine: Machine = field(default_factory=Machine)


def measure(config: RanksBenchConfig) -> RanksFigures:
    """Launch every number of ranks in turn, then reckon."""
    worlds = []
    with some_store(config.store) as store:
        words = ("--store", store, "--steps", config.steps, "--recipe", config.recipe)
        for world in (1, *config.worlds):
            launched = start_ranks(world, "bench", "ranks", *words, "--token-budget", config.token_budget)
            worlds.append(WorldFigures(**json.loads(printed_by(launched))))
    costs = device_costs(worlds[0], worlds[1], config)
    return RanksFigures(worlds=worlds, costs=costs, scaled=[scale(costs, devices) for devices in config.devices])


def device_costs(alone: WorldFigures, ring: WorldFigures, config: RanksBenchConfig) -> DeviceCosts:
    """Work as one rank does it, messages as they go around a ring of some; or as the config says."""
    sent = 2 * (ring.world - 1) / ring.world * ring.gradient_bytes
    return DeviceCosts(
        tokens=alone.tokens,
        row_bytes=alone.row_bytes,
        gradient_bytes=alone.gradient_bytes,
        tokens_per_second=config.tokens_per_second or alone.tokens / alone.step_seconds,
        bytes_per_second=1e9 * (config.gigabytes_per_second or 0) or sent / ring.gradient_seconds,
        hop_seconds=1e-6 * (config.hop_microseconds or 0) or ring.message_seconds / (2 * (ring.world - 1)),
        planned_tokens_per_second=alone.planned_tokens_per_second,
    )


def measure_rank(config: RanksBenchConfig, folder: Path, ranks: Ranks) -> WorldFigures:
    """The timed steps, as one of the ranks."""
    assert config.store is not None
    store = open_store(config.store)
    chosen = recipe(config.recipe)
    run = replace(
        chosen,
        batch=replace(chosen.batch, token_budget=config.token_budget),
        train=replace(chosen.train, precision="fp32", device="cpu", validations=0),
    )
    ranks.first(lambda: start_run(folder, run, store))
    trainer = Trainer(open_run(folder), store, ranks)
    lengths_V = trainer.news.lengths_M.numpy()
    with Loader(store.train, lengths_V, run.batch) as loader:
        started = perf_counter()
        planned = sum(batch.num_tokens for batch in islice(loader, PLANNED_BATCHES))
        planned_tokens_per_second = planned / (perf_counter() - started)
    seconds, traffic, batches = [], [], []
    with Loader(store.train, lengths_V, run.batch) as loader:
        for batch in islice(loader, WARM_STEPS + config.steps):
            ranks.wait()
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
        gradient_seconds=_time(ranks, lambda: ranks.add_gradients(parameters)),
        message_seconds=_time(ranks, ranks.wait),
        planned_tokens_per_second=planned_tokens_per_second,
    )


def _imbalance(lengths_E: NDArray[np.int64], world: int) -> float:
    loads = [int(lengths_E[share].sum()) for share in deal(lengths_E, world)]
    return max(loads) * world / max(1, sum(loads)) - 1


def _time(ranks: Ranks, message: Callable[[], object]) -> float:
    ranks.wait()
    started = perf_counter()
    for _ in range(MESSAGES):
        message()
    return (perf_counter() - started) / MESSAGES


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments(RanksBenchConfig):
    json: bool = False
    """Print the figures as one JSON object."""


def run(arguments: Arguments) -> None:
    if is_under_torchrun():
        _run_rank(arguments)
        return
    figures = measure(RanksBenchConfig(**{k: v for k, v in asdict(arguments).items() if k != "json"}))
    if arguments.json:
        print(json.dumps(asdict(figures)))
        return
    print(figures.machine)
    print("ranks   step s   talk s   share   MB sent   news   uneven")
    for row in figures.worlds:
        times = f"{row.step_seconds:8.3f} {row.communication_seconds:8.3f} {row.communication_share:7.1%}"
        sizes = f"{row.communicated_bytes / 1e6:9.1f} {row.news:6.0f} {row.token_imbalance:8.1%}"
        print(f"{row.world:5} {times} {sizes}")
    costs = figures.costs
    print(
        f"a device: {costs.tokens:,.0f} tokens a step at {costs.tokens_per_second:,.0f} a second; "
        f"{costs.gradient_bytes / 1e6:.1f} MB of gradients and {costs.row_bytes / 1e6:.2f} MB of rows at "
        f"{costs.bytes_per_second / 1e9:.2f} GB/s and {1e6 * costs.hop_seconds:,.0f} us a hop; "
        f"{costs.planned_tokens_per_second / 1e6:.1f} M tokens a second planned"
    )
    print("devices   compute s   gradients s   rows s   planning s   step s   efficiency")
    for one in figures.scaled:
        told = f"{one.gradient_seconds:13.3f} {one.row_seconds:8.3f} {one.planning_seconds:12.3f}"
        print(f"{one.devices:7} {one.compute_seconds:11.3f} {told} {one.step_seconds:8.3f} {one.efficiency:12.1%}")


def _run_rank(arguments: Arguments) -> None:
    """As torchrun started it; the launch has a number that all ranks know it by."""
    folder = Path(tempfile.gettempdir()) / f"speedyfeed-ranks-{os.environ['TORCHELASTIC_RUN_ID']}"
    with open_ranks() as ranks:
        figures = measure_rank(arguments, folder, ranks)
    if ranks.is_first:
        shutil.rmtree(folder)
        print(json.dumps(asdict(figures)))
