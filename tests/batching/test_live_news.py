"""Negatives of logs without impressions: live at the time of the click, and never the user's own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching import live_news, sample
from speedyfeed.batching.live_news import SPARE, LiveNews
from speedyfeed.batching.sample import Sampler
from speedyfeed.data.store import PAD_NEWS
from tests.batching.small_logs import NO_POOL, few, timelines

NUM_NEWS = 400


def log_of(users, times=None):
    log = timelines([[(news, NO_POOL) for news in clicks] for clicks in users], [])
    return log if times is None else replace(log, click_times=np.array(times, np.int64))


def draw(log, negatives, epoch=0):
    sampler = Sampler(log, num_news=NUM_NEWS, max_clicks=1000, negatives=negatives, seed=0)
    users = np.arange(len(log.clicks))
    drawn = sampler.sample(users, epoch)
    assert not drawn.has_own_negatives.values.any()
    return [rows[:, 1:] for rows in drawn.candidates]


clicks = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8)


@few
@given(users=st.lists(clicks, min_size=1, max_size=6), negatives=st.integers(1, 3), has_times=st.booleans())
def test_negatives_are_distinct_train_articles_that_the_user_never_clicks(users, negatives, has_times):
    users = [[(10, 0)], [(11, 0)], *(sorted(clicks, key=lambda click: click[1]) for clicks in users)]
    times = [time for clicks in users for _, time in clicks] if has_times else None
    log = log_of([[news for news, _ in clicks] for clicks in users], times)
    everything = {news for clicks in users for news, _ in clicks}
    for own, rows in zip(log.clicks, draw(log, negatives), strict=True):
        allowed = everything - set(own.tolist())
        for row in rows.tolist():
            found = [news for news in row if news != PAD_NEWS]
            assert set(found) <= allowed
            assert len(set(found)) == len(found)
            if len(everything) <= 2 * negatives + SPARE:  # then all that are live are drawn
                assert len(found) == min(negatives, len(allowed))


def test_negatives_are_articles_that_others_clicked_around_then_and_not_yet_unborn_ones(monkeypatch):
    monkeypatch.setattr(live_news, "LIVE_CLICKS", 50)
    # Article n is clicked by user 0 at minute n, and by user 1 at minute n and a half.
    article = np.arange(1, NUM_NEWS + 1)
    others = [[int(news)] for news in article]
    own = [(int(news), 2 * int(news) + 1) for news in article[200::40]]
    times = [*(2 * int(news) for news in article), *(time for _, time in own)]
    log = log_of([*others, [news for news, _ in own]], times)
    for (news, _), row in zip(own, draw(log, 4)[-1].tolist(), strict=True):
        assert len(set(row)) == 4
        assert all(news - 100 <= one < news for one in row)


def test_the_first_clicks_draw_from_the_block_after_them(monkeypatch):
    monkeypatch.setattr(live_news, "LIVE_CLICKS", 2)
    drawn = draw(log_of([[1], [2], [3], [4], [5], [6]], [10, 20, 30, 40, 50, 60]), 5)
    assert [sorted(rows[0].tolist()) for rows in drawn[:3]] == [[0, 0, 2, 3, 4], [0, 0, 1, 3, 4], [0, 0, 1, 2, 4]]
    assert sorted(drawn[5][0].tolist()) == [0, 0, 3, 4, 5]


def test_negatives_do_not_depend_on_the_other_clicks_of_a_block():
    rng = np.random.default_rng(0)
    log = log_of(rng.integers(1, 300, (40, 5)).tolist(), rng.integers(0, 1000, 200).tolist())
    live = LiveNews(log, negatives=3, seed=1)
    positions = rng.permutation(200)
    together = live.draw(positions, positions // 5, 2)
    alone = [live.draw(positions[[number]], positions[[number]] // 5, 2)[0] for number in range(200)]
    assert np.array_equal(together, alone)
    assert not np.array_equal(together, live.draw(positions, positions // 5, 3))


def test_articles_that_are_live_are_drawn_alike():
    drawn = draw(log_of([[1] * 1000, [2], [3], [4], [5]]), 1)[0]
    counts = np.bincount(drawn[:, 0], minlength=6)
    assert counts[:2].tolist() == [0, 0]
    assert counts[2:] / 1000 == pytest.approx([0.25] * 4, abs=0.05)


def test_articles_are_collected_once_before_threads_sample(monkeypatch):
    log = log_of([[1, 2], [3], [4]], [1, 2, 3, 4])
    sampler = Sampler(log, num_news=NUM_NEWS, max_clicks=9, negatives=2, seed=0)
    monkeypatch.setattr(sample, "LiveNews", None)
    assert len(sampler.sample(np.arange(3), 0)) == 3


def test_a_click_takes_eight_bytes_and_keys_have_room_for_more(monkeypatch):
    monkeypatch.setattr(live_news, "LIVE_CLICKS", 4)
    news = np.arange(1, 100_001)  # 25,000 blocks of as many times do not fit into 32 bits
    live = LiveNews(log_of(news[:, None].tolist(), news), negatives=1, seed=0)
    assert live._time_C.nbytes + live._block_C.nbytes == 8 * len(news)
    third = np.arange(6, len(news), 4)  # of its block: enough are live, and one is not yet
    assert (live.draw(third, third, 0)[:, 0] < news[third]).all()
