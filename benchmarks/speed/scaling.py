"""A model of many devices from what one costs: each has a full share of tokens, so the batch grows with them.

    step = compute + gradients + rows        or planning, where that takes longer

Nothing overlaps but planning, which a background thread of every rank does for the whole batch. Messages go around
a ring of W: gradients are added up, and 2 (W - 1) / W of their bytes leave each device; the fresh rows of all W
shares are gathered forward and their gradients scattered backward, (W - 1) / W of W shares each way. Both take
2 (W - 1) hops.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCosts:
    """Of one device."""

    tokens: float
    """It encodes in a step."""
    row_bytes: float
    """Fresh embeddings that makes."""
    gradient_bytes: float
    tokens_per_second: float
    bytes_per_second: float
    """It sends."""
    hop_seconds: float
    """Of a message, however short, to the next device."""
    planned_tokens_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """A step of so many devices."""

    devices: int
    compute_seconds: float
    gradient_seconds: float
    row_seconds: float
    planning_seconds: float
    step_seconds: float
    efficiency: float
    """Share of the step in which a device computes."""


def scale(costs: DeviceCosts, devices: int) -> Scaled:
    """The step of so many such devices."""
    compute = costs.tokens / costs.tokens_per_second
    gradients = _around(costs, devices, costs.gradient_bytes)
    rows = _around(costs, devices, devices * costs.row_bytes)
    planning = devices * costs.tokens / costs.planned_tokens_per_second
    step = max(compute + gradients + rows, planning)
    return Scaled(
        devices=devices,
        compute_seconds=compute,
        gradient_seconds=gradients,
        row_seconds=rows,
        planning_seconds=planning,
        step_seconds=step,
        efficiency=compute / step,
    )


def _around(costs: DeviceCosts, devices: int, num_bytes: float) -> float:
    """Seconds to send so many bytes twice around the ring."""
    sent = 2 * (devices - 1) / devices * num_bytes
    return sent / costs.bytes_per_second + 2 * (devices - 1) * costs.hop_seconds
