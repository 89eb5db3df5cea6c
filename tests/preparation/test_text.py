"""Texts that fit stay as they are, longer ones are refined, and bodies can be cut to their first paragraphs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.encoding.inputs import Articles, open_packed
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import EngineConfig, PrepareConfig, TextConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.prepare import prepare
from speedyfeed.preparation.text import first_paragraphs, first_paragraphs_of, segments_of_long
from speedyfeed.preparation.tokens import Tokenizer
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.tokenizers import load_tokenizer

BODIES = ["one line", "first\nsecond\nthird", "\r\n  first \r\n\r\n\tsecond", "\n \n", "", "a\n\n\nb\n"]


def texts_of(store):
    """Tokens and frequencies of every (news, field), and how many segments they are."""
    found = {}
    news = store.news
    for number in range(1, store.num_news + 1):
        for segment in range(*news.segments[number : number + 2]):
            first, last = news.tokens.offsets[segment : segment + 2]
            key = (number, int(news.fields[segment]))
            row = (news.tokens[segment].tolist(), news.frequencies[first:last].tolist())
            found.setdefault(key, []).append(row)
    return found


def test_a_text_that_fits_is_as_without_refinement_and_a_longer_one_as_with_it(tmp_path):
    synthesize(tmp_path / "logs", SynthConfig(users=40, news=60, days=3))
    stores = {
        refine: prepare(
            tmp_path / "logs", tmp_path / refine, PrepareConfig(refine=refine, segment_tokens=18, body_segments=2)
        ).store
        for refine in ("bm25", "long", "none")
    }
    found = {refine: texts_of(store) for refine, store in stores.items()}
    room = 16
    num_kept = num_refined = 0
    whole = prepare(
        tmp_path / "logs", tmp_path / "whole", PrepareConfig(refine="none", segment_tokens=500, body_segments=2)
    ).store
    for key, segments in texts_of(whole).items():
        fits = sum(len(tokens) - 2 for tokens, _ in segments) <= room * (2 if key[1] == 2 else 1)
        assert found["long"].get(key) == found["none" if fits else "bm25"].get(key)
        num_kept += fits
        num_refined += not fits
    assert num_kept > 20
    assert num_refined > 20
    for number in range(1, 1 + stores["long"].num_news):  # fields are in order
        first, last = stores["long"].news.segments[number : number + 2]
        assert (np.diff(stores["long"].news.fields[first:last].astype(int)) >= 0).all()
    assert stores["long"].text_facts.statistics == stores["bm25"].text_facts.statistics


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_batches_of_texts_and_of_words_need_not_agree(batch_rows):
    tokenizer = Tokenizer(load_tokenizer("minilm"), 4)
    texts = pa.table({"news": [1, 2, 3, 4, 5], "title": ["cat dog", "a b c d", "", "e f g h", "cat"]})
    words = pa.table(
        {
            "news": pa.array([1, 1, 2, 4, 4, 5], pa.int64()),
            "field": pa.array([0] * 6, pa.int8()),
            "form": ["cat", "dog", "c", "f", "h", "cat"],
            "count": [1] * 6,
            "first": [0, 1, 2, 1, 3, 0],
            "rank": [0, 1, 0, 0, 1, 0],
        }
    )
    parts = list(
        segments_of_long(
            iter(texts.to_batches(max_chunksize=2)),
            iter(words.to_batches(max_chunksize=batch_rows)),
            tokenizer,
            fields=("title",),
            parts=(1,),
            segment_words=32,
        )
    )
    read = load_tokenizer("minilm").decode
    rows = [
        (int(news), read(tokens.tolist()[1:-1]))
        for part in parts
        for news, tokens in zip(part.news, part.tokens, strict=True)
    ]
    assert rows == [(1, "cat dog"), (2, "c"), (4, "f h"), (5, "cat")]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, BODIES),
        (1, ["one line", "first", "first", "", "", "a"]),
        (2, ["one line", "first second", "first second", "", "", "a b"]),
    ],
)
def test_a_body_is_cut_after_so_many_paragraphs_in_memory_and_by_queries(count, expected, engine_name, tmp_path):
    in_memory = [first_paragraphs_of(text, count) for text in BODIES]
    if count:
        assert [" ".join(text.split()) for text in in_memory] == expected
    else:
        assert in_memory == expected
    pq.write_table(pa.table({"news": list(range(len(BODIES))), "body": BODIES}), tmp_path / "texts.parquet")
    with open_engine(EngineConfig(engine=engine_name, memory=1), tmp_path) as engine:
        cut = first_paragraphs(engine.open(tmp_path / "texts.parquet"), count).order_by("news")
        assert engine.load(cut)["body"].to_pylist() == in_memory


def test_a_store_of_first_paragraphs_holds_no_later_one(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    pq.write_table(
        pa.table({"item": ["a", "b"], "title": ["A title", "Another"], "body": ["cat\ndog cow", "\nsun\n\nmoon"]}),
        logs / "items.parquet",
    )
    pq.write_table(
        pa.table({"user": ["u"] * 4, "item": ["a", "b", "a", "b"], "time": [1_600_000_000 + n for n in range(4)]}),
        logs / "interactions.parquet",
    )
    store = prepare(logs, tmp_path / "store", PrepareConfig(refine="long", body_paragraphs=1)).store
    read = load_tokenizer("minilm").decode
    assert [read(tokens.tolist()[1:-1]) for tokens in store.news.tokens] == ["a title", "cat", "another", "sun"]
    pack = Articles(store.text_facts, document_frequencies=store.path / DOCUMENT_FREQUENCIES, encoder="minilm")
    packed = pack([("A title", "", "cat\ndog cow"), ("Another", "", "\nsun\n\nmoon")])
    assert packed.tokens_T.tolist() == open_packed(store).tokens_T.tolist()
    with pytest.raises(InputError, match="prepared with body_paragraphs 1, asked for 0"):
        prepare(logs, tmp_path / "store", PrepareConfig(refine="long"))
    with pytest.raises(InputError, match="body_paragraphs -1: expected a number from 0"):
        TextConfig(body_paragraphs=-1)
