"""What `--help` shows of a command and its options: running text, and defaults where they tell something.

The parser makes options from the fields of a dataclass. Left to itself, it breaks help texts where the source
does, offers `{None}|INT` for an optional number, and writes `(default: True)` beside `--news.no-bus`.
"""

import dataclasses
import functools
import inspect
import re
import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import docstring_parser
from tyro.conf import arg
from tyro.constructors import (
    MISSING,
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

KINDS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
"""Words for the value of an option that has none by default."""


def help_page(drawn: str, doc: str) -> str:
    """Help of a command from what the parser has drawn, with the docstring of its module below the usage line."""
    usage, _, options = drawn.partition("\n\n")
    # The parser leaves an empty line where a text ends exactly at the border.
    lines = [line for line in options.splitlines() if not re.fullmatch("│ +│", _plain(line))]
    return "\n\n".join([_wrap(_plain(usage), "    "), describe_command(doc), "\n".join(lines)])


def describe_command(doc: str) -> str:
    """Description of a command from the docstring of its module, wrapped to the terminal.

    A paragraph that begins with `Example`, and one that is indented, keeps its lines.
    """
    return "\n\n".join(
        part if part.startswith(("Example", "    ")) else _wrap(part)
        for part in inspect.cleandoc(doc).split("\n\n")
    )


def _plain(line: str) -> str:
    """A line without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _wrap(text: str, indent: str = "") -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def help_rules() -> ConstructorRegistry:
    """Rules by which the parser makes options from dataclasses."""
    rules = ConstructorRegistry()
    rules.struct_rule(_options)
    return rules


def _options(info: StructTypeInfo) -> StructConstructorSpec | None:
    if not dataclasses.is_dataclass(info.type):
        return None
    hints = get_type_hints(info.type, include_extras=True)
    return StructConstructorSpec(
        instantiate=info.type,
        fields=tuple(
            StructFieldSpec(
                name=field.name,
                type=_described(hints[field.name], default := _default(field, info.default)),
                default=default,
                helptext=functools.partial(_help_text, info.type, field.name),
            )
            for field in dataclasses.fields(info.type)
        ),
    )


def _default(field: dataclasses.Field[Any], owner: Any) -> Any:
    """Default of a field: that of the given instance, or that of its class."""
    if owner is MISSING or (owner is not MISSING_NONPROP and owner is not None):
        return getattr(owner, field.name, MISSING)
    if field.default is not dataclasses.MISSING:
        return field.default
    return MISSING_NONPROP if field.default_factory is dataclasses.MISSING else field.default_factory()


def _described(hint: Any, default: Any) -> Any:
    """Type of a field with the word for its value, and no default where that is a flag or nothing."""
    kind, *settings = get_args(hint) if get_origin(hint) is Annotated else [hint]
    metavar = None
    if type(None) in get_args(kind):
        value = next(one for one in get_args(kind) if one is not type(None))
        choices = get_args(value) if get_origin(value) is Literal else ()
        metavar = f"{{{','.join(choices)}}}" if choices else KINDS[value]
    is_untold = default is False or default is None or default == "" or default == ()
    hint_text = "(this flag turns it off)" if default is True else "" if is_untold else None
    return Annotated[(kind, arg(metavar=metavar, help_behavior_hint=hint_text), *settings)]


@functools.cache
def _texts(owner: type) -> dict[str, str]:
    """Docstrings of the fields of a dataclass, those it inherits included, as running text."""
    found = (
        text for one in reversed(owner.__mro__[:-1]) for text in docstring_parser.parse_from_object(one).params
    )
    return {text.arg_name: " ".join((text.description or "").split()) for text in found}


def _help_text(owner: type, name: str) -> str | None:
    return _texts(owner).get(name)
