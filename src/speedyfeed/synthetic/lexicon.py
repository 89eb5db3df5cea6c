"""Lexicon of the synthetic newsroom, read from `lexicon.toml` in the same folder."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from speedyfeed.synthetic.popularity import Ints

Phrases = tuple[str, ...]
"""Words or phrases that can stand for each other; the last third is used only after train."""
Template = tuple[str, tuple[str, ...]]
"""A pattern with %s for its gaps, and the names of the gaps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """A person, place, team or company in the news."""

    names: Phrases
    """Its name, then other ways to speak of it."""
    adjuncts: tuple[str, ...]
    """Ways in which it enters a sentence, with %s for its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Angle:
    """A way to tell a story."""

    name: str
    titles: tuple[Template, ...]
    """Templates of titles."""
    leads: tuple[Template, ...]
    """Templates of first sentences."""
    closers: tuple[Template, ...]
    """Templates of later sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lexicon:
    """Topics, their subtopics, angles and entities, and the phrases of each."""

    topics: tuple[str, ...]
    topic: Ints
    """Topic of each subtopic."""
    subtopics: tuple[dict[str, Phrases], ...]
    """Phrases of each subtopic, by the gap they fit into: subject, predicate, nouns."""
    entities: tuple[Entity, ...]
    angles: tuple[Angle, ...]
    names: dict[str, Phrases]
    """People, places, numbers and times that mean nothing, by the gap they fit into."""
    sentences: tuple[Template, ...]
    """Templates of sentences about a subtopic."""
    mentions: tuple[Template, ...]
    """Templates of sentences about an entity."""
    asides: tuple[Template, ...]
    """Templates of sentences about another subtopic."""
    loud: tuple[Template, ...]
    """Templates of sentences that say how popular a story is."""


def num_before(num_phrases: int) -> int:
    """Number of phrases, the first of a list, that are used before train ends; the others come later."""
    return max(1, 2 * num_phrases // 3)


@cache
def load_lexicon() -> Lexicon:
    """Load the lexicon that is part of the package."""
    text = tomllib.loads(files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8"))
    templates = {name: _templates(text.pop(name)) for name in ("sentences", "mentions", "asides", "loud")}
    names, angles = text.pop("names"), text.pop("angles")
    adjuncts, entities = text.pop("adjuncts"), text.pop("entities")
    return Lexicon(
        topics=tuple(text),
        topic=np.array([number for number, topic in enumerate(text.values()) for _ in topic]),
        subtopics=tuple(_phrases(section) for topic in text.values() for section in topic.values()),
        entities=tuple(
            Entity(names=_split(line), adjuncts=_split(adjuncts[kind].replace("{entity}", "%s")))
            for kind, lines in entities.items()
            for line in lines.strip().splitlines()
        ),
        angles=tuple(_angle(name, parts) for name, parts in angles.items()),
        names=_names(names),
        **templates,
    )


def _split(line: str) -> Phrases:
    return tuple(line.split("; "))


def _templates(lines: str) -> tuple[Template, ...]:
    return tuple(
        (re.sub(r"{\w+}", "%s", line), tuple(re.findall(r"{(\w+)}", line))) for line in lines.strip().splitlines()
    )


def _angle(name: str, parts: dict[str, Any]) -> Angle:
    return Angle(name=name, **{part: _templates(lines) for part, lines in parts.items()})


def _phrases(section: dict[str, str]) -> dict[str, Phrases]:
    return {
        "subject": _split(section["subjects"]),
        "predicate": _split(section["predicates"]),
        "nouns": tuple(_plural(noun.replace("_", " ")) for noun in section["nouns"].split()),
    }


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeou":
        return noun[:-1] + "ies"
    return noun + "s"


def _names(section: dict[str, str]) -> dict[str, Phrases]:
    words = {name: value.split() for name, value in section.items()}
    surnames = _compounds(words["surname_starts"], words["surname_ends"])
    return {
        "person": tuple(f"{forename} {surname}" for forename in words["forenames"] for surname in surnames),
        "place": tuple(_compounds(words["place_starts"], words["place_ends"])),
        "number": tuple(words["numbers"]),
        "day": tuple(words["days"]),
        "season": tuple(words["seasons"]),
    }


def _compounds(starts: list[str], ends: list[str]) -> list[str]:
    return [start + end for start in starts for end in ends]
