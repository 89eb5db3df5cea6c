"""Texts of a synthetic newsroom: titles, abstracts and bodies in readable English.

A sentence is a template whose gaps are filled with words of the article's subtopic, of its topic, of other topics
and of no topic, and with invented people and places:

    These {number} {adjective} {nouns} {verb} more {nouns} than any {noun}
    These thirty icy mittens explained more snowstorms than any survey

Titles and abstracts are written for every article, about 8 microseconds each. A body joins sentences from a bank
written once per subtopic, so that hundreds of millions of words are affordable.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from speedyfeed.ragged import offsets_of
from speedyfeed.synthetic.lexicon import Lexicon, Words
from speedyfeed.synthetic.popularity import Ints

FROM_SUBTOPIC, FROM_TOPIC, FROM_ELSEWHERE, FROM_GENERAL = 0.55, 0.15, 0.1, 0.2
"""Probabilities that a gap is filled with a word of the subtopic, of its topic, of another topic, of none."""
POOL_WORDS = 1000
BANK_SENTENCES = 2000
FEWEST_SENTENCES, MEAN_SENTENCES = 3, 34.4
"""Minimum and mean number of sentences of a body."""

Template = tuple[str, tuple[str, ...]]
"""A pattern with %s for its gaps, and the names of the gaps."""


class Writer:
    """Writes articles about given subtopics; `rng` draws the words available to each subtopic."""

    def __init__(self, lexicon: Lexicon, rng: np.random.Generator, *, with_bodies: bool) -> None:
        self._titles = _templates(lexicon.titles)
        self._sentences = _templates(lexicon.sentences)
        self._pools = [_draw_pool(lexicon, subtopic, rng) for subtopic in range(len(lexicon.subtopics))]
        num_banked = BANK_SENTENCES if with_bodies else 0
        about = np.repeat(np.arange(len(self._pools)), num_banked)
        self._bank = pa.array([f"{text}." for text in self._write(self._sentences, about, rng)], pa.string())

    def write_titles(self, subtopic: Ints, rng: np.random.Generator) -> list[str]:
        """Write a title for each article, about 11 words."""
        return self._write(self._titles, subtopic, rng)

    def write_abstracts(self, subtopic: Ints, rng: np.random.Generator) -> list[str]:
        """Write an abstract of two sentences for each article, about 36 words."""
        first = self._write(self._sentences, subtopic, rng)
        second = self._write(self._sentences, subtopic, rng)
        return [f"{a}. {b}." for a, b in zip(first, second, strict=True)]

    def write_bodies(self, subtopic: Ints, rng: np.random.Generator) -> pa.StringArray:
        """Write a body for each article, about 610 words on average, most shorter and some much longer."""
        more = rng.gamma(2.0, (MEAN_SENTENCES - FEWEST_SENTENCES) / 2.0, len(subtopic))
        num_sentences = FEWEST_SENTENCES + rng.poisson(more)
        about = np.repeat(subtopic, num_sentences)
        picks = about * BANK_SENTENCES + rng.integers(BANK_SENTENCES, size=len(about))
        offsets = pa.array(offsets_of(num_sentences).astype(np.int32))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, self._bank.take(pa.array(picks))), " ")

    def _write(self, templates: list[Template], subtopic: Ints, rng: np.random.Generator) -> list[str]:
        picks = rng.integers(len(templates), size=len(subtopic)).tolist()
        most_gaps = max(len(gaps) for _, gaps in templates)
        words = rng.integers(POOL_WORDS, size=(len(subtopic), most_gaps)).tolist()
        texts = []
        for about, pick, row in zip(subtopic.tolist(), picks, words, strict=True):
            pattern, gaps = templates[pick]
            pool = self._pools[about]
            text = pattern % tuple([pool[gap][word] for gap, word in zip(gaps, row, strict=False)])
            texts.append(text[0].upper() + text[1:])
        return texts


def _templates(lines: tuple[str, ...]) -> list[Template]:
    return [(re.sub(r"{\w+}", "%s", line), tuple(re.findall(r"{(\w+)}", line))) for line in lines]


def _draw_pool(lexicon: Lexicon, subtopic: int, rng: np.random.Generator) -> Words:
    """Draw POOL_WORDS words for every gap, mixed by the FROM_ probabilities, so that a gap costs one draw."""
    related = lexicon.topic == lexicon.topic[subtopic]
    pool = {gap: _sample(names, POOL_WORDS, rng) for gap, names in lexicon.names.items()}
    for gap, own in lexicon.subtopics[subtopic].items():
        topic = [word for i in np.flatnonzero(related) for word in lexicon.subtopics[i][gap]]
        elsewhere = [word for i in np.flatnonzero(~related) for word in lexicon.subtopics[i][gap]]
        sources = (own, topic, elsewhere, lexicon.general[gap])
        counts = rng.multinomial(POOL_WORDS, (FROM_SUBTOPIC, FROM_TOPIC, FROM_ELSEWHERE, FROM_GENERAL))
        pool[gap] = [word for words, n in zip(sources, counts, strict=True) for word in _sample(words, n, rng)]
    return pool


def _sample(words: list[str], size: int, rng: np.random.Generator) -> list[str]:
    return [words[pick] for pick in rng.integers(len(words), size=size)]
