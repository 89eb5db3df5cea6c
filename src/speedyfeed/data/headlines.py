"""Headlines as numbers, so that articles with the same headline are found by comparing arrays."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NO_HEADLINE = 0
"""Code of articles without a headline; they duplicate none by it."""


def headline_codes(titles: Iterable[str]) -> NDArray[np.int64]:
    """Code of each headline, equal for those that differ only in case and spaces; `NO_HEADLINE` for none.

    Codes are hashes, and hold within this process.
    """
    return np.array([_code(" ".join(title.casefold().split())) for title in titles], np.int64)


def _code(headline: str) -> int:
    return (hash(headline) or 1) if headline else NO_HEADLINE
