import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BertConfig

from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import MergedNews, dispatch, encode_merged, gather
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import build_encoder
from speedyfeed.scoring import Users
from speedyfeed.training.losses import next_click_loss

DIM = 6
WIDTH = 5
NUM_NEWS = 9


class WordSum(nn.Module):
    """A news encoder of the smallest kind: tokens embedded, summed by news, projected."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, WIDTH, mode="sum", include_last_offset=True)
        self.projection = nn.Linear(WIDTH, DIM)
        self.num_encoded = 0

    def forward(self, news: PackedNews) -> Tensor:
        return self.project(self.encode_text(news))

    def encode_text(self, news: PackedNews) -> Tensor:
        self.num_encoded += len(news)
        starts = news.segment_starts[news.news_starts]
        embeddings: Tensor = self.words(news.tokens_T.long(), starts).tanh()
        return embeddings

    def project(self, news_MH: Tensor, categories_M: Tensor | None = None) -> Tensor:
        assert categories_M is None
        embeddings: Tensor = self.projection(news_MH)
        return embeddings


def some_news() -> PackedNews:
    """News 1 to 9 of one or two segments; 0 is padding and has none."""
    generator = torch.Generator().manual_seed(1)
    segments_M = torch.tensor([0, 1, 2, 1, 2, 1, 1, 2, 1, 1])
    lengths_K = torch.randint(2, 5, (int(segments_M.sum()),), generator=generator)
    num_tokens = int(lengths_K.sum())
    return PackedNews(
        tokens_T=torch.randint(20, (num_tokens,), generator=generator, dtype=torch.int32),
        frequencies_T=torch.ones(num_tokens, dtype=torch.uint8),
        segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
        news_starts=nn.functional.pad(segments_M.cumsum(0), (1, 0)),
    )


def some_cache() -> NewsCache:
    """Every article written at step 0 with values no encoder gives."""
    cache = NewsCache(num_news=NUM_NEWS, width=WIDTH)
    rows = torch.randn(NUM_NEWS, WIDTH, generator=torch.Generator().manual_seed(2))
    cache.write(torch.arange(1, NUM_NEWS + 1), rows, step=0)
    return cache


def encode(
    encoder: WordSum | NewsEncoder, history: list[list[int]], negatives: list[list[list[int]]], read: set[int]
) -> MergedNews:
    distinct = {news for row in history for news in row} | {n for row in negatives for ns in row for n in ns}
    distinct -= {0}
    return encode_merged(
        encoder,
        some_news(),
        some_cache(),
        history_BL=np.array(history, np.int32),
        negatives_BLN=np.array(negatives, np.int32),
        encode_E=np.array(sorted(distinct - read), np.int32),
        cached_R=np.array(sorted(distinct & read), np.int32),
    )


def test_gather_lists_distinct_news_and_their_positions() -> None:
    merged, (history, more) = gather(torch.tensor([[7, 9], [9, 0]]), torch.tensor([4]))
    assert merged.tolist() == [0, 4, 7, 9]
    assert history.tolist() == [[2, 3], [3, 0]]
    assert more.tolist() == [1]


def test_padding_is_position_0_even_when_nothing_is_padded() -> None:
    merged, (history,) = gather(torch.tensor([[5, 3]]))
    assert merged.tolist() == [0, 3, 5]
    assert history.tolist() == [[2, 1]]


@given(
    history=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=4),
    negatives=st.lists(st.integers(0, 9), max_size=5),
)
def test_positions_lead_back_to_the_news(history: list[list[int]], negatives: list[int]) -> None:
    groups = torch.tensor(history), torch.tensor(negatives, dtype=torch.long)
    merged, positions = gather(*groups)
    assert merged.tolist() == sorted({0, *groups[0].flatten().tolist(), *negatives})
    for group, position in zip(groups, positions, strict=True):
        assert torch.equal(merged[position], group)


def encode_in_place(encoder: WordSum, ids: Tensor, read: set[int]) -> Tensor:
    """Every occurrence encoded on its own; padding is zero, what is to be read comes from the cache."""
    news, cache = some_news(), some_cache()
    rows = []
    for number in ids.flatten().tolist():
        if number == 0:
            rows.append(torch.zeros(DIM))
        elif number in read:
            rows.append(encoder.project(cache.rows_VH[number]))
        else:
            rows.append(encoder(news.select(torch.tensor([number])))[0])
    return torch.stack(rows).view(*ids.shape, DIM)


def loss_of(clicks: Tensor, negatives: Tensor, clicked: Tensor) -> Tensor:
    """A user is the mean of earlier clicks, one vector short: enough for gradients to take every way."""
    position = torch.arange(1, clicks.size(1) + 1)[:, None]
    users = nn.functional.pad(clicks.cumsum(1)[:, :-1], (0, 0, 1, 0)) / position
    shown = torch.cat([clicks[:, :, None], negatives], 2)
    return next_click_loss(Users(vectors_BKD=users).score(shown), clicked.float())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_encoding_once_is_encoding_in_place(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    number = st.integers(1, NUM_NEWS)
    history = [[data.draw(number) for _ in range(n)] + [0] * (4 - n) for n in lengths]
    negatives = [[[data.draw(number)] * 2 if click else [0, 0] for click in row] for row in history]
    read = data.draw(st.sets(number))
    torch.manual_seed(0)
    encoder = WordSum()
    parameters = list(encoder.parameters())

    ids = torch.tensor(history)
    clicks, passed = (encode_in_place(encoder, torch.tensor(group), read) for group in (history, negatives))
    twin = loss_of(clicks, passed, ids > 0)
    wanted = torch.autograd.grad(twin, parameters, allow_unused=True, materialize_grads=True)

    merged = encode(encoder, history, negatives, read)
    clicks, passed = (
        dispatch(merged.news_MD, positions) for positions in (merged.history_BL, merged.negatives_BLN)
    )
    loss = loss_of(clicks, passed, merged.history_BL > 0)
    gradients = torch.autograd.grad(loss, parameters)
    torch.testing.assert_close(loss, twin, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def test_each_article_is_encoded_once_and_cached_ones_not_at_all() -> None:
    encoder = WordSum()
    merged = encode(encoder, [[7, 9, 7], [9, 2, 0]], [[[2], [3], [3]], [[7], [9], [0]]], read={9})
    assert encoder.num_encoded == 3
    assert merged.encoded_E.tolist() == [2, 3, 7]
    assert merged.ids_M.tolist() == [0, 2, 3, 7, 9]
    assert not merged.news_MD[0].any()
    torch.testing.assert_close(merged.news_MD[4], encoder.project(some_cache().rows_VH[9]))


def test_cached_rows_carry_no_gradient_to_the_text_but_teach_the_last_layer() -> None:
    encoder = WordSum()
    merged = encode(encoder, [[1, 2]], [[[3], [4]]], read={2, 3})
    assert merged.ids_M.tolist() == [0, 1, 2, 3, 4]
    for row, is_encoded in enumerate([False, True, False, False, True]):
        text, layer = torch.autograd.grad(
            merged.news_MD[row].square().sum(),
            [encoder.words.weight, encoder.projection.weight],
            retain_graph=True,
        )
        assert bool(text.any()) is is_encoded
        assert bool(layer.any()) is (row > 0)


def test_what_was_encoded_can_be_written_and_read_back() -> None:
    encoder, cache = WordSum(), some_cache()
    merged = encode(encoder, [[1, 2]], [[[3], [4]]], read={2, 3})
    cache.write(merged.encoded_E, merged.encoded_EH, step=5)
    assert not cache.rows_VH.requires_grad
    assert cache.stamps_V.tolist() == [-1, 5, 0, 0, 5, 0, 0, 0, 0, 0]
    torch.testing.assert_close(encoder.project(cache.read(torch.tensor([1, 4]))), merged.news_MD[[1, 4]])


def test_a_batch_whose_news_are_all_cached_still_trains_the_rest() -> None:
    encoder = WordSum()
    merged = encode(encoder, [[1, 2]], [[[3], [4]]], read={1, 2, 3, 4})
    assert len(merged.encoded_E) == 0
    torch.testing.assert_close(merged.news_MD[1:], encoder.project(some_cache().rows_VH[1:5]))
    start = nn.Parameter(torch.zeros(DIM))
    shown = torch.cat([merged.history_BL[..., None], merged.negatives_BLN], -1)
    users = Users(vectors_BKD=start.expand(1, 2, DIM))
    loss = next_click_loss(users.score(merged.news_MD[shown]), (merged.history_BL > 0).float())
    (gradient,) = torch.autograd.grad(loss, start)
    assert gradient.any()


@pytest.mark.parametrize("read", [{2, 4}, {1, 2, 3, 4}], ids=["some cached", "all cached"])
def test_a_language_model_is_a_news_encoder(read: set[int]) -> None:
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    encoder = NewsEncoder(NewsEncoderConfig(dim=DIM), build_encoder(BertConfig(vocab_size=20, **shape))).eval()
    merged = encode(encoder, [[1, 2]], [[[3], [4]]], read)
    alone = encoder(some_news().select(torch.arange(5)))
    for row in range(1, 5):
        expected = encoder.project(some_cache().rows_VH[[row]], None)[0] if row in read else alone[row]
        torch.testing.assert_close(merged.news_MD[row], expected, rtol=1e-5, atol=1e-5)


def test_without_a_cache_everything_is_encoded() -> None:
    encoder = WordSum()
    history, negatives = torch.tensor([[1, 2]]), torch.tensor([[[3], [3]]])
    merged_M, _ = gather(history, negatives)
    merged = encode_merged(
        encoder,
        some_news(),
        None,
        history_BL=history,
        negatives_BLN=negatives,
        encode_E=merged_M[1:],
        cached_R=merged_M[:0],
    )
    torch.testing.assert_close(merged.news_MD[1:], encoder(some_news().select(torch.tensor([1, 2, 3]))))


@pytest.mark.parametrize("read", [set(), {2}])
def test_embeddings_are_float32_whatever_the_encoder_gives(read: set[int]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        merged = encode(WordSum(), [[1, 2]], [[[3], [4]]], read=read)
    assert merged.news_MD.dtype == torch.float32


@pytest.mark.parametrize(
    ("encode_E", "cached_R"),
    [([1], [2]), ([1, 2, 3], [3]), ([1, 2, 2], [3]), ([0, 1, 2], [3]), ([1, 2], [])],
    ids=["left out", "in both", "twice", "padding", "nothing read"],
)
def test_a_plan_that_does_not_fit_the_batch_is_refused(encode_E: list[int], cached_R: list[int]) -> None:
    with pytest.raises(AssertionError, match="the plan"):
        encode_merged(
            WordSum(),
            some_news(),
            some_cache(),
            history_BL=torch.tensor([[1, 2]]),
            negatives_BLN=torch.tensor([[[3], [3]]]),
            encode_E=torch.tensor(encode_E),
            cached_R=torch.tensor(cached_R, dtype=torch.long),
        )


def test_a_plan_may_hold_news_of_other_batches() -> None:
    merged = encode_merged(
        WordSum(),
        some_news(),
        some_cache(),
        history_BL=torch.tensor([[5]]),
        negatives_BLN=torch.tensor([[[8]]]),
        encode_E=torch.tensor([2, 5]),
        cached_R=torch.tensor([8, 9]),
    )
    assert merged.ids_M.tolist() == [0, 2, 5, 8, 9]
    assert merged.history_BL.tolist() == [[2]]
    assert merged.negatives_BLN.tolist() == [[[3]]]
