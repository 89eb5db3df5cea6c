"""Draw docs/images/layers.svg: the layers of the package as the import test holds them, with the real imports.

    python tools/draw_layers.py

A row is a layer, a box a package or a module, a line an import. Lines that follow from others are left out: if A
imports B and B imports C, then A to C is not drawn. Colours follow the viewer's light or dark setting.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "speedyfeed"
LAYER_TEST = ROOT / "tests" / "test_import_order.py"
FIGURE = ROOT / "docs" / "images" / "layers.svg"

WIDTH = 860
LEFT = 56  # room for the numbers of the layers
ROW = 68
BOX_HEIGHT = 30
LETTER = 7.6  # width of a letter of the monospaced 12 px font, rounded up
STYLE = """
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f }
  .level { font-size: 11px; fill: #6e7781 }
  .box { fill: #eaf2fd; stroke: #5b8bc9 }
  .module { fill: #f3f4f6; stroke: #9aa4af }
  .import { fill: none; stroke: #9aa4af; stroke-opacity: .75 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .level { fill: #8d96a0 }
    .box { fill: #1c2f4a; stroke: #5b8bc9 }
    .module { fill: #262c34; stroke: #6e7781 }
    .import { stroke: #6e7781 }
  }
"""

Layers = Sequence[Sequence[str]]
Imports = Mapping[str, set[str]]


def main() -> None:
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(draw(), "utf-8")


def draw() -> str:
    """The figure as SVG text; the same code gives the same bytes."""
    layers = read_layers()
    imports = read_imports({name for layer in layers for name in layer})
    top_down = list(reversed(layers))
    boxes = dict(_place(top_down))
    height = ROW * len(layers)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Layers of the speedyfeed package; every line is an import and goes down">',
        f"<style>{STYLE}</style>",
        *(_line(boxes[owner], boxes[target]) for owner, target in direct(imports)),
    ]
    for row in range(len(top_down)):
        middle = row * ROW + ROW / 2
        parts.append(f'<text class="level" x="8" y="{middle + 4:g}">{len(top_down) - 1 - row}</text>')
    parts += [_box(name, *boxes[name], sorted(imports[name])) for layer in top_down for name in layer]
    return "\n".join([*parts, "</svg>", ""])


def read_layers() -> Layers:
    """`LAYERS` of the import test, lowest layer first."""
    for node in ast.parse(LAYER_TEST.read_text("utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "LAYERS" and value is not None:
            layers: Layers = ast.literal_eval(value)
            return layers
    raise SystemExit(f"{LAYER_TEST}: found no LAYERS, expected a tuple of tuples of names")


def read_imports(names: set[str]) -> Imports:
    """The packages that each package imports, imports inside functions included."""
    imports: dict[str, set[str]] = {name: set() for name in sorted(names)}
    for file in sorted(PACKAGE.rglob("*.py")):
        owner = file.relative_to(PACKAGE).with_suffix("").parts[0]
        if owner in names:
            imports[owner] |= {target for target in _targets(file) if target in names and target != owner}
    return imports


def direct(imports: Imports) -> Iterator[tuple[str, str]]:
    """The imports that do not follow from others (transitive reduction)."""
    for owner, targets in imports.items():
        indirect = {deeper for target in targets for deeper in _reachable(target, imports)}
        for target in sorted(targets - indirect):
            yield owner, target


def _reachable(name: str, imports: Imports) -> set[str]:
    return {deeper for target in imports[name] for deeper in {target, *_reachable(target, imports)}}


def _targets(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "speedyfeed":
            modules = [f"speedyfeed.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        else:
            continue
        yield from (module.split(".")[1] for module in modules if module.startswith("speedyfeed."))


def _place(top_down: Layers) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """(name, (left, top, width)) of every box, evenly spread over its row."""
    for row, layer in enumerate(top_down):
        widths = [len(name) * LETTER + 20 for name in layer]
        gap = (WIDTH - LEFT - sum(widths)) / (len(layer) + 1)
        left = LEFT + gap
        for name, width in zip(layer, widths, strict=True):
            yield name, (left, row * ROW + (ROW - BOX_HEIGHT) / 2, width)
            left += width + gap


def _line(owner: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    x1, y1 = owner[0] + owner[2] / 2, owner[1] + BOX_HEIGHT
    x2, y2 = target[0] + target[2] / 2, target[1]
    bend = min(40.0, (y2 - y1) / 2)
    return (
        f'<path class="import" d="M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + bend:.1f} '
        f'{x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"/>'
    )


def _box(name: str, left: float, top: float, width: float, imports: list[str]) -> str:
    kind = "box" if (PACKAGE / name).is_dir() else "module"
    tip = f"{name} imports {', '.join(imports)}" if imports else f"{name} imports nothing of the package"
    return (
        f'<g><title>{escape(tip)}</title><rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{BOX_HEIGHT}" rx="5"/><text x="{left + width / 2:.1f}" y="{top + 19:.1f}" '
        f'text-anchor="middle">{escape(name)}</text></g>'
    )


if __name__ == "__main__":
    main()
