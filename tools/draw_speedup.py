"""Draw docs/images/speedup.svg: how each technique adds to the speed-up over the conventional workflow.

    python tools/draw_speedup.py benchmarks/results/DATE-COMMIT/speedup.json

The figures are those of one run of `python -m benchmarks speedup`.
"""

import json
import math
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "speedup.svg"
WIDTH, LEFT, ROW, TOP = 760, 230, 40, 64
NAMES = {
    "central and batching": "+ centralized encoding",
    "cache": "+ cache",
    "autoregressive": "+ autoregressive users",
    "BusLM": "+ BusLM",
    "packing": "+ packing: SpeedyFeed",
}
STYLE = """
  text { font: 15px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 19px; font-weight: 600 } .note { font-size: 13px; fill: #656d76 }
  rect { fill: #8fb3de } rect.last { fill: #1f6feb } .factor { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } rect { fill: #3b5f8a } rect.last { fill: #4493f8 }
  }
"""


def draw(facts: dict) -> str:
    """An SVG of one bar per workflow, from conventional to ours, on a logarithmic scale."""
    product, rows = 1.0, [("conventional workflow", 1.0)]
    for name, factor in facts["techniques"].items():
        product *= factor
        rows.append((NAMES[name], product))
    rows[-1] = (rows[-1][0], facts["overall"])  # what the rounded factors multiply to, exactly
    scale = (WIDTH - LEFT - 90) / math.log10(max(value for _, value in rows) * 2)
    parts = []
    for number, (name, value) in enumerate(rows):
        y = TOP + number * ROW
        bar = scale * math.log10(2 * value)
        kind = "last" if number == len(rows) - 1 else ""
        parts.append(f'<text x="{LEFT - 12}" y="{y + 19}" text-anchor="end">{name}</text>')
        parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{bar:.0f}" height="27" rx="3"/>')
        shown = f"{value:.0f}x" if value >= 10 else f"{value:.1f}x".replace(".0x", "x")
        parts.append(f'<text class="factor" x="{LEFT + bar + 10:.0f}" y="{y + 19}">{shown}</text>')
    height = TOP + len(rows) * ROW + 34
    note = "Clicks learned per second, logarithmic scale; MiniLM on 2 CPU cores, 46,287 users and 8,796 articles."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Speed-up by technique"><style>{STYLE}</style>\n'
        f'<text class="title" x="20" y="36">Training speed against the conventional workflow</text>\n'
        + "\n".join(parts)
        + f'\n<text class="note" x="20" y="{height - 14}">{note}</text>\n</svg>\n'
    )


if __name__ == "__main__":
    OUT.write_text(draw(json.loads(Path(sys.argv[1]).read_text("utf-8"))), encoding="utf-8")
