import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from speedyfeed.batching import loader as module
from speedyfeed.batching.batcher import Batcher
from speedyfeed.batching.batches import BatchConfig, news_lengths
from speedyfeed.batching.cache_plan import CacheConfig, new_stamps
from speedyfeed.batching.loader import Loader, LoaderState
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from tests.batching.small_logs import NO_POOL, NUM_NEWS, timelines
from tests.batching.test_batches import contents

TOKENS = np.array([0, *range(3, 3 + NUM_NEWS)])
RNG = np.random.default_rng(0)
LOG = timelines(
    [
        [(int(news), int(RNG.integers(-1, 3))) for news in RNG.integers(1, 13, size)]
        for size in RNG.integers(1, 9, 60)
    ],
    [[1, 2, 3], [4, 5], [6]],
)
CONFIG = BatchConfig(token_budget=40, max_clicks=6, negatives=1, max_clicks_per_batch=50, prefetch=3)
CACHE = CacheConfig(gamma=2, beta=0.2, draw="news", gradients=True)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    gc.collect()
    # Loaders first: each waits for its planners, one of which may be listed while it is still being started.
    left = sorted(set(threading.enumerate()) - before, key=lambda thread: thread.name != "speedyfeed-loader")
    for thread in left:
        thread.join(timeout=10)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mode", ["packed", "padded"])
def test_a_new_loader_goes_on_after_the_last_update(mode, accumulate):
    config = replace(CONFIG, mode=mode, num_buckets=3)
    with Loader(LOG, TOKENS, config, CACHE, seed=4, epochs=3, accumulate=accumulate) as loader:
        batches = list(loader)
    assert any(len(batch.deliver_E) for batch in batches)
    uninterrupted = [contents(batch) for batch in batches]
    assert len(uninterrupted) > 20
    state = None
    resumed = []
    for stop in (1, 2, 7, len(uninterrupted)):  # each time some batches were prefetched and are lost
        with Loader(LOG, TOKENS, config, CACHE, seed=4, epochs=3, accumulate=accumulate, state=state) as loader:
            resumed += [contents(batch) for _, batch in zip(range(accumulate * stop), loader, strict=False)]
            state = LoaderState.from_arrays(loader.state().arrays())
    assert resumed == uninterrupted
    with Loader(LOG, TOKENS, config, CACHE, seed=4, epochs=3, state=state) as loader:
        assert list(loader) == []


def test_the_state_of_a_loader_that_was_not_asked_for_a_batch_is_the_beginning():
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0, epochs=1) as loader:
        state = loader.state()
    assert state.stamps_V.tolist() == new_stamps(NUM_NEWS).tolist()
    assert state.position.step == state.position.epoch == state.position.num_instances == 0


def test_a_state_does_not_change_while_loaders_go_on():
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0) as loader:
        next(loader)
        state = loader.state()
        before = {name: array.copy() for name, array in state.arrays().items()}
        rest = [contents(next(loader)) for _ in range(10)]
        with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0, state=state) as resumed:
            assert [contents(next(resumed)) for _ in range(10)] == rest
        assert all(np.array_equal(before[name], array) for name, array in state.arrays().items())
        assert not np.array_equal(loader.state().stamps_V, state.stamps_V)


def test_an_epoch_ends_with_all_its_users_and_the_next_begins():
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0, epochs=2) as loader:
        batches = list(loader)
        last = [batch for batch in batches if batch.epoch == 0][-1]
        assert last.after.num_instances == loader.num_instances == len(LOG.clicks)
        assert batches[-1].epoch == 1
        assert [batch.step for batch in batches] == list(range(len(batches)))
        with pytest.raises(StopIteration):
            next(loader)


def test_an_error_in_the_thread_reaches_the_consumer_after_the_batches_before_it(monkeypatch):
    class Breaking(Batcher):
        def __iter__(self):
            batches = super().__iter__()
            yield next(batches)
            yield next(batches)
            raise OSError("disk gone")

    monkeypatch.setattr(module, "Batcher", Breaking)
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0) as loader:
        assert [next(loader).step, next(loader).step] == [0, 1]
        for _ in range(2):  # and stays: a caller that goes on does not hang
            with pytest.raises(OSError, match="disk gone"):
                next(loader)


def test_no_more_than_prefetch_batches_are_made_ahead(monkeypatch):
    made = threading.Semaphore(0)
    num_made = 0

    class Counting(Batcher):
        def __iter__(self):
            nonlocal num_made
            for batch in super().__iter__():
                num_made += 1
                made.release()
                yield batch

    monkeypatch.setattr(module, "Batcher", Counting)
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0) as loader:
        for num_consumed in range(5):
            for _ in range(CONFIG.prefetch if num_consumed == 0 else 1):
                assert made.acquire(timeout=10)  # it does get ahead
            assert not made.acquire(timeout=0.02)  # and then waits
            assert num_made == num_consumed + CONFIG.prefetch
            next(loader)


def test_a_consumer_that_stops_early_leaves_no_thread():
    with pytest.raises(KeyboardInterrupt), Loader(LOG, TOKENS, CONFIG, CACHE, seed=0) as loader:
        next(loader)
        raise KeyboardInterrupt
    with pytest.raises(StopIteration):
        next(loader)
    loader.close()  # again: nothing happens


def test_a_loader_dropped_without_closing_lets_its_thread_go():
    for _batch in Loader(LOG, TOKENS, CONFIG, CACHE, seed=0):
        break  # the fixture checks for the thread


def test_a_state_of_another_log_is_refused():
    with Loader(LOG, TOKENS, CONFIG, CACHE, seed=0) as loader:
        state = loader.state()
    with pytest.raises(InputError, match="12 articles, this one has 11 articles"):
        Loader(timelines([[(1, NO_POOL), (2, NO_POOL)]], []), TOKENS[:-1], CONFIG, CACHE, seed=0, state=state)


def test_a_prepared_store_is_read_as_it_is(mind_logs, tmp_path):
    store = prepare(mind_logs, tmp_path / "store", PrepareConfig(validation=0)).store
    tokens = news_lengths(store.news)
    assert len(tokens) == store.num_news + 1
    with Loader(store.train, tokens, BatchConfig(), CacheConfig(), seed=0, epochs=1) as loader:
        (batch,) = loader
    # U1 clicked N1 (history), N4, N2; U3 clicked N5 (history), N2, N4; only clicks in impressions have pools.
    assert batch.num_clicks == 6
    assert batch.has_own_negatives_BL.sum() == 4
    assert batch.num_tokens == tokens[batch.encode_E].sum() > 0
