"""Words chosen in memory are those that the queries choose, whatever is written."""

import random
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.preparation.config import EngineConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.refine import Refiner, count_words, measure_words, top_words

FIELDS = ("title", "body")
LIMITS = (5, 8)
COMMON = [
    "the",
    "Cat",
    "cat",
    "CAT",
    "dog's",
    "3.5",
    "e-mail",
    "«mer»",
    "新闻",
    "U.S.",
    "and",
    "ΟΔΟΣ",
    "İ",
    "½",
    "a_b",
    "हिन्दी",
    "Zu\u0308rich",
    "❤\ufe0f",
    "3\ufe0f\u20e3",
    "\u0301a",
    "https://cdn.example.org/2026/7f3e?w=640&h=360",
    "(xhttp://a.b\u0301c)",
    "https://",
    "见https://a.b/c新闻",
]


def any_characters(draw):
    """Texts of many scripts, symbols and separators; no code point that Unicode has not assigned."""
    while True:
        character = chr(draw.randrange(1, 0x3000))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            yield character


@pytest.mark.parametrize("seed", [1, 2])
def test_memory_chooses_what_queries_choose(seed, tmp_path):
    draw = random.Random(seed)
    characters = any_characters(draw)
    words = COMMON + ["".join(next(characters) for _ in range(draw.randrange(1, 5))) for _ in range(400)]

    def text(longest):
        return draw.choice([" ", "  ", ", "]).join(draw.choices(words, k=draw.randrange(longest)))

    texts = {"title": [text(12) for _ in range(300)], "body": [text(60) for _ in range(300)]}
    pq.write_table(pa.table({"news": list(range(1, 301)), **texts}), tmp_path / "texts.parquet")
    with open_engine(EngineConfig(memory=1), tmp_path) as engine:
        counts = count_words(engine, engine.open(tmp_path / "texts.parquet"), FIELDS)
        statistics = measure_words(engine, counts, 300, len(FIELDS), tmp_path / "frequencies.parquet")
        best = top_words(engine, counts, statistics, LIMITS).order_by("news", "field", "first")
        expected = [
            (row["news"], row["field"], row["form"], row["count"], row["rank"])
            for row in engine.load(best).to_pylist()
        ]
    refiner = Refiner(statistics)
    found = [
        (news + 1, field, word.form, word.count, word.rank)
        for news in range(300)
        for field, name in enumerate(FIELDS)
        for word in refiner.choose(texts[name][news], field, LIMITS[field])
    ]
    assert len(expected) > 2000
    assert found == expected
