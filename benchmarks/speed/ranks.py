"""What more ranks cost and gain: the same steps by 1, 2 and 4 processes, a thread each, and what that says of 512.

Bytes are counted, times are rank 0's; the time of a message is also taken on its own. These unit costs make a
model of many devices; --tokens-per-second, --gigabytes-per-second and --hop-microseconds imagine other ones.

Example: python -m benchmarks ranks --store runs/demo/store --json
"""

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launch import printed_by, some_store, start_ranks
from benchmarks.speed import rank
from benchmarks.speed.rank import WorldFigures
from benchmarks.speed.scaling import DeviceCosts, Scaled, scale
from speedyfeed.markdown import table


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksConfig:
    """How much is measured, and which devices are imagined."""

    store: Path | None = None
    """Prepared log; without one a small newsroom is made."""
    worlds: tuple[int, ...] = (2, 4)
    """Numbers of ranks, beside one."""
    steps: int = 6
    """Timed steps, after two to warm up."""
    recipe: str = "speed-mini"
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
class RanksFigures:
    worlds: list[WorldFigures]
    costs: DeviceCosts
    scaled: list[Scaled]


def measure(config: RanksConfig) -> RanksFigures:
    """Launch every number of ranks in turn, then reckon."""
    worlds = []
    with some_store(config.store) as store:
        words = ("--store", store, "--steps", config.steps, "--recipe", config.recipe)
        for world in (1, *config.worlds):
            launched = start_ranks(world, rank.__name__, *words, "--token-budget", config.token_budget)
            worlds.append(WorldFigures(**json.loads(printed_by(launched))))
    costs = device_costs(worlds[0], worlds[1], config)
    return RanksFigures(worlds=worlds, costs=costs, scaled=[scale(costs, devices) for devices in config.devices])


def device_costs(alone: WorldFigures, ring: WorldFigures, config: RanksConfig) -> DeviceCosts:
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


def tables(figures: RanksFigures) -> str:
    """What was measured, what it says of a device, and what many of them would do."""
    measured = [
        [
            str(row.world),
            f"{row.step_seconds:.3f}",
            f"{row.communication_seconds:.3f}",
            f"{row.communication_share:.1%}",
            f"{row.communicated_bytes / 1e6:.1f}",
            f"{row.news:.0f}",
            f"{row.token_imbalance:.1%}",
        ]
        for row in figures.worlds
    ]
    costs = figures.costs
    device = (
        f"a device: {costs.tokens:,.0f} tokens a step at {costs.tokens_per_second:,.0f} a second; "
        f"{costs.gradient_bytes / 1e6:.1f} MB of gradients and {costs.row_bytes / 1e6:.2f} MB of rows at "
        f"{costs.bytes_per_second / 1e9:.2f} GB/s and {1e6 * costs.hop_seconds:,.0f} us a hop; "
        f"{costs.planned_tokens_per_second / 1e6:.1f} M tokens a second planned"
    )
    scaled = [
        [
            str(one.devices),
            *(f"{seconds:.3f}" for seconds in (one.compute_seconds, one.gradient_seconds, one.row_seconds)),
            *(f"{seconds:.3f}" for seconds in (one.planning_seconds, one.step_seconds)),
            f"{one.efficiency:.1%}",
        ]
        for one in figures.scaled
    ]
    header = ["ranks", "step, s", "talk, s", "share", "MB sent", "news", "uneven"]
    imagined = ["devices", "compute, s", "gradients, s", "rows, s", "planning, s", "step, s", "efficiency"]
    return "\n\n".join([table(header, measured), device, table(imagined, scaled)])
