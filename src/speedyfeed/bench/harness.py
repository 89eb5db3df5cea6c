"""What every measurement shares: facts about the machine, and times taken in turn.

Times of several variants are taken round by round, one after the other, and the best of each is kept: on a busy
machine a slow moment then hits all of them, and ratios stay meaningful where seconds do not.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where figures were taken."""

    cores: int = field(default_factory=torch.get_num_threads)
    gigabytes: int = field(
        default_factory=lambda: round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    )
    gpu: str = field(default_factory=lambda: torch.cuda.get_device_name() if torch.cuda.is_available() else "none")
    torch: str = field(default_factory=lambda: torch.__version__)
    processor: str = field(default_factory=platform.machine)


def time_in_turn(variants: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Best seconds of each variant, after one warm-up of each."""
    for run in variants.values():
        run()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
