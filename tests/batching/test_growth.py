"""Defaults that grow with the log, and those that are given."""

import numpy as np
import pytest

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.batching.growth import Growth, growth_of


def clicks_of(num_live: int) -> np.ndarray:
    """Clicks of many rare articles and of so many live ones."""
    return np.concatenate([np.full(100_000, 49), np.full(num_live, 50)])


@pytest.mark.parametrize(
    ("num_live", "budget", "cap", "gamma"),
    [
        (0, 8192, 4096, 20),
        (1000, 8192, 4096, 20),
        (4000, 16_384, 8192, 40),
        (16_000, 32_768, 16_384, 80),
        (64_000, 32_768, 16_384, 320),
    ],
)
def test_batches_times_gamma_follow_the_live_articles(num_live, budget, cap, gamma):
    growth = growth_of(clicks_of(num_live))
    assert growth.batch * growth.gamma == pytest.approx(max(1, num_live / 1000))
    batch = BatchConfig().for_log(growth)
    assert (batch.token_budget, batch.max_clicks_per_batch) == (budget, cap)
    assert CacheConfig().for_log(growth).gamma == gamma


def test_what_is_given_stays():
    large = Growth(batch=4, gamma=16)
    batch = BatchConfig(token_budget=512, max_clicks_per_batch=300)
    assert batch.for_log(large) == batch
    for gamma in (0, 7):
        assert CacheConfig(gamma=gamma).for_log(large).gamma == gamma


def test_a_small_log_has_the_defaults_whether_asked_or_not():
    assert BatchConfig().tokens_per_batch == BatchConfig().for_log(Growth()).token_budget == 8192
    assert BatchConfig().clicks_per_batch == BatchConfig().for_log(Growth()).max_clicks_per_batch == 4096
    assert CacheConfig().max_age == CacheConfig().for_log(Growth()).gamma == 20
