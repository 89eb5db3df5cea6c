"""Words and raw text to token segments, checked by eye with a tokenizer of eight words."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from speedyfeed.errors import InputError
from speedyfeed.preparation.tokens import Tokenizer, segments_of_heads, segments_of_words, write_segments
from speedyfeed.ragged import open_array, open_ragged

PIECES = ["[CLS]", "[SEP]", "[UNK]", "cat", "dog", "##s", "run", "far", "国", "##国"]
CLS, SEP, UNK, CAT, DOG, S, RUN, FAR, LAND, LANDS = range(10)


@pytest.fixture(scope="module")
def plm_tokenizer():
    backend = BackendTokenizer(WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def words(*rows):
    names = ("news", "field", "form", "count", "rank")
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    return table.set_column(1, "field", table["field"].cast(pa.int8()))


def written(folder, batches, tokenizer, num_news):
    """Every article as its segments: (field, tokens, frequencies)."""
    num_empty = write_segments(folder, batches, tokenizer, num_news)
    tokens, frequencies = open_ragged(folder, "tokens"), open_array(folder, "frequencies")
    fields, offsets = open_array(folder, "fields"), open_array(folder, "segments.offsets")
    assert len(offsets) == num_news + 2
    assert offsets[-1] == len(tokens) == len(fields)
    assert len(frequencies) == len(tokens.values)
    news = []
    for number in range(num_news + 1):
        spans = [
            (n, tokens.offsets[n], tokens.offsets[n + 1]) for n in range(offsets[number], offsets[number + 1])
        ]
        news.append([(int(fields[n]), tokens[n].tolist(), frequencies[a:b].tolist()) for n, a, b in spans])
    assert news[0] == []
    return news[1:], num_empty


def test_words_become_segments_with_their_counts(plm_tokenizer, tmp_path):
    table = words((1, 0, "cat", 2, 0), (1, 0, "dogs", 300, 1), (1, 2, "run", 1, 0), (3, 0, "zebra", 1, 0))
    tokenizer = Tokenizer(plm_tokenizer, 6)
    news, num_empty = written(
        tmp_path, segments_of_words(iter(table.to_batches()), tokenizer, segment_words=4), tokenizer, 4
    )
    assert news == [
        [(0, [CLS, CAT, DOG, S, SEP], [0, 2, 255, 255, 0]), (2, [CLS, RUN, SEP], [0, 1, 0])],
        [(0, [CLS, SEP], [0, 0])],  # nothing said of news 2
        [(0, [CLS, UNK, SEP], [0, 1, 0])],
        [(0, [CLS, SEP], [0, 0])],
    ]
    assert num_empty == 2


def test_the_least_telling_words_go_when_tokens_do_not_fit(plm_tokenizer, tmp_path):
    table = words((1, 0, "run", 1, 2), (1, 0, "dogs", 1, 0), (1, 0, "cat", 1, 1))
    tokenizer = Tokenizer(plm_tokenizer, 5)
    news, _ = written(
        tmp_path, segments_of_words(iter(table.to_batches()), tokenizer, segment_words=4), tokenizer, 1
    )
    assert news == [[(0, [CLS, DOG, S, CAT, SEP], [0, 1, 1, 1, 0])]]


@pytest.mark.parametrize(
    ("forms", "expected"),
    [
        (["catsss", "dog", "run"], [DOG, RUN]),  # what does not fit takes nothing with it
        (["dog", "catss", "run"], [DOG, RUN]),
        (["run", "国国国国", "cat"], [RUN, LAND, LANDS]),  # without spaces, a part still says something
        (["国国国国国"], [LAND, LANDS, LANDS]),
        (["catssss", "dogsss"], [CAT, S, S]),  # rather than nothing
    ],
)
def test_words_that_do_not_fit_leave_room_to_others(plm_tokenizer, tmp_path, forms, expected):
    table = words(*((1, 0, form, 1, rank) for rank, form in enumerate(forms)))
    tokenizer = Tokenizer(plm_tokenizer, 5)
    news, num_empty = written(
        tmp_path, segments_of_words(iter(table.to_batches()), tokenizer, segment_words=4), tokenizer, 1
    )
    assert news == [[(0, [CLS, *expected, SEP], [0, *[1] * len(expected), 0])]]
    assert num_empty == 0


def test_an_article_whose_words_have_no_token_is_counted(plm_tokenizer, tmp_path):
    table = words((1, 0, "\n", 1, 0), (2, 0, "cat", 1, 0), (2, 1, "\n", 1, 0))
    tokenizer = Tokenizer(plm_tokenizer, 5)
    news, num_empty = written(
        tmp_path, segments_of_words(iter(table.to_batches()), tokenizer, segment_words=4), tokenizer, 3
    )
    assert news[0] == [(0, [CLS, SEP], [0, 0])]
    assert num_empty == 2


def retain_slowly(ranked, room):
    """Tokens retained of each word of a segment, given as (rank, tokens, whether it may be cut)."""
    retained, left = [0] * len(ranked), room
    for position in sorted(range(len(ranked)), key=lambda one: ranked[one][0]):
        _, num_tokens, may_cut = ranked[position]
        retained[position] = num_tokens if num_tokens <= left else left if may_cut else 0
        left -= retained[position]
    if left == room:
        retained[0] = min(ranked[0][1], room)
    return retained


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=9), max_size=4),
    st.randoms(),
)
def test_what_is_retained_equals_a_choice_word_by_word(plm_tokenizer, texts, draw):
    room, segment_words = 4, 3
    tokenizer = Tokenizer(plm_tokenizer, room + 2)
    rows, expected = [], []
    for news, text in enumerate(texts, 1):
        ranks = draw.sample(range(len(text)), len(text))
        forms = ["国" * size if may_cut else "cat" + "s" * (size - 1) for size, may_cut in text]
        rows += [(news, 0, form, 1, rank) for form, rank in zip(forms, ranks, strict=True)]
        for start in range(0, len(text), segment_words):
            part = slice(start, start + segment_words)
            ranked = [(rank, *word) for rank, word in zip(ranks[part], text[part], strict=True)]
            tokens = [tokenizer.encode([form])[0] for form in forms[part]]
            retained = retain_slowly(ranked, room)
            inner = [one for ids, number in zip(tokens, retained, strict=True) for one in ids[:number]]
            expected.append([CLS, *inner, SEP])
    parts = segments_of_words(
        iter(words(*rows).to_batches() if rows else []), tokenizer, segment_words=segment_words
    )
    assert [tokens.tolist() for part in parts for tokens in part.tokens] == expected


def test_a_long_field_fills_several_segments(plm_tokenizer, tmp_path):
    table = words(*((1, 2, form, 1, rank) for rank, form in enumerate(["cat", "run", "far", "dog", "cats"])))
    tokenizer = Tokenizer(plm_tokenizer, 8)
    news, _ = written(
        tmp_path, segments_of_words(iter(table.to_batches()), tokenizer, segment_words=2), tokenizer, 1
    )
    assert [tokens for _, tokens, _ in news[0]] == [[CLS, CAT, RUN, SEP], [CLS, FAR, DOG, SEP], [CLS, CAT, S, SEP]]


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.sampled_from(["cat", "dogs", "run"])), max_size=20
    ),
    st.integers(1, 5),
)
def test_segments_do_not_depend_on_how_words_are_cut_into_batches(plm_tokenizer, tmp_path_factory, rows, size):
    rows = [(news, field, form, 1, rank) for rank, (news, field, form) in enumerate(sorted(rows))]
    table = words(*rows) if rows else words((1, 0, "cat", 1, 0))
    tokenizer = Tokenizer(plm_tokenizer, 6)

    def write(batches):
        parts = segments_of_words(iter(batches), tokenizer, segment_words=3)
        return written(tmp_path_factory.mktemp("tokens"), parts, tokenizer, 4)

    assert write(table.to_batches(max_chunksize=size)) == write(table.to_batches())


def test_without_refinement_the_head_of_each_field_is_kept(plm_tokenizer, tmp_path):
    batch = pa.record_batch({"news": [1, 2], "title": ["cat run cat", ""], "body": ["run far " * 500, "dog"]})
    tokenizer = Tokenizer(plm_tokenizer, 4)
    parts = segments_of_heads(iter([batch]), tokenizer, fields=("title", "body"), parts=(1, 2))
    news, num_empty = written(tmp_path, parts, tokenizer, 3)
    assert news == [
        [
            (0, [CLS, CAT, RUN, SEP], [0, 1, 1, 0]),
            (1, [CLS, RUN, FAR, SEP], [0, 1, 1, 0]),
            (1, [CLS, RUN, FAR, SEP], [0, 1, 1, 0]),
        ],
        [(1, [CLS, DOG, SEP], [0, 1, 0])],
        [(0, [CLS, SEP], [0, 0])],
    ]
    assert num_empty == 1


def test_a_head_of_very_long_words_is_not_cut_short(plm_tokenizer, tmp_path):
    batch = pa.record_batch({"news": [1], "title": ["z" * 90 + " cat run"]})
    tokenizer = Tokenizer(plm_tokenizer, 5)
    parts = segments_of_heads(iter([batch]), tokenizer, fields=("title",), parts=(1,))
    news, _ = written(tmp_path, parts, tokenizer, 1)
    assert news == [[(0, [CLS, UNK, CAT, RUN, SEP], [0, 1, 1, 1, 0])]]


def test_a_segment_too_small_for_a_token_is_refused(plm_tokenizer):
    with pytest.raises(InputError, match="at least 3"):
        Tokenizer(plm_tokenizer, 2)


def test_token_ids_survive_as_they_are(plm_tokenizer):
    assert np.array(Tokenizer(plm_tokenizer, 5).encode(["cat dogs"])).tolist() == [[CAT, DOG, S]]
