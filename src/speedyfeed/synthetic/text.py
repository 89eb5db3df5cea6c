"""Texts of a synthetic newsroom: titles, abstracts and bodies in readable English.

A sentence is a template of the story's angle, whose gaps are filled with phrases of its subtopic, with a name of
its entity, and with people, places and times that mean nothing:

    Officials confirm that {subject} {predicate} {adjunct}
    Officials confirm that a cold snap closed the airport for two days near Calder Bay

Of every list of phrases and templates the last third is used only for stories after train. An abstract may have
an aside on another subtopic, which nobody clicks for. Titles and abstracts are written for every article, some 20
microseconds each. A body joins sentences from a bank, so that hundreds of millions of words are affordable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.ragged import offsets_of
from speedyfeed.synthetic.lexicon import Lexicon, Template, num_before
from speedyfeed.synthetic.popularity import Floats, Ints

SHARE_NAMED = 0.6
"""Probability that an entity is called by its name, not by another way to speak of it."""
SHARE_ASIDES = 0.4
"""Probability that the second sentence of an abstract that is not loud is about another subtopic."""
BANK_SENTENCES = {"subtopic": 800, "angle": 60, "entity": 100}
"""Number of sentences in the bank for each subtopic, for each subtopic and angle, and for each entity."""
BANK_SHARES = {"subtopic": 0.6, "angle": 0.2, "entity": 0.2}
"""Shares of the sentences of a body that come from each part of the bank."""
FEWEST_SENTENCES, MEAN_SENTENCES = 3, 34.15
"""Minimum and mean number of sentences of a body."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stories:
    """What some articles are about; one entry of every array for each."""

    subtopic: Ints
    entity: Ints
    angle: Ints
    is_loud: NDArray[np.bool_]
    """Whether the text says that many want to read it."""
    is_late: NDArray[np.bool_]
    """Whether it is written after train, and may use phrases that did not occur before."""
    event: Floats
    """Number from 0 to 1 that decides who did what, the same in title and abstract."""

    def __len__(self) -> int:
        return len(self.subtopic)

    def rows(self) -> Iterator["_Story"]:
        """The stories one by one."""
        columns = (self.subtopic, self.entity, self.is_late, self.event)
        return map(_Story._make, zip(*(column.tolist() for column in columns), strict=True))


class _Story(NamedTuple):
    subtopic: int
    entity: int
    is_late: bool
    event: float


class Writer:
    """Writes articles about given stories; `rng` draws the sentences that bodies are made of."""

    def __init__(self, lexicon: Lexicon, rng: np.random.Generator, *, with_bodies: bool) -> None:
        self._lexicon = lexicon
        self._bank = _Bank(self, lexicon, rng) if with_bodies else None

    def write_titles(self, stories: Stories, rng: np.random.Generator) -> list[str]:
        """Write a title for each story, about 13 words."""
        return self.write([self._lexicon.angles[angle].titles for angle in stories.angle], stories, rng)

    def write_abstracts(self, stories: Stories, rng: np.random.Generator) -> list[str]:
        """Write an abstract of two sentences for each story, about 38 words."""
        angles = [self._lexicon.angles[angle] for angle in stories.angle]
        first = self.write([angle.leads for angle in angles], stories, rng)
        is_aside = rng.random(len(stories)) < SHARE_ASIDES
        kinds = [
            self._lexicon.loud if loud else self._lexicon.asides if aside else angle.closers
            for angle, loud, aside in zip(angles, stories.is_loud, is_aside, strict=True)
        ]
        second = self.write(kinds, stories, rng)
        return [f"{a}. {b}." for a, b in zip(first, second, strict=True)]

    def write_bodies(self, stories: Stories, rng: np.random.Generator) -> pa.StringArray:
        """Write a body for each story, about 610 words on average, most shorter and some much longer."""
        assert self._bank is not None, "a writer without bodies"
        more = rng.gamma(2.0, (MEAN_SENTENCES - FEWEST_SENTENCES) / 2.0, len(stories))
        num_sentences = FEWEST_SENTENCES + rng.poisson(more)
        sentences = self._bank.pick(stories, np.repeat(np.arange(len(stories)), num_sentences), rng)
        offsets = pa.array(offsets_of(num_sentences).astype(np.int32))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, sentences), " ")

    def write(
        self, templates: Sequence[tuple[Template, ...]], stories: Stories, rng: np.random.Generator
    ) -> list[str]:
        """Write one text for each story, by one of the templates given for it."""
        most_gaps = max((len(gaps) for kinds in set(templates) for _, gaps in kinds), default=0)
        draws = rng.random((len(stories), 4 + most_gaps)).tolist()
        texts = []
        for kinds, story, draw in zip(templates, stories.rows(), draws, strict=True):
            pattern, gaps = _choose(kinds, draw[0], story.is_late)
            text = pattern % self._fill(gaps, story, draw[1:])
            texts.append(text[0].upper() + text[1:])
        return texts

    def _fill(self, gaps: tuple[str, ...], story: "_Story", draw: list[float]) -> tuple[str, ...]:
        """Phrases for the gaps of a template; no noun comes twice."""
        lexicon = self._lexicon
        subtopic, entity, is_late, event = story
        own, names = lexicon.subtopics[subtopic], lexicon.names
        num_subtopics = len(lexicon.subtopics)
        other = (subtopic + 1 + int(draw[0] * (num_subtopics - 1))) % num_subtopics
        noun, stride = (
            draw[1],
            2 * int(draw[2] * 5) + 1,
        )  # odd: three steps meet three nouns
        words = []
        for gap, chance in zip(gaps, draw[3:], strict=False):
            if gap in names:
                words.append(names[gap][int(chance * len(names[gap]))])
            elif gap == "nouns":
                words.append(_choose(own["nouns"], noun, is_late))
                noun = (noun + stride / num_before(len(own["nouns"]))) % 1
            elif gap in own:
                words.append(_choose(own[gap], event if gap == "subject" else event * 1000 % 1, is_late))
            elif gap.startswith("other_"):
                words.append(_choose(lexicon.subtopics[other][gap.removeprefix("other_")], chance, is_late))
            else:
                words.append(self._mention(gap, entity, is_late, chance))
        return tuple(words)

    def _mention(self, gap: str, entity: int, is_late: bool, chance: float) -> str:
        """An entity by one of its names: alone, or as a part that enters a sentence."""
        who = self._lexicon.entities[entity]
        if chance < SHARE_NAMED:
            chance, name = chance / SHARE_NAMED, who.names[0]
        else:
            chance = (chance - SHARE_NAMED) / (1 - SHARE_NAMED)
            name = _choose(who.names[1:], chance, is_late)
            chance = chance * len(who.names) % 1  # the name took its first digits
        return name if gap == "entity" else _choose(who.adjuncts, chance, is_late) % name


