"""A cache that learns: deferred gradients add up to those of encoding everything, every time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import dispatch, encode_merged
from speedyfeed.encoding.deferred_gradients import DeferredGradients
from speedyfeed.encoding.in_place import encode_in_place
from tests.encoding.test_central import NUM_NEWS, WIDTH, WordSum, loss_of, some_news

number = st.integers(1, NUM_NEWS)
batches = st.lists(st.lists(st.tuples(number, number), min_size=1, max_size=4), min_size=1, max_size=7)
"""Batches of one user each: clicks and their negatives."""


def learn_epoch(
    users: list[list[tuple[int, int]]], *, gamma: int, is_central: bool = True, has_deferred: bool = True
) -> dict[str, torch.Tensor]:
    """Summed gradients of some batches; an article is read from the cache for gamma steps."""
    torch.manual_seed(0)
    encoder, news = WordSum(), some_news()
    cache = NewsCache(num_news=NUM_NEWS, width=WIDTH)
    deferred = DeferredGradients(num_news=NUM_NEWS, width=WIDTH)
    for step, user in enumerate(users):
        history = torch.tensor([[click for click, _ in user]])
        negatives = torch.tensor([[[negative] for _, negative in user]])
        ids = torch.unique(torch.cat([history.flatten(), negatives.flatten()]))
        is_fresh = (cache.stamps_V[ids] >= 0) & (cache.stamps_V[ids] >= step - gamma) & (gamma > 0)
        plan = {"history_BL": history, "negatives_BLN": negatives, "cached_R": ids[is_fresh]}
        if is_central:
            merged = encode_merged(encoder, news, cache, encode_E=ids[~is_fresh], collects_gradients=True, **plan)
        else:
            merged = encode_in_place(encoder, news, cache, collects_gradients=True, **plan)
        clicks, passed = (dispatch(merged.news_MD, at) for at in (merged.history_BL, merged.negatives_BLN))
        loss = loss_of(clicks, passed, history > 0)
        if has_deferred:
            loss = loss + deferred.deliver(merged.encoded_E, merged.encoded_EH)
        loss.backward()
        if merged.cached_RH.grad is not None:
            deferred.collect(step, ids[is_fresh], merged.cached_R, merged.cached_RH.grad)
        deferred.settle(1.0)
        cache.write(merged.encoded_E, merged.encoded_EH, step)
    if has_deferred and len(deferred.pending()):
        pending = deferred.pending()
        deferred.deliver(pending, encoder.encode_text(news.select(pending))).backward()
        deferred.settle(1.0)
        assert deferred.share_delivered == 1
    return {name: parameter.grad for name, parameter in encoder.named_parameters()}


@settings(max_examples=40, deadline=None)
@given(users=batches, gamma=st.integers(1, 5), is_central=st.booleans())
def test_an_epoch_with_a_cache_teaches_what_one_without_does(
    users: list[list[tuple[int, int]]], gamma: int, is_central: bool
) -> None:
    expected = learn_epoch(users, gamma=0)
    for name, gradient in learn_epoch(users, gamma=gamma, is_central=is_central).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5)


def test_without_deferred_gradients_the_text_learns_less_and_the_projection_the_same() -> None:
    users = [[(1, 2), (3, 4)], [(1, 3), (2, 5)], [(4, 1), (3, 2)]]
    expected, without = learn_epoch(users, gamma=0), learn_epoch(users, gamma=3, has_deferred=False)
    torch.testing.assert_close(without["projection.weight"], expected["projection.weight"])
    assert (without["words.weight"] - expected["words.weight"]).abs().max() > 1e-2


def some_deferred() -> DeferredGradients:
    """Articles 7 and 2 read at step 3, then 2 and 5 at step 4."""
    deferred = DeferredGradients(num_news=NUM_NEWS, width=2)
    for step, ids in [(3, [2, 7]), (4, [2, 5])]:
        rows = torch.tensor(ids, dtype=torch.float32)[:, None] * torch.ones(2)
        deferred.collect(step, torch.tensor(ids), torch.tensor(ids), rows)
        deferred.settle(2.0)
    return deferred


def test_the_oldest_comes_first_and_the_weight_of_the_update_divides() -> None:
    deferred = some_deferred()
    assert deferred.pending().tolist() == [2, 7, 5]
    assert deferred.export()["rows"].tolist() == [[2, 2], [2.5, 2.5], [3.5, 3.5]]
    assert (deferred.num_collected, deferred.num_delivered) == (4, 0)


def test_what_was_delivered_is_forgotten_with_the_update_and_what_the_update_read_is_deferred() -> None:
    deferred = some_deferred()
    encoded = torch.ones(3, 2, requires_grad=True)
    deferred.deliver(torch.tensor([1, 2, 5]), encoded).backward()
    assert encoded.grad is not None
    assert encoded.grad.tolist() == [[0, 0], [2, 2], [2.5, 2.5]]
    assert deferred.export()["ids"].tolist() == [2, 5, 7]
    deferred.collect(6, torch.tensor([2, 3]), torch.tensor([3]), torch.ones(1, 2))  # 2 is read on another rank
    deferred.settle(1.0)
    assert deferred.pending().tolist() == [7, 2, 3]
    assert deferred.export()["rows"].tolist() == [[0, 0], [1, 1], [3.5, 3.5]]
    assert (deferred.num_collected, deferred.num_delivered, deferred.share_delivered) == (6, 3, 0.5)


def test_a_skipped_update_forgets_what_it_collected_and_nothing_else() -> None:
    deferred = some_deferred()
    deferred.deliver(torch.tensor([2]), torch.ones(1, 2))
    deferred.collect(5, torch.tensor([9]), torch.tensor([9]), torch.ones(1, 2))
    deferred.discard()
    assert deferred.pending().tolist() == [2, 7, 5]


def test_memory_is_for_pending_articles_alone() -> None:
    deferred = DeferredGradients(num_news=1000, width=2)
    for step in range(100):
        ids = torch.arange(10 * step, 10 * step + 10) + 1
        deferred.collect(step, ids, ids, torch.ones(10, 2))
        deferred.settle(1.0)
        deferred.deliver(ids, torch.ones(10, 2))
        deferred.settle(1.0)
    assert deferred.share_delivered == 1
    assert len(deferred._rows._rows_SH) <= 2 * 11


def test_a_gradient_that_overflowed_is_dropped() -> None:
    deferred = some_deferred()
    deferred.collect(5, torch.tensor([2, 9]), torch.tensor([2, 9]), torch.tensor([[torch.inf, 0], [1, 1]]))
    deferred.settle(1.0)
    assert deferred.export()["rows"].isfinite().all()


def test_deferred_gradients_are_saved_and_loaded() -> None:
    saved = some_deferred().export()
    other = DeferredGradients(num_news=NUM_NEWS, width=2)
    other.collect(0, torch.tensor([1]), torch.tensor([1]), torch.ones(1, 2))
    other.settle(1.0)
    other.load(saved)
    assert other.pending().tolist() == [2, 7, 5]
    for name, value in other.export().items():
        assert torch.equal(value, saved[name]), name
    other.collect(0, torch.tensor([1]), torch.tensor([1]), torch.ones(1, 2))
    with pytest.raises(AssertionError, match="waiting"):
        other.export()
