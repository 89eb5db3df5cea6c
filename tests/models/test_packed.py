import dataclasses
import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.models.packed import PackedNews, count_up, pack_texts
from speedyfeed.tokenizers import load_tokenizer


def pack(news: list[list[list[int]]]) -> PackedNews:
    """News given as lists of segments of token ids."""
    segments = [segment for parts in news for segment in parts]
    tokens = torch.tensor([token for segment in segments for token in segment], dtype=torch.int32)
    starts = [0, *(len(s) for s in segments)]
    return PackedNews(
        tokens_T=tokens,
        frequencies_T=(tokens % 7).to(torch.uint8),
        segment_starts=torch.tensor(starts).cumsum(0),
        news_starts=torch.tensor([0, *(len(parts) for parts in news)]).cumsum(0),
        categories_M=torch.arange(len(news)) * 10,
    )


def unpack(news: PackedNews) -> list[list[list[int]]]:
    """The inverse, one by one."""
    bounds = news.segment_starts.tolist()
    segments = [news.tokens_T[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    bounds = news.news_starts.tolist()
    return [segments[a:b] for a, b in itertools.pairwise(bounds)]


tokens = st.integers(0, 99)
some_news = st.lists(st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=3), min_size=1, max_size=6)


@given(news=some_news, data=st.data())
def test_select_takes_the_rows_and_nothing_else(news: list[list[list[int]]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(news) - 1), max_size=8))
    packed = pack(news)
    chosen = packed.select(torch.tensor(rows, dtype=torch.long))
    assert unpack(chosen) == [news[row] for row in rows]
    assert chosen.frequencies_T.tolist() == [token % 7 for token in chosen.tokens_T.tolist()]
    assert chosen.categories_M is not None
    assert chosen.categories_M.tolist() == [row * 10 for row in rows]
    assert chosen.lengths_M.tolist() == [sum(map(len, news[row])) for row in rows]


def test_select_keeps_the_names_of_the_store() -> None:
    nameless = pack([[], [[1, 2]], [[3]], [[4], [5]]])
    assert nameless.select(torch.tensor([3, 1])).ids_M is None
    batch = dataclasses.replace(nameless, ids_M=torch.arange(4)).select(torch.tensor([3, 1]))
    assert batch.ids_M is not None
    assert batch.ids_M.tolist() == [3, 1]
    again = batch.select(torch.tensor([1])).ids_M
    assert again is not None
    assert again.tolist() == [1]


def test_count_up() -> None:
    assert count_up(torch.tensor([3, 0, 2])).tolist() == [0, 1, 2, 0, 1]


def test_texts_become_segments_with_special_tokens() -> None:
    tokenizer = load_tokenizer("minilm")
    news = pack_texts(["a storm", ("title", "", "the body of it"), ("", " ")], tokenizer, segment_length=5)
    assert news.segments_M.tolist() == [1, 2, 0]
    segments = [segment for parts in unpack(news) for segment in parts]
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert all(segment[0] == cls and segment[-1] == sep and len(segment) <= 5 for segment in segments)
    is_word = (news.tokens_T != cls) & (news.tokens_T != sep)
    assert torch.equal(news.frequencies_T.bool(), is_word)


@given(news=some_news)
def test_joined_news_are_one_segment_each(news: list[list[list[int]]]) -> None:
    packed = pack(news)
    joined = packed.joined()
    assert unpack(joined) == [[list(itertools.chain(*parts))] if parts else [] for parts in news]
    assert joined.lengths_M.tolist() == packed.lengths_M.tolist()


@given(news=some_news, extra=st.integers(0, 3))
def test_padded_segments_are_alike_and_hold_what_they_held(news: list[list[list[int]]], extra: int) -> None:
    longest = max((len(part) for parts in news for part in parts), default=0)
    packed = dataclasses.replace(pack(news), pad_to=longest + extra)
    padded = packed.padded()
    length, fullest = max(1, longest + extra), max(1, max(map(len, news)))
    assert padded.is_padding_T is not None
    hidden = padded.is_padding_T.view(-1, length)
    for parts, found, some in zip(news, unpack(padded), hidden.split(padded.segments_M.tolist()), strict=True):
        assert len(found) == (len(parts) or fullest)
        for part, segment, is_padding in zip(parts or [[]] * fullest, found, some.tolist(), strict=True):
            assert segment == part + [0] * (length - len(part))
            assert is_padding == [False] * max(1, len(part)) + [True] * (length - max(1, len(part)))
    assert packed.padded().padded() is not packed
    assert pack(news).padded().is_padding_T is None
