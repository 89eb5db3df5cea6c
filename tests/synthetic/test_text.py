"""What the synthetic newsroom writes: readable, varied, about something, and nothing in clear."""

import re
from collections import Counter

import numpy as np
import pytest

from speedyfeed.synthetic.lexicon import load_lexicon
from speedyfeed.synthetic.text import Writer


@pytest.fixture(scope="module")
def lexicon():
    return load_lexicon()


@pytest.fixture(scope="module")
def writer(lexicon):
    return Writer(lexicon, np.random.default_rng(0), with_bodies=True)


def test_lexicon_has_many_words_for_every_subtopic(lexicon):
    assert len(lexicon.topics) == 12
    assert np.bincount(lexicon.topic).tolist() == [4] * 12
    for words in (*lexicon.subtopics, lexicon.general):
        for gap, least in {"noun": 20, "nouns": 20, "verb": 9, "adjective": 9}.items():
            assert len(set(words[gap])) == len(words[gap]) >= least


def test_topics_share_words(lexicon):
    topics = [
        {
            word
            for of, words in zip(lexicon.topic, lexicon.subtopics, strict=True)
            if of == topic
            for word in words["noun"]
        }
        for topic in range(len(lexicon.topics))
    ]
    shared = [noun for noun, count in Counter(noun for nouns in topics for noun in nouns).items() if count > 1]
    assert len(shared) >= 10


def test_every_gap_of_a_template_can_be_filled(lexicon):
    gaps = set(re.findall(r"{(\w+)}", "".join(lexicon.titles + lexicon.sentences)))
    assert gaps == lexicon.names.keys() | lexicon.general.keys()


def test_titles_read_like_sentences_and_differ(writer):
    titles = writer.write_titles(np.zeros(1000, np.int64), np.random.default_rng(1))
    assert len(set(titles)) > 990
    assert all(re.fullmatch(r"[A-Z][A-Za-z,:\- ]+", title) for title in titles)


def test_abstracts_tell_topics_apart_by_their_words(lexicon, writer):
    rng = np.random.default_rng(2)
    subtopic = rng.integers(len(lexicon.topic), size=300)
    known = [
        set(words["noun"] + words["nouns"] + words["verb"] + words["adjective"]) for words in lexicon.subtopics
    ]
    hits = 0
    for about, text in zip(subtopic, writer.write_abstracts(subtopic, rng), strict=True):
        words = re.findall(r"[a-z-]+", text)
        scores = [sum(word in vocabulary for word in words) for vocabulary in known]
        hits += lexicon.topic[int(np.argmax(scores))] == lexicon.topic[about]
    assert hits / 300 > 0.8  # a person would see it, too


def test_no_title_says_its_topic_by_formula(lexicon, writer):
    """The name of a topic is at most a word among others, never a label in every text."""
    subtopic = np.repeat(np.arange(len(lexicon.topic)), 50)
    titles = writer.write_titles(subtopic, np.random.default_rng(3))
    named = [lexicon.topics[lexicon.topic[about]] in title for about, title in zip(subtopic, titles, strict=True)]
    assert np.mean(named) < 0.05


def test_bodies_are_long_and_of_very_different_lengths(writer):
    bodies = writer.write_bodies(np.full(500, 7), np.random.default_rng(4)).to_pylist()
    lengths = [len(body.split()) for body in bodies]
    assert np.mean(lengths) == pytest.approx(612, rel=0.1)
    assert min(lengths) < 200
    assert max(lengths) > 1200
