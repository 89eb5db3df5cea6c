"""Splits whose skipped ids all lack text: said aloud, because their clicks have nothing to be learned against.

A separator that is missing in the log is the usual reason: `N1N2` is no article, `N1` and `N2` are.
"""

import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc

from speedyfeed.data.manifest import SplitCounts
from speedyfeed.preparation import timeline
from speedyfeed.preparation.engine import Engine

_EXAMPLES = 100  # ids that are tried for two glued ones


def may_lack_negatives(counts: SplitCounts) -> bool:
    """Whether so many candidates lack text that all skipped ids may; saves a pass over most logs."""
    num_skipped = counts.read["candidates"] - counts.read["clicks"]
    return 0 < num_skipped <= counts.dropped["candidates_without_text"]


def note_lost_negatives(engine: Engine, name: str, impressions: ir.Table, ids: ir.Table) -> tuple[str, ...]:
    """Return one line where a split has skipped ids and none of them has text; nothing elsewhere."""
    found = engine.load(timeline.count_references(impressions, "skipped", ids)).to_pylist()[0]
    if not found["total"] or found["known"]:
        return ()
    rows = impressions.filter(impressions.skipped.length() > 0).select("skipped").limit(_EXAMPLES)
    examples = pc.unique(engine.load(rows)["skipped"].combine_chunks().flatten()).to_pylist()
    known = engine.load(ids.select("news_id"))["news_id"]
    glued = next((cut for example in examples[:_EXAMPLES] if (cut := _cut(example, known))), None)
    reason = (
        f"ids look glued together, e.g. {glued[0] + glued[1]!r} is {glued[0]!r} and {glued[1]!r}: separate them"
        if glued
        else f"e.g. {examples[0]!r}: check that the news file belongs to these impressions"
    )
    return (f"warning: {name}: no click has negatives, all {found['total']:,} skipped ids lack text; {reason}",)


def _cut(glued: str, known: pa.ChunkedArray) -> tuple[str, str] | None:
    """Two known ids that make up another one; None where there are none."""
    cuts = [(glued[:position], glued[position:]) for position in range(1, len(glued))]
    first, second = (pc.is_in(pa.array([cut[side] for cut in cuts], pa.string()), known) for side in (0, 1))
    position = pc.index(pc.and_(first, second), True).as_py()
    return cuts[position] if position >= 0 else None
