"""Messages of the command-line parser in one line: the option, the value, and what is expected.

The parser draws boxes and describes its types; a message that is not recognized here is shown as it is.
"""

import re
from collections.abc import Callable, Sequence

from speedyfeed.errors import list_words

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "text", "None": "None"}
"""What a word in the parser's description of a type stands for."""


def explain(output: str, rest: Sequence[str], program: str) -> str:
    """One line on what is wrong with the arguments `rest` of a command, from what the parser printed."""
    text = " ".join(re.sub(r"[─│╭╮╰╯]|-{4,}|\x1b\[[0-9;]*m", " ", output).split())
    for pattern, describe in _MESSAGES.items():
        if found := re.search(pattern, text):
            return f"{describe(found, rest)}; see {program} --help"
    return text.replace("For full helptext, run", "; see")


def _bad_value(found: re.Match[str], rest: Sequence[str]) -> str:
    option, kind = found[1], found[2]
    kinds = dict.fromkeys(KINDS[name] for name in re.findall("|".join(KINDS), kind))
    expected = " or ".join(sorted(kinds, key=lambda name: name == "None")) or kind
    several = ", one or more" if "..." in kind else ""
    return f"{option} {_value(option, rest)}: expected {expected}{several}"


def _bad_choice(found: re.Match[str], rest: Sequence[str]) -> str:
    choices = sorted(set(re.findall(r"'([^']*)'", found[2])) - {"None"})
    return f"{found[1]} {_value(found[1], rest)}: expected {list_words(choices, 'or')}"


def _no_value(found: re.Match[str], rest: Sequence[str]) -> str:
    return f"{found[1]}: found no value, expected one"


def _unknown(found: re.Match[str], rest: Sequence[str]) -> str:
    named = found[1].replace(" ", "")  # a long word is drawn over two lines
    options = [name for word in rest if (name := word.split("=")[0]).startswith("--") and name in named]
    if not options:
        return f"found {found[1].strip()}, expected no further argument"
    meant = list(dict.fromkeys(re.findall(r"(?:^| )(--[a-z][\w.-]*)", found[2] or "")))
    hint = f", perhaps {list_words(meant[:3], 'or')} is meant" if meant else ""
    return f"unknown option {list_words(options, 'and')}{hint}"


def _missing(found: re.Match[str], rest: Sequence[str]) -> str:
    names = [part.split()[0] for part in found[1].split("(required)") if part.strip()]
    return f"{list_words(names, 'and')} {'is' if len(names) == 1 else 'are'} missing"


_MESSAGES: dict[str, Callable[[re.Match[str], Sequence[str]], str]] = {
    r"Error parsing (\S+): .* Argument helptext: \1 (\[.*?\]\]|\S+)": _bad_value,
    r"invalid choice .* for argument '(\S+)'. Expected one of \((.*?)\)": _bad_choice,
    r"Missing value for argument '(\S+)'": _no_value,
    r"Unrecognized options: (.*?)(?:(?:Perhaps you meant:|Arguments similar to)(.*?))?(?:For full|$)": _unknown,
    r"Missing from [^:]*: (.*\(required\))": _missing,
}
"""Parts of the parser's messages, and what to say instead."""


def _value(option: str, rest: Sequence[str]) -> str:
    """Words that were given to an option last."""
    found: list[str] = []
    for index, word in enumerate(rest):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option.replace("_", "-"):
            after = [value] if equals else list(rest[index + 1 :])
            end = next((place for place, one in enumerate(after) if one.startswith("--")), len(after))
            found = after[: max(end, 1)]
    return " ".join(found)
