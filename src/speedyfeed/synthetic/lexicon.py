"""Lexicon of the synthetic newsroom, read from `lexicon.toml` in the same folder."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from speedyfeed.synthetic.popularity import Ints

Words = dict[str, list[str]]
"""Words by the gap of a template they fit into: noun, nouns, verb, adjective, person, place, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lexicon:
    """Topics, their subtopics, and the words of each."""

    topics: tuple[str, ...]
    topic: Ints
    """Topic of each subtopic."""
    subtopics: tuple[Words, ...]
    """Words of each subtopic."""
    general: Words
    """Words that fit every topic."""
    names: Words
    """People, places, numbers and times."""
    titles: tuple[str, ...]
    """Templates of titles, with gaps in braces."""
    sentences: tuple[str, ...]
    """Templates of sentences, with gaps in braces."""


@cache
def load_lexicon() -> Lexicon:
    """Load the lexicon that is part of the package."""
    text = tomllib.loads(files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8"))
    titles, sentences = (text.pop(name).strip().splitlines() for name in ("titles", "sentences"))
    names, general = text.pop("names"), text.pop("general")
    return Lexicon(
        topics=tuple(text),
        topic=np.array([number for number, topic in enumerate(text.values()) for _ in topic]),
        subtopics=tuple(_words(section) for topic in text.values() for section in topic.values()),
        general=_words(general),
        names=_names(names),
        titles=tuple(titles),
        sentences=tuple(sentences),
    )


def _words(section: dict[str, str]) -> Words:
    nouns = [noun.replace("_", " ") for noun in section["nouns"].split()]
    return {
        "noun": nouns,
        "nouns": [_plural(noun) for noun in nouns],
        "verb": section["verbs"].split(),
        "adjective": section["adjectives"].split(),
    }


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeou":
        return noun[:-1] + "ies"
    return noun + "s"


def _names(section: dict[str, str]) -> Words:
    words = {name: value.split() for name, value in section.items()}
    surnames = _compounds(words["surname_starts"], words["surname_ends"])
    return {
        "person": [f"{forename} {surname}" for forename in words["forenames"] for surname in surnames],
        "place": _compounds(words["place_starts"], words["place_ends"]),
        "number": words["numbers"],
        "day": words["days"],
        "season": words["seasons"],
    }


def _compounds(starts: list[str], ends: list[str]) -> list[str]:
    return [start + end for start in starts for end in ends]
