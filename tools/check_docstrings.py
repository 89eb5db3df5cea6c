"""Refuse help texts that do not stand alone: what reaches `--help` and OpenAPI, and docstrings anywhere.

    python tools/check_docstrings.py

Options of the command line are the fields of `Arguments` and `...Config` dataclasses, the string below each is its
help; OpenAPI shows the docstrings of routes and models and the descriptions of their fields. Rules:

- no docstring or help text begins with "Of ", "The same", "As ", "Beside ": it would lean on its neighbours;
- an option, a route and a field of an answer has a text, of at least four words;
- a flag that is on by default says so, or what off does: its help stands beside `--no-...`;
- a module of the package that makes arrays such as `history_BL` has a line "Shapes: ..." on what its letters are.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEANING = ("Of ", "The same", "As ", "Beside ")
MIN_WORDS = 4
SHAPED = re.compile(r"_?[a-z][a-z0-9_]*_(?=[A-Z0-9]*[A-Z])([A-Z0-9]+)")
"""A name that ends in the letters of its shape."""
METHODS = {"get", "post", "put", "delete", "head"}


def main() -> None:
    """Print every fault with its file and line; exit 1 where there is one."""
    files = sorted(file for folder in ("src", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
    faults = [f"{file.relative_to(ROOT)}:{line}: {fault}" for file in files for line, fault in check_file(file)]
    print("\n".join(faults) or f"{len(files)} files: every help text stands alone")
    sys.exit(bool(faults))


def check_file(file: Path) -> Iterator[tuple[int, str]]:
    """(line, fault) of each text of a file that breaks a rule."""
    tree = ast.parse(file.read_text("utf-8"))
    if file.is_relative_to(ROOT / "src"):
        yield from _check_shapes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            line = getattr(node, "lineno", 1)
            if text.startswith(LEANING):
                yield line, f"begins with {text.split()[0]!r}: {_shown(text)}"
            if is_route(node) and len(text.split()) < MIN_WORDS:
                yield line, f"the route {node.name} needs a docstring of {MIN_WORDS} words: {_shown(text)}"
        if isinstance(node, ast.Module):
            for one in node.body:
                if _text(one).startswith(LEANING):
                    yield one.lineno, f"begins with {_text(one).split()[0]!r}: {_shown(_text(one))}"
        if isinstance(node, ast.ClassDef):
            yield from _check_fields(node)
        if isinstance(node, ast.keyword) and node.arg in ("description", "help"):
            text = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(text, str) and (text.startswith(LEANING) or len(text.split()) < MIN_WORDS):
                yield node.value.lineno, f"a {node.arg} of fewer than {MIN_WORDS} words, or one that leans: {text}"


def _check_shapes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    _, _, legend = (ast.get_docstring(tree) or "").partition("Shapes: ")
    explained = set(re.findall(r"\b[A-Z]\b", legend))
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        found = SHAPED.fullmatch(name)
        letters = {letter for letter in found[1] if letter.isalpha()} - explained if found else set()
        if letters:
            yield node.lineno, f'{name}: say what {", ".join(sorted(letters))} is, in a line "Shapes: ..."'
            explained |= letters


def _check_fields(owner: ast.ClassDef) -> Iterator[tuple[int, str]]:
    is_dataclass = any("dataclass" in ast.unparse(one) for one in owner.decorator_list)
    is_option = is_dataclass and (owner.name == "Arguments" or owner.name.endswith("Config"))
    for field, after in zip(owner.body, [*owner.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        text = _text(after)
        if text.startswith(LEANING):
            yield field.lineno, f"begins with {text.split()[0]!r}: {_shown(text)}"
        if not is_option or field.target.id.startswith("_") or is_nested(field):
            continue
        if len(text.split()) < MIN_WORDS:
            yield field.lineno, f"option {field.target.id} needs a help text of {MIN_WORDS} words: {_shown(text)}"
        is_on = isinstance(field.value, ast.Constant) and field.value.value is True
        if is_on and not re.search(r"\b(on by default|off)\b|--no-", text):
            yield field.lineno, f"flag {field.target.id} is on by default: say what off does: {_shown(text)}"


def is_nested(field: ast.AnnAssign) -> bool:
    """Whether a field is a group of options of its own, shown under its fields."""
    return "Config" in ast.unparse(field.annotation)


def is_route(node: ast.AST) -> bool:
    """Whether a function answers requests and is part of the API's description."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    hidden = any(word.arg == "include_in_schema" for one in calls for word in one.keywords)
    names = [one.func.attr for one in calls if isinstance(one.func, ast.Attribute)]
    return not hidden and not METHODS.isdisjoint(names)


def _text(node: ast.AST | None) -> str:
    """The string that stands below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _shown(text: str) -> str:
    return repr(text.partition("\n")[0][:80])


if __name__ == "__main__":
    main()
