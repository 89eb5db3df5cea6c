"""What training asks of the click timelines of a log."""

from dataclasses import replace

import numpy as np
import pytest

from tests.batching.small_logs import NO_POOL, timelines

SHOP = [1, 2, 1, 3, 1, 2, 1, 4, 1, 2]
"""Article 1 is clicked most, early and late."""
NEWS = [1, 1, 1, 1, 2, 2, 3, 3, 4, 5]
"""What was clicked most is not clicked later."""


@pytest.mark.parametrize(
    ("clicks", "lasts"), [(SHOP, True), (NEWS, False), ([1, 2, 3, 4, 5, 6, 7, 8, 9, 9], False)]
)
def test_popularity_lasts_where_articles_with_many_clicks_are_clicked_later(clicks, lasts):
    order = np.random.default_rng(0).permutation(len(clicks))  # users come in no order of time
    log = timelines([[(clicks[number], NO_POOL)] for number in order], [])
    assert log.has_lasting_popularity
    assert replace(log, click_times=order.astype(np.int64)).has_lasting_popularity == lasts
    assert replace(log, click_times=np.zeros(len(clicks), np.int64)).has_lasting_popularity


def test_popularity_is_compared_as_an_auc():
    """The last two of ten clicks are late; an article beats those with fewer early clicks, and half its equals."""
    log = timelines([[(news, NO_POOL)] for news in (1, 1, 1, 1, 1, 1, 2, 2, 2, 3)], [])
    times = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert not replace(log, click_times=times).has_lasting_popularity  # 2: 1.5 / 3, 3: 0.5 / 3
    again = timelines([[(news, NO_POOL)] for news in (1, 1, 1, 1, 1, 1, 2, 3, 1, 2)], [])
    assert replace(again, click_times=times).has_lasting_popularity  # 1: 2.5 / 3, 2: 1 / 3
