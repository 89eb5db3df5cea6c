"""Ranges of numeric settings, checked as soon as a setting is given and before anything is loaded."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from speedyfeed.errors import InputError

Ranges = Mapping[str, tuple[float, float]]
"""Smallest and largest value of each numeric field, both allowed."""

MANY = 10**9
"""Largest count of anything."""
MAX_SEED = 2**32 - 1
"""Largest seed that every random number generator takes."""


class _Ranged(Protocol):
    RANGES: ClassVar[Ranges]


def check_ranges(config: _Ranged) -> None:
    """Refuse a number outside the range of its field, NaN included; None is no number."""
    for name, (low, high) in config.RANGES.items():
        value: Any = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"{name} {value}: expected a number from {low:.10g} to {high:.10g}")
