"""Messages of the command-line parser in one line: the option, the value, and what is expected.

The parser draws boxes and describes its types; a message that is not recognized here is shown as it is.
"""

import difflib
import re
from collections.abc import Callable, Sequence

from speedyfeed.errors import list_words

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "text", "None": "None"}
"""What a word in the parser's description of a type stands for."""


def explain(output: str, rest: Sequence[str], program: str, help_text: str = "") -> str:
    """One line on what is wrong with the arguments `rest` of a command, from what the parser printed.

    An option that the help text does not list is named first: the parser may take its value for another argument.
    """
    if unknown := _unknown(rest, help_text):
        return f"{unknown}; see {program} --help"
    text = " ".join(re.sub(r"[─│╭╮╰╯]|-{4,}|\x1b\[[0-9;]*m", " ", output).split())
    for pattern, describe in _MESSAGES.items():
        if found := re.search(pattern, text):
            return f"{describe(found, rest)}; see {program} --help"
    return text.replace("For full helptext, run", "; see")


def name_option(message: str, program: str) -> str:
    """The message on a setting that is out of range, with the option that it was given by."""
    found = re.fullmatch(r"(\w+) (\S+: expected .*)", message)
    return f"--{found[1].replace('_', '-')} {found[2]}; see {program} --help" if found else message


def _unknown(rest: Sequence[str], help_text: str) -> str | None:
    """Options that the help text does not list, and what may be meant; None where all are known."""
    known = re.findall(r"(?:^|[ │]{2})[\s│]*(?:-\w, )?(--[a-z][\w.-]*)", help_text, re.MULTILINE)  # in columns
    typed = dict.fromkeys(name for word in rest if re.match(r"--?[a-z]", name := word.split("=")[0], re.I))
    options = [name for name in typed if not _is_number(name) and name.replace("_", "-") not in (*known, "-h")]
    if not known or not options:
        return None
    meant = dict.fromkeys(one for name in options for one in difflib.get_close_matches(name, known, cutoff=0.8))
    hint = f", perhaps {list_words(list(meant), 'or')} is meant" if meant else ""
    return f"unknown option {list_words(options, 'and')}{hint}"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _bad_value(found: re.Match[str], rest: Sequence[str]) -> str:
    option, kind = found[1], found[2]
    kinds = dict.fromkeys(KINDS[name] for name in re.findall("|".join(KINDS), kind))
    expected = " or ".join(sorted(kinds, key=lambda name: name == "None")) or kind
    several = ", one or more" if "..." in kind else ""
    return f"{option} {_value(option, rest)}: expected {expected}{several}"


def _bad_choice(found: re.Match[str], rest: Sequence[str]) -> str:
    value, option = found[1].strip("'\""), found[2]
    choices = sorted(set(re.findall(r"'([^']*)'", found[3])) - {"None"})
    name = option if option.startswith("-") else option.upper()
    return f"{name} {_value(option, rest) or value}: expected {list_words(choices, 'or')}"


def _no_value(found: re.Match[str], rest: Sequence[str]) -> str:
    return f"{found[1]}: found no value, expected one"


def _out_of_range(found: re.Match[str], rest: Sequence[str]) -> str:
    group = "" if found[1] == "Arguments" else f"{found[1]}."  # or the options of the command itself
    return f"--{group}{found[2].replace('_', '-')} {found[3]}"


def _contradiction(found: re.Match[str], rest: Sequence[str]) -> str:
    return found[1]


def _superfluous(found: re.Match[str], rest: Sequence[str]) -> str:
    return f"found {found[1].strip()}, expected no further argument"


def _missing(found: re.Match[str], rest: Sequence[str]) -> str:
    names = [part.split()[0] for part in found[1].split("(required)") if part.strip()]
    return f"{list_words(names, 'and')} {'is' if len(names) == 1 else 'are'} missing"


_MESSAGES: dict[str, Callable[[re.Match[str], Sequence[str]], str]] = {
    r"Error parsing (\S+): .* Argument helptext: \1 (\[.*?\]\]|\S+)": _bad_value,
    r"invalid choice (.*) for argument '(\S+)'. Expected one of \((.*?)\)": _bad_choice,
    r"Missing value for argument '(\S+)'": _no_value,
    r"Error parsing (\w+): (\w+) (\S+: expected .*?) For full": _out_of_range,
    r"Error parsing \w+: (--.*?) For full": _contradiction,
    r"Unrecognized options: (.*?)(?:Perhaps you meant:|Arguments similar to|For full|$)": _superfluous,
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
            end = next((position for position, one in enumerate(after) if one.startswith("--")), len(after))
            found = after[: max(end, 1)]
    return " ".join(found)
