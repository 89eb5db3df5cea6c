"""Encoding in place against centralized encoding: the same rows everywhere, the same gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.encoding.central import MergedNews, dispatch, encode_merged
from speedyfeed.encoding.in_place import encode_in_place
from speedyfeed.models.packed import PackedNews
from tests.encoding.test_central import NUM_NEWS, WordSum, loss_of, some_cache, some_news

numbers = st.integers(0, NUM_NEWS)


def loss_and_gradients(encoder: WordSum, merged: MergedNews) -> tuple[torch.Tensor, list[torch.Tensor]]:
    clicks, negatives = (dispatch(merged.news_MD, at) for at in (merged.history_BL, merged.negatives_BLN))
    loss = loss_of(clicks, negatives, merged.history_BL > 0)
    parameters = list(encoder.parameters())
    return loss, list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))


@given(
    history=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4),
    negative=st.lists(numbers, min_size=12, max_size=12),
    read=st.sets(st.integers(1, NUM_NEWS)),
)
def test_in_place_is_centralized(history: list[list[int]], negative: list[int], read: set[int]) -> None:
    encoder = WordSum()
    history_BL = np.array(history, np.int32)
    negatives_BLN = np.array(negative[: history_BL.size], np.int32).reshape(*history_BL.shape, 1)
    distinct = set(np.concatenate([history_BL.ravel(), negatives_BLN.ravel()]).tolist()) - {0}
    batch = {
        "history_BL": history_BL,
        "negatives_BLN": negatives_BLN,
        "cached_R": np.array(sorted(distinct & read)),
    }
    central = encode_merged(
        encoder, some_news(), some_cache(), encode_E=np.array(sorted(distinct - read), np.int32), **batch
    )
    num_central = encoder.num_encoded
    in_place = encode_in_place(encoder, some_news(), some_cache(), **batch)
    everywhere = history_BL.size + negatives_BLN.size
    num_cache_hits = np.isin(history_BL, list(read)).sum() + np.isin(negatives_BLN, list(read)).sum()
    assert encoder.num_encoded - num_central == everywhere - num_cache_hits  # padding too
    assert num_central == len(distinct - read)

    for at in ("history_BL", "negatives_BLN"):
        ours, twin = (dispatch(m.news_MD, getattr(m, at)) for m in (in_place, central))
        torch.testing.assert_close(ours, twin)
        assert torch.equal(getattr(in_place, at) > 0, getattr(central, at) > 0)
        assert torch.equal(in_place.ids_M[getattr(in_place, at)], central.ids_M[getattr(central, at)])
    assert torch.equal(in_place.encoded_E, central.encoded_E)
    torch.testing.assert_close(in_place.encoded_EH, central.encoded_EH)
    (loss, gradients), (wanted_loss, wanted) = (loss_and_gradients(encoder, m) for m in (in_place, central))
    torch.testing.assert_close(loss, wanted_loss)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_centered_in_place_as_they_are_centralized() -> None:
    encoder = WordSum()
    batch = {
        "history_BL": np.array([[1, 2, 2], [3, 0, 0]]),
        "negatives_BLN": np.array([[[2], [4], [5]], [[6], [0], [0]]]),
        "cached_R": np.array([4]),
        "deliver_E": np.array([7]),
        "collects_gradients": True,
    }

    def gradients(merged: MergedNews, *, center: bool = True) -> list[torch.Tensor]:
        if center:
            merged.encoded_EH.register_hook(lambda gradients_EH: gradients_EH - gradients_EH.mean(0))
        return loss_and_gradients(encoder, merged)[1]

    fresh = np.array([1, 2, 3, 5, 6])
    ours = gradients(encode_in_place(encoder, some_news(), some_cache(), **batch))
    twin = gradients(encode_merged(encoder, some_news(), some_cache(), encode_E=fresh, **batch))
    plain = gradients(encode_in_place(encoder, some_news(), some_cache(), **batch), center=False)
    for gradient, expected in zip(ours, twin, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    assert not all(torch.allclose(gradient, other) for gradient, other in zip(ours, plain, strict=True))


class Users(WordSum):
    """Remembers who read what."""

    def encode_text(self, news: PackedNews) -> torch.Tensor:
        assert news.user_ids_M is not None
        self.users = news.user_ids_M.tolist()
        return super().encode_text(news)


def test_every_position_is_encoded_for_the_user_of_its_row() -> None:
    encoder = Users()
    encode_in_place(
        encoder,
        some_news(),
        some_cache(),
        history_BL=np.array([[1, 2], [3, 0]]),
        negatives_BLN=np.array([[[4, 5, 6]], [[7, 8, 9]]]),
        cached_R=np.array([2, 7]),
        user_ids_B=torch.tensor([10, 20]),
    )
    assert encoder.users == [10, 20, 20, 10, 10, 10, 20, 20]


def test_nothing_is_read_without_a_cache() -> None:
    with pytest.raises(AssertionError, match="there is none"):
        encode_in_place(
            WordSum(),
            some_news(),
            None,
            history_BL=np.array([[1]]),
            negatives_BLN=np.array([[[2]]]),
            cached_R=np.array([2]),
        )
