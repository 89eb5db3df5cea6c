"""A model of a step on many devices from the costs of one; the batch grows with the number of devices.

    step = max(compute + gradients + rows, planning)

Only planning overlaps: a background thread of every rank does it for the whole batch. Messages go around a ring of
W devices. An all-reduce of the gradients sends 2 (W - 1) / W of their bytes from each device. The new rows of all
W devices are all-gathered forward and their gradients reduce-scattered backward: (W - 1) / W of W shares each way.
Both take 2 (W - 1) hops.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCosts:
    """Costs of a step on one device."""

    tokens: float
    """Tokens encoded by the device in a step."""
    row_bytes: float
    """Bytes of the embeddings it computes in a step."""
    gradient_bytes: float
    tokens_per_second: float
    bytes_per_second: float
    """Bytes per second that the device sends."""
    hop_seconds: float
    """Seconds of the shortest message to the next device."""
    planned_tokens_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The modelled step on a number of devices."""

    devices: int
    compute_seconds: float
    gradient_seconds: float
    row_seconds: float
    planning_seconds: float
    step_seconds: float
    efficiency: float
    """Share of the step in which a device trains."""


def scale(costs: DeviceCosts, devices: int) -> Scaled:
    """Model the step on a number of such devices."""
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
    """Seconds to send a number of bytes twice around the ring."""
    sent = 2 * (devices - 1) / devices * num_bytes
    return sent / costs.bytes_per_second + 2 * (devices - 1) * costs.hop_seconds
