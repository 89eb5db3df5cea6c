"""Imports go one way: a module imports from its own package and from lower layers, and from nothing above."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import speedyfeed

ROOT = Path(speedyfeed.__file__).parent
LAYERS = (
    ("errors",),
    ("files",),
    ("checksums", "progress", "ragged", "random", "ranges", "runtime", "markdown", "scoring"),
    ("tokenizers", "data", "drawing"),
    ("model_card", "saved_model", "synthetic", "preparation", "batching", "models", "retrieval"),
    ("encoding",),
    ("pretrained",),
    ("evaluation", "onnx_export", "sentence_transformer", "serving"),
    ("training",),
    ("finished_run", "recipes"),
    ("run_evaluation",),
    ("profile", "sweep"),
    ("api", "cli", "testing"),
)
FRONT = ("__init__", "__main__")
"""What hands on names, or starts the command line, and is imported by nothing that computes."""


def test_every_module_imports_from_lower_layers_only() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{file.relative_to(ROOT)} imports {target}"
        for file, owner, target in _imports()
        if owner not in FRONT and target != owner and level[target] >= level[owner]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_layer_and_every_layer_is_there() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - set(FRONT) == {name for layer in LAYERS for name in layer}


def test_no_module_is_part_of_a_cycle() -> None:
    """Within a package too: `prepare` raises where there is one, and names it."""
    modules = {_module(file): file for file in ROOT.rglob("*.py")}
    del modules["speedyfeed"]  # it hands on names of all layers, when they are first used
    imports = {name: set(_names(file)) & modules.keys() - {name} for name, file in modules.items()}
    assert sum(map(len, imports.values())) > 500
    TopologicalSorter(imports).prepare()


def test_the_package_knows_no_benchmark() -> None:
    for file in ROOT.rglob("*.py"):
        assert not [name for name in _names(file) if name.split(".")[0] == "benchmarks"], file


def test_imports_inside_functions_are_seen() -> None:
    """Else the tests above would pass on whatever is deferred."""
    owners = {(owner, target) for _, owner, target in _imports()}
    assert ("cli", "serving") in owners, "cli/serve.py imports serving inside a function"


@cache
def _imports() -> list[tuple[Path, str, str]]:
    """(file, its package, the package it imports) of every import of ours, deferred ones included."""
    return list(_find_imports())


def _find_imports() -> Iterator[tuple[Path, str, str]]:
    for file in ROOT.rglob("*.py"):
        owner = file.relative_to(ROOT).with_suffix("").parts[0]
        for name in _names(file):
            top, _, rest = name.partition(".")
            if top == "speedyfeed" and rest:
                yield file, owner, rest.split(".")[0]


def _module(file: Path) -> str:
    """Dotted name of a module or a package."""
    parts = ("speedyfeed", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


@cache
def _names(file: Path) -> list[str]:
    return list(_find_names(file))


def _find_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: imports are absolute"
            assert node.module is not None
            yield node.module
            if node.module.split(".")[0] == "speedyfeed":  # what is imported may be a module itself
                yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name[:2] != "__")
