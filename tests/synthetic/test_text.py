"""What the synthetic newsroom writes: readable, varied, about something, and nothing in clear."""

import re
from collections import Counter

import numpy as np
import pytest

from speedyfeed.synthetic.lexicon import load_lexicon, num_before
from speedyfeed.synthetic.text import Stories, Writer


@pytest.fixture(scope="module")
def lexicon():
    return load_lexicon()


@pytest.fixture(scope="module")
def writer(lexicon):
    return Writer(lexicon, np.random.default_rng(0), with_bodies=True)


def draw_stories(lexicon, count, *, is_late=False, is_loud=False, **given):
    rng = np.random.default_rng(1)
    sizes = {"subtopic": len(lexicon.subtopics), "entity": len(lexicon.entities), "angle": len(lexicon.angles)}
    labels = {name: np.full(count, given[name]) if name in given else rng.integers(size, size=count)
              for name, size in sizes.items()}  # fmt: skip
    return Stories(
        **labels, is_loud=np.full(count, is_loud), is_late=np.full(count, is_late), event=rng.random(count)
    )


def test_lexicon_has_many_phrases_for_every_subtopic(lexicon):
    assert len(lexicon.topics) == 12
    assert np.bincount(lexicon.topic).tolist() == [4] * 12
    for phrases in lexicon.subtopics:
        for gap, least in {"subject": 6, "predicate": 6, "nouns": 20}.items():
            assert len(set(phrases[gap])) == len(phrases[gap]) >= least
    assert len({name for entity in lexicon.entities for name in entity.names}) == 3 * len(lexicon.entities)


def test_topics_share_words(lexicon):
    topics = [
        {
            noun
            for of, phrases in zip(lexicon.topic, lexicon.subtopics, strict=True)
            if of == topic
            for noun in phrases["nouns"]
        }
        for topic in range(len(lexicon.topics))
    ]
    shared = [noun for noun, count in Counter(noun for nouns in topics for noun in nouns).items() if count > 1]
    assert len(shared) >= 10


def test_every_gap_of_a_template_can_be_filled(lexicon):
    templates = lexicon.sentences + lexicon.mentions + lexicon.asides + lexicon.loud
    for angle in lexicon.angles:
        templates += angle.titles + angle.leads + angle.closers
    gaps = {gap for _, names in templates for gap in names}
    assert gaps == {
        *lexicon.names, *lexicon.subtopics[0], "entity", "adjunct", "other_subject", "other_predicate"
    }  # fmt: skip


def test_titles_read_like_sentences_and_differ(lexicon, writer):
    titles = writer.write_titles(draw_stories(lexicon, 1000), np.random.default_rng(1))
    assert len(set(titles)) > 950
    assert all(re.fullmatch(r"'?[A-Z][A-Za-z,:?'\- ]+", title) for title in titles)


def test_no_sentence_has_a_noun_twice(lexicon, writer):
    for is_late in (False, True):
        stories = draw_stories(lexicon, 1000, is_late=is_late, subtopic=7)
        pattern = ("%s|%s|%s", ("nouns", "nouns", "nouns"))
        for text in writer.write([(pattern,)] * 1000, stories, np.random.default_rng(2)):
            assert len(set(text.lower().split("|"))) == 3


def test_title_and_abstract_tell_of_the_same_event(lexicon, writer):
    stories = draw_stories(lexicon, 300)
    titles, abstracts = (
        write(stories, np.random.default_rng(3)) for write in (writer.write_titles, writer.write_abstracts)
    )
    told = 0
    for about, title, abstract in zip(stories.subtopic, titles, abstracts, strict=True):
        events = [event for event in lexicon.subtopics[about]["predicate"] if event in title]
        told += len(events)
        assert all(event in abstract for event in events)
    assert told > 100


def test_abstracts_tell_subtopics_and_entities_by_their_words(lexicon, writer):
    stories = draw_stories(lexicon, 300)
    abstracts = writer.write_abstracts(stories, np.random.default_rng(4))
    for about, entity, text in zip(stories.subtopic, stories.entity, abstracts, strict=True):
        assert any(event in text for event in lexicon.subtopics[about]["predicate"])
        assert any(name in text for name in lexicon.entities[entity].names)


def test_a_third_of_the_phrases_comes_only_after_train(lexicon, writer):
    predicates = lexicon.subtopics[5]["predicate"]
    late = predicates[num_before(len(predicates)) :]
    assert len(late) == len(predicates) // 3
    for is_late in (False, True):
        stories = draw_stories(lexicon, 400, is_late=is_late, subtopic=5, entity=3)
        text = " ".join(writer.write_abstracts(stories, np.random.default_rng(5)))
        assert all((phrase in text) is is_late for phrase in (*late, lexicon.entities[3].names[2]))


def test_popularity_can_be_read_where_a_story_is_loud(lexicon, writer):
    loud, quiet = (
        writer.write_abstracts(draw_stories(lexicon, 200, is_loud=is_loud), np.random.default_rng(6))
        for is_loud in (True, False)
    )
    starts = tuple(pattern.split("%s")[0] for pattern, _ in lexicon.loud)
    assert all(any(start in text for start in starts) for text in loud)
    assert not any(start in text for text in quiet for start in starts)


def test_no_title_says_its_topic_by_formula(lexicon, writer):
    """The name of a topic is at most a word among others, never a label in every text."""
    stories = draw_stories(lexicon, 2000)
    titles = writer.write_titles(stories, np.random.default_rng(3))
    topics = [lexicon.topics[lexicon.topic[about]] for about in stories.subtopic]
    assert np.mean([topic in title for topic, title in zip(topics, titles, strict=True)]) < 0.05


def test_bodies_are_long_and_of_very_different_lengths(lexicon, writer):
    bodies = writer.write_bodies(draw_stories(lexicon, 500, subtopic=7), np.random.default_rng(4)).to_pylist()
    lengths = [len(body.split()) for body in bodies]
    assert np.mean(lengths) == pytest.approx(612, rel=0.1)
    assert min(lengths) < 200
    assert max(lengths) > 1200


def test_bodies_are_about_their_own_story(lexicon, writer):
    stories = draw_stories(lexicon, 100, subtopic=9, entity=11, angle=2)
    text = " ".join(writer.write_bodies(stories, np.random.default_rng(4)).to_pylist())
    own, other = lexicon.subtopics[9]["predicate"], lexicon.subtopics[8]["predicate"]
    assert own[0] in text
    assert other[0] not in text
    assert lexicon.entities[11].names[0] in text
    assert lexicon.entities[10].names[0] not in text
    assert "I believe" in text
    assert "whistleblower" not in text
