"""Refinement against a plain-Python twin, word for word, on both engines."""

import math
import random
import re
import unicodedata
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.preparation.config import EngineConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.refine import WordStatistics, count_words, measure_words, stop_words, top_words

FIELDS = ("title", "body")
LIMITS = (5, 8)


def split_slowly(text):
    words, word = [], ""
    for character in re.sub(r"https?://[!-~]+", " ", text) + " ":
        kind = unicodedata.category(character)[0]
        if kind in "LN" or (kind == "M" and word):
            word += character
        else:
            words += [word] if word else []
            word = ""
    return words


def refine_slowly(texts, k1=2.0, b=0.75):
    """(news, field, form, count) of the kept words in order, from the formulas and nothing else."""
    stop = set(stop_words())
    bags = {}
    for news, text in enumerate(texts, 1):
        for field, name in enumerate(FIELDS):
            words = split_slowly(text[name])
            bags[news, field] = [
                (position, word) for position, word in enumerate(words) if word.lower() not in stop
            ]
    documents = Counter()
    for news in range(1, len(texts) + 1):
        documents.update({word.lower() for field in range(len(FIELDS)) for _, word in bags[news, field]})
    mean = [
        sum(len(bags[news, field]) for news in range(1, len(texts) + 1)) / len(texts)
        for field in range(len(FIELDS))
    ]
    kept = []
    for (news, field), bag in bags.items():
        counts = Counter(word.lower() for _, word in bag)
        first = {}
        for position, word in bag:
            first.setdefault(word.lower(), (position, word))

        def score(word, counts=counts, bag=bag, field=field):
            rarity = math.log(1 + (len(texts) - documents[word] + 0.5) / (documents[word] + 0.5))
            return rarity * counts[word] * (k1 + 1) / (counts[word] + k1 * (1 - b + b * len(bag) / mean[field]))

        best = sorted(counts, key=lambda word: (-score(word), first[word][0]))[: LIMITS[field]]
        kept += [
            (news, field, first[word][1], counts[word]) for word in sorted(best, key=lambda word: first[word][0])
        ]
    return kept


def refine(texts, engine_name, folder):
    columns = {"news": list(range(1, len(texts) + 1)), **{name: [text[name] for text in texts] for name in FIELDS}}
    pq.write_table(pa.table(columns), folder / "texts.parquet")
    with open_engine(EngineConfig(engine=engine_name, memory=1), folder) as engine:
        counts = count_words(engine, engine.open(folder / "texts.parquet"), FIELDS)
        statistics = measure_words(engine, counts, len(texts), len(FIELDS), folder / "frequencies.parquet")
        words = top_words(engine, counts, statistics, LIMITS).order_by("news", "field", "first")
        return [
            (row["news"], row["field"], row["form"], row["count"])
            for batch in engine.read(words, "words")
            for row in batch.to_pylist()
        ]


def random_texts(seed, num_news=60):
    draw = random.Random(seed)
    words = [
        "the",
        "Cat",
        "cat",
        "CAT",
        "dog's",
        "Ærlig",
        "über",
        "naïve",
        "3.5",
        "e-mail",
        "«mer»",
        "新闻",
        "U.S.",
        "and",
        "हिन्दी",
        "cafe\u0301",
        "❤\ufe0f",
        "https://cdn.example.org/2026/7f3e.jpg?w=640",
    ]
    words += [f"word{n}" for n in range(40)]
    weights = [1 / (n + 1) for n in range(len(words))]

    def text(longest):
        return draw.choice([" ", "  ", ", "]).join(draw.choices(words, weights, k=draw.randrange(longest)))

    return [{"title": text(12), "body": text(60)} for _ in range(num_news)]


def test_refinement_equals_the_plain_formulas(engine_name, tmp_path):
    texts = random_texts(seed=5)
    expected = refine_slowly(texts)
    assert len(expected) > 300
    assert len({row[:2] for row in expected if row[1] == 1}) > 40
    assert refine(texts, engine_name, tmp_path) == expected


def test_other_statistics_choose_other_words_and_new_words_tell_most(engine_name, tmp_path):
    """In the collection at hand `cup` is in every article; where the statistics come from, it is in none."""
    texts = [{"title": "cup goal storm cup", "body": ""}, {"title": "cup", "body": "storm"}]
    columns = {"news": [1, 2], **{name: [text[name] for text in texts] for name in FIELDS}}
    pq.write_table(pa.table(columns), tmp_path / "texts.parquet")
    pq.write_table(pa.table({"word": ["goal", "storm"], "num_news": [9, 2]}), tmp_path / "known.parquet")
    known = WordStatistics(num_news=10, mean_words=[4.0, 0.0], document_frequencies=tmp_path / "known.parquet")
    with open_engine(EngineConfig(engine=engine_name, memory=1), tmp_path) as engine:
        counts = count_words(engine, engine.open(tmp_path / "texts.parquet"), FIELDS)
        words = top_words(engine, counts, known, LIMITS).order_by("news", "field", "rank")
        found = engine.load(words.select("news", "field", "form")).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, 0, "cup"),
        (1, 0, "storm"),
        (1, 0, "goal"),
        (2, 0, "cup"),
        (2, 1, "storm"),
    ]


def test_words_keep_their_first_form_their_count_and_their_order(tmp_path):
    texts = [{"title": "The cat saw the other Cat run!", "body": ""}, {"title": "...", "body": "A dog"}]
    assert refine(texts, "duckdb", tmp_path) == [
        (1, 0, "cat", 2),
        (1, 0, "saw", 1),
        (1, 0, "run", 1),
        (2, 1, "dog", 1),
    ]


def test_a_mark_belongs_to_its_letter_and_an_address_is_no_word(tmp_path):
    texts = [{"title": "हिन्दी ❤\ufe0f cafe\u0301s", "body": "see https://cdn.example.org/7f3e9c.jpg?w=640 or zoo"}]
    assert [form for *_, form, _ in refine(texts, "duckdb", tmp_path)] == ["हिन्दी", "cafe\u0301s", "see", "zoo"]


@pytest.mark.parametrize("word", ["the", "and", "s", "don"])
def test_stop_words_tell_nothing(word):
    assert word in stop_words()


def test_stop_words_are_lower_case_and_listed_once():
    words = stop_words()
    assert words == sorted(set(words))
    assert all(word == word.lower() for word in words)
