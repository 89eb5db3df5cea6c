"""Device, numeric precision and seeds of a run."""

import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from speedyfeed.errors import InputError

log = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WORTHWHILE = 1.05
"""Minimum speed-up of bf16 over fp32 for `auto` to choose it; below that, accuracy is worth more."""

DECISIVE = 1.1
"""Ratio to `WORTHWHILE`, either way, from which on no more timings are needed."""
MIN_REPEATS = 2
"""Minimum number of timings of each precision; the shortest counts, and the first pays for allocations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Number format of matrix products; weights and sums stay in fp32."""

    name: str
    device: torch.device
    reason: str
    """Why it was chosen: as asked, or what was measured."""

    def autocast(self) -> AbstractContextManager[object]:
        """Autocast context for a forward pass in this precision."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.name])

    @property
    def needs_scaling(self) -> bool:
        """Whether gradients underflow unless the loss is scaled up."""
        return self.name == "fp16"


def choose_device(name: str = "auto") -> torch.device:
    """Find the device called `name`; `auto` uses CUDA where available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device {name!r}: use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r} was asked for, but torch finds no CUDA: use cpu or auto")
    return device


def require_precision(name: str, device: torch.device) -> None:
    """Refuse a precision that there is not, or not on this device; `auto` is one that is measured."""
    if name not in ("auto", *PRECISIONS):
        raise InputError(f"no precision {name!r}: choose auto, {', '.join(PRECISIONS)}")
    if name == "fp16" and device.type != "cuda":
        raise InputError("precision fp16 needs CUDA: use bf16, fp32 or auto")


def choose_precision(
    name: str, device: torch.device, trial: Callable[[], None], *, seconds: float = 2.0
) -> Precision:
    """Choose the precision called `name`; `auto` times `trial`, a training step, in fp32 and bf16."""
    if name == "auto":
        chosen = _measure(device, trial, seconds)
        log.info("precision %s: %s", chosen.name, chosen.reason)
        return chosen
    require_precision(name, device)
    return Precision(name=name, device=device, reason="as asked")


def seed_everything(seed: int) -> torch.Generator:
    """Seed the global generators (dropout, initial weights) and return a new one."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - libraries we call still draw from it
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def _measure(device: torch.device, trial: Callable[[], None], seconds: float) -> Precision:
    candidates = [Precision(name=name, device=device, reason="candidate") for name in ("fp32", "bf16")]
    best = dict.fromkeys(("fp32", "bf16"), float("inf"))
    end = time.perf_counter() + seconds
    repeats = 0
    gain = WORTHWHILE
    is_clear = False
    while repeats < MIN_REPEATS or (not is_clear and time.perf_counter() < end):
        for precision in candidates:  # alternating, so that load of the machine affects both alike
            best[precision.name] = min(best[precision.name], _time(precision, trial))
        repeats += 1
        gain = best["fp32"] / best["bf16"]
        is_clear = not 1 / DECISIVE < gain / WORTHWHILE < DECISIVE
    name = "bf16" if gain >= WORTHWHILE else "fp32"
    kind = "of the clock" if device.type == "cuda" else "of processor time"
    reason = (
        f"measured {best['fp32'] * 1e3:.0f} ms a step in fp32 and {best['bf16'] * 1e3:.0f} ms in bf16 ({kind}), "
        f"a speed-up of {gain:.2f}x; bf16 is chosen from {WORTHWHILE:.2f}x"
    )
    return Precision(name=name, device=device, reason=reason)


def _time(precision: Precision, trial: Callable[[], None]) -> float:
    """Seconds that a trial takes: of all processors on the CPU, of the clock on CUDA."""
    is_cuda = precision.device.type == "cuda"
    clock = time.perf_counter if is_cuda else time.process_time  # not the time that other programs take
    start = clock()
    with precision.autocast():
        trial()
    if is_cuda:
        torch.cuda.synchronize()
    return clock() - start
