"""The clicks of a history, looked up in the catalogue.

Shapes: L clicks, D embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from speedyfeed.data.headlines import headline_codes
from speedyfeed.serving.live_catalogue import Embeddings, LiveCatalogue
from speedyfeed.serving.micro_batcher import Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Clicks:
    """Clicks of a history that are texts or articles of the catalogue."""

    embeddings: Embeddings
    """One row per click, (L, D)."""
    positions: Sequence[int]
    """Position of each row in the whole history."""
    sections: NDArray[np.int64]
    """Category of each row as a number."""
    headlines: NDArray[np.int64]
    """Headline of each row as a code."""
    unknown: Sequence[str]
    """Ids of the other clicks."""

    def select(self, part: slice) -> "Clicks":
        """Some of the clicks."""
        return replace(
            self,
            embeddings=self.embeddings[part],
            positions=self.positions[part],
            sections=self.sections[part],
            headlines=self.headlines[part],
        )

    @classmethod
    def resolve(cls, history: Sequence[str | Text], texts: Embeddings, catalogue: LiveCatalogue) -> "Clicks":
        """Look up the ids of a history, and take the rows of `texts` for its texts."""
        is_text = [not isinstance(click, str) for click in history]
        rows = [catalogue.row(click) if isinstance(click, str) else 0 for click in history]
        embeddings = catalogue.embeddings([row or 0 for row in rows])  # row 0 is a placeholder
        embeddings[is_text] = texts
        positions = [position for position, row in enumerate(rows) if row is not None]
        unknown = [str(click) for click, row in zip(history, rows, strict=True) if row is None]
        sections = catalogue.sections([row or 0 for row in rows])
        sections[is_text] = [catalogue.section(click[3]) for click in history if not isinstance(click, str)]
        headlines = catalogue.headlines([row or 0 for row in rows])
        headlines[is_text] = headline_codes(click[0] for click in history if not isinstance(click, str))
        return cls(
            embeddings=embeddings[positions],
            positions=positions,
            sections=sections[positions],
            headlines=headlines[positions],
            unknown=unknown,
        )