class _Bank:
    """Sentences that bodies are made of: some for each subtopic, for each subtopic and angle, for each entity.

    Sentences of a group are consecutive, those of early stories before those of late ones.
    """

    def __init__(self, writer: Writer, lexicon: Lexicon, rng: np.random.Generator) -> None:
        self._num_subtopics = len(lexicon.subtopics)
        self._first: dict[str, int] = {}
        sentences: list[str] = []
        groups = {"subtopic": 1, "angle": len(lexicon.angles), "entity": 0}
        for part, num_angles in groups.items():
            self._first[part] = len(sentences)
            size = num_angles * self._num_subtopics or len(lexicon.entities)
            group = np.repeat(np.arange(2 * size), BANK_SENTENCES[part])
            angle, subtopic = np.divmod(group // 2, self._num_subtopics)
            stories = Stories(
                subtopic=subtopic if num_angles else np.zeros_like(group),
                entity=np.zeros_like(group) if num_angles else group // 2,
                angle=angle if part == "angle" else np.zeros_like(group),
                is_loud=np.zeros(len(group), bool),
                is_late=group % 2 == 1,
                event=rng.random(len(group)),
            )
            templates = {
                "subtopic": [lexicon.sentences] * len(group),
                "angle": [lexicon.angles[number].closers for number in stories.angle],
                "entity": [lexicon.mentions] * len(group),
            }
            sentences += [f"{text}." for text in writer.write(templates[part], stories, rng)]
        self._sentences = pa.array(sentences, pa.string())

    def pick(self, stories: Stories, story: Ints, rng: np.random.Generator) -> pa.StringArray:
        """Pick one sentence for each entry of `story`, a position among the stories."""
        subtopic, late = stories.subtopic[story], stories.is_late[story]
        groups = {
            "subtopic": subtopic,
            "angle": stories.angle[story] * self._num_subtopics + subtopic,
            "entity": stories.entity[story],
        }
        part = rng.choice(len(groups), p=list(BANK_SHARES.values()), size=len(story))
        chance = rng.random(len(story))
        picks = np.zeros_like(story)
        for number, (name, group) in enumerate(groups.items()):
            size = BANK_SENTENCES[name]
            sentence = self._first[name] + (2 * group + late) * size + (chance * size).astype(np.int64)
            picks = np.where(part == number, sentence, picks)
        return self._sentences.take(pa.array(picks))


def _choose(choices: Sequence[T], chance: float, is_late: bool) -> T:
    """Choose by a number from 0 to 1; early stories have no part in the last third."""
    return choices[int(chance * (len(choices) if is_late else num_before(len(choices))))]
