"""Cost of a step on 1, 2 and 4 ranks of one thread each, and a model of up to 512 devices.

All numbers of ranks take the same steps. Bytes are counted, times are those of rank 0, and messages are also timed
separately. These unit costs are the input of the model; --tokens-per-second, --gigabytes-per-second and
--hop-microseconds replace them by those of other devices.

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
    """How many ranks are measured, and which devices the model assumes."""

    store: Path | None = None
    """Folder of a prepared store; by default a small newsroom in a temporary folder."""
    worlds: tuple[int, ...] = (2, 4)
    """Numbers of ranks to measure, in addition to one."""
    steps: int = 6
    """Timed steps, after two to warm up."""
    recipe: str = "speed-mini"
    """Recipe of the run that is timed."""
    token_budget: int = 4096
    """Token budget of one step, summed over all ranks; in the model, that of each device."""
    devices: tuple[int, ...] = (8, 64, 512)
    """Numbers of devices to compute the model for."""
    tokens_per_second: float | None = None
    """Tokens per second that a device trains on; by default those of one rank here."""
    gigabytes_per_second: float | None = None
    """Gigabytes per second that a device sends; by default those of a rank here."""
    hop_microseconds: float | None = None
    """Microseconds of the shortest message to the next device; by default those measured here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksFigures:
    worlds: list[WorldFigures]
    costs: DeviceCosts
    scaled: list[Scaled]


def measure(config: RanksConfig) -> RanksFigures:
    """Launch every number of ranks in turn, then compute the model."""
    worlds = []
    with some_store(config.store) as store:
        arguments = ("--store", store, "--steps", config.steps, "--recipe", config.recipe)
        for world in (1, *config.worlds):
            launched = start_ranks(world, rank.__name__, *arguments, "--token-budget", config.token_budget)
            worlds.append(WorldFigures(**json.loads(printed_by(launched))))
    costs = device_costs(worlds[0], worlds[1], config)
    return RanksFigures(worlds=worlds, costs=costs, scaled=[scale(costs, devices) for devices in config.devices])


def device_costs(alone: WorldFigures, ring: WorldFigures, config: RanksConfig) -> DeviceCosts:
    """Compute costs of one rank and message costs of a ring, unless the config replaces them."""
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
    """The measured steps, the costs of a device, and the model of many devices."""
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
        f"a device: {costs.tokens:,.0f} tokens per step at {costs.tokens_per_second:,.0f} per second; "
        f"{costs.gradient_bytes / 1e6:.1f} MB of gradients and {costs.row_bytes / 1e6:.2f} MB of rows at "
        f"{costs.bytes_per_second / 1e9:.2f} GB/s and {1e6 * costs.hop_seconds:,.0f} us per hop; "
        f"{costs.planned_tokens_per_second / 1e6:.1f} M tokens per second planned"
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
    header = ["ranks", "step, s", "communication, s", "share", "MB sent", "articles", "imbalance"]
    modelled = ["devices", "compute, s", "gradients, s", "rows, s", "planning, s", "step, s", "efficiency"]
    return "\n\n".join([table(header, measured), device, table(modelled, scaled)])
