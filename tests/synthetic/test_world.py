"""The model behind the synthetic newsroom: draws follow it, and its best score is the best there is."""

import numpy as np
import pytest

from speedyfeed.ragged import Ragged
from speedyfeed.synthetic.audience import DAY_SECONDS, draw_num_clicks, draw_visits
from speedyfeed.synthetic.ladder import Ladder, estimate_tastes
from speedyfeed.synthetic.lexicon import load_lexicon
from speedyfeed.synthetic.pages import Pages, auc_by_impression, build_pages, score_pages
from speedyfeed.synthetic.popularity import FADE_CLICKED, FADE_SHOWN, LIFE, long_tail
from speedyfeed.synthetic.storylines import build_storylines
from speedyfeed.synthetic.tastes import SHARES, TASTE_VARIANCE, draw_interests, draw_tastes
from speedyfeed.synthetic.world import EXPOSURE, MISSING, build_world

DAYS = 7


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    storylines = build_storylines(load_lexicon(), days=DAYS, rng=rng)
    interests = draw_interests(storylines, rng)
    return build_world(
        num_news=4000,
        days=DAYS,
        storylines=storylines,
        interests=interests,
        tastes=draw_tastes(500, interests, rng),
        num_clicks=draw_num_clicks(500, DAYS, rng),
        sharpness=0.5,
        rng=rng,
    )


@pytest.fixture(scope="module")
def visits(world):
    rng = np.random.default_rng(1)
    return draw_visits(world, num_users=4000, days=DAYS, shown_from=0, rng=rng)


def chances(world, weight, fade, slot):
    """Slow twin of the draws: one chance per news, written down as the model says."""
    age = slot - world.born
    living = (age >= 0) & (age < LIFE)
    chance = np.where(living, weight * fade[np.clip(age, 0, LIFE - 1)], 0)
    return chance / chance.sum()


def assert_follows(drawn, chance):
    expected = chance * len(drawn)
    found = np.bincount(drawn, minlength=len(chance))
    assert not found[chance == 0].any()
    often = expected >= 10
    assert often.sum() > 50
    deviation = (found - expected)[often] / np.sqrt(expected[often])
    assert np.abs(deviation).max() < 5
    assert np.mean(deviation**2) == pytest.approx(1, abs=0.3)


def test_clicked_news_follow_taste_popularity_and_freshness(world):
    rng = np.random.default_rng(2)
    slot = 40
    tastes = draw_tastes(2, world.interests, rng)
    drawn = world.draw_clicked(tastes, np.full(50_000, 1), np.full(50_000, slot), rng)
    appetite = np.exp(tastes.storyline[1, world.storyline] + tastes.angle[1, world.angle])
    assert_follows(drawn, chances(world, world.weight * appetite, FADE_CLICKED, slot))


def test_shown_news_follow_popularity_and_freshness(world):
    drawn = world.draw_shown(np.full(50_000, 50), np.random.default_rng(3))
    assert_follows(drawn, chances(world, world.weight**EXPOSURE, FADE_SHOWN, 50))


def test_long_tail_is_the_paper_table():
    share = long_tail(100_000, 1.0)
    assert (np.diff(share) <= 0).all()
    for percent, paper in {1: 59.53, 3: 77.65, 5: 84.82, 10: 92.47, 20: 97.36, 30: 98.97}.items():
        assert 100 * share[: percent * 1000].sum() == pytest.approx(paper, abs=0.3)


def test_the_least_popular_of_very_many_news_still_have_a_share():
    assert (long_tail(400_000, 1.03) > 0).all()


def test_clicks_per_user_are_the_paper_figures():
    clicks = draw_num_clicks(1_000_000, 123, np.random.default_rng(0))
    assert clicks.min() == 1
    assert clicks.mean() == pytest.approx(15.27, rel=0.01)
    assert 100 * np.mean(clicks > 100) == pytest.approx(3.26, rel=0.03)
    assert 100 * np.mean(clicks > 150) == pytest.approx(1.44, rel=0.03)


def test_no_user_clicks_an_article_twice_or_skips_it_after_a_click(visits):
    user = visits.user[visits.clicked_visit]
    first_click = {}
    for key, visit in zip(zip(user, visits.clicked, strict=True), visits.clicked_visit, strict=True):
        assert key not in first_click
        first_click[key] = visit
    skips = list(zip(visits.user[visits.skipped_visit], visits.skipped, visits.skipped_visit, strict=True))
    assert len(set(skips)) == len(skips) > 10_000
    assert all(visit < first_click.get((user, news), len(visits.user)) for user, news, visit in skips)


def test_news_are_shown_in_their_lifetime_only(world, visits):
    for news, visit in ((visits.clicked, visits.clicked_visit), (visits.skipped, visits.skipped_visit)):
        age = visits.slot[visit] - world.born[news]
        assert age.min() == 0
        assert age.max() < LIFE


def test_no_other_score_beats_the_best(world, visits):
    rng = np.random.default_rng(4)
    pages = build_pages(visits, start=0, end=DAYS * DAY_SECONDS, history_end=0, rng=rng)
    best, popularity = score_pages(world, pages, visits.tastes)
    taste = best - popularity
    weight = np.log(world.weight[pages.candidates.values])
    others = {
        "taste alone": taste,
        "popularity alone": popularity,
        "half the taste": popularity + taste / 2,
        "twice the taste": popularity + 2 * taste,
        "twice the popularity": 2 * popularity + taste,
        "more weight": best + 0.3 * weight,
        "less weight": best - 0.3 * weight,
        "noise": best + rng.standard_normal(len(best)),
    }
    found = auc_by_impression(pages, best)
    for name, score in others.items():
        lost = found - auc_by_impression(pages, score)
        assert lost.mean() > 3 * lost.std() / np.sqrt(len(lost)), name
    assert auc_by_impression(pages, popularity).mean() > 0.5


def test_tastes_have_the_variance_and_the_shares_they_should(world):
    tastes = draw_tastes(20_000, world.interests, np.random.default_rng(5))
    assert tastes.angle.var() == pytest.approx(SHARES["angle"] * TASTE_VARIANCE, rel=0.03)
    assert tastes.storyline.var() == pytest.approx((1 - SHARES["angle"]) * TASTE_VARIANCE, rel=0.03)
    assert sum(SHARES.values()) == pytest.approx(1)


def test_entities_cut_across_sections(world):
    lines = world.storylines
    sections = [len(set(lines.section[lines.entity == entity])) for entity in range(lines.entity.max() + 1)]
    assert min(sections) >= 3


def test_articles_belong_to_active_storylines(world):
    assert world.storylines.is_active[world.born, world.storyline].all()
    assert 0.3 < world.storylines.is_active.mean() < 0.7


def test_some_sections_are_wrong_and_some_missing(world):
    true = world.storylines.section[world.storyline]
    assert np.mean(world.section == MISSING) == pytest.approx(0.15, abs=0.03)
    assert np.mean((world.section != true) & (world.section != MISSING)) == pytest.approx(0.09, abs=0.03)


def test_popular_articles_are_loud_more_often(world):
    order = np.argsort(world.weight)
    assert world.is_loud[order[-400:]].mean() > 2 * world.is_loud[order[:2000]].mean()


def test_tastes_estimated_from_many_clicks_come_near_the_true_ones(world, visits):
    estimated = estimate_tastes(world, visits, DAYS * DAY_SECONDS)
    clicks = np.bincount(visits.user[visits.clicked_visit], minlength=len(visits.tastes))
    for part in ("storyline", "angle"):
        true, found = (getattr(tastes, part) for tastes in (visits.tastes, estimated))
        near = [np.corrcoef(true[user], found[user])[0, 1] for user in np.flatnonzero(clicks > 50)]
        assert np.mean(near) > 0.8
        assert np.abs(found[clicks == 1]).mean() < np.abs(true[clicks == 1]).mean() / 2  # little is known of them


def test_the_ladder_is_in_order_with_room_between_its_rungs(world, visits):
    end = DAYS * DAY_SECONDS
    start = end - DAY_SECONDS
    dev = build_pages(visits, start=start, end=end, history_end=start, rng=np.random.default_rng(6))
    ladder = Ladder(world=world)
    ladder.add_users(visits, dev, start)
    auc = {rung.name: rung.auc for rung in ladder.rungs()}
    names = ["chance", "popularity", "sections", "true labels", "true labels and popularity", "best possible"]
    assert list(auc) == names
    assert auc["chance"] == 0.5 < auc["popularity"] < 0.58
    assert auc["popularity"] + 0.03 < auc["sections"] < 0.66
    assert auc["sections"] + 0.12 < auc["true labels"] < auc["true labels and popularity"]
    assert auc["true labels and popularity"] + 0.03 < auc["best possible"] < 0.9
    assert (auc["true labels and popularity"] - 0.5) / (auc["best possible"] - 0.5) > 0.75


def test_auc_counts_pairs_and_halves_ties():
    pages = Pages(
        user=np.zeros(3, np.int64),
        time=np.zeros(3, np.int64),
        slot=np.zeros(3, np.int64),
        history=Ragged(values=np.zeros(0, np.int64), offsets=np.zeros(4, np.int64)),
        candidates=Ragged(values=np.arange(9), offsets=np.array([0, 4, 6, 9])),
        is_clicked=np.array([True, False, False, True, True, True, False, True, False]),
    )
    score = np.array([3.0, 1.0, 2.0, 1.0, 5.0, 6.0, 7.0, 7.0, 8.0])
    # 3 beats 1 and 2, 1 ties with 1 and loses to 2; both clicked: none; 7 ties with 7 and loses to 8
    assert auc_by_impression(pages, score).tolist() == [2.5 / 4, 0.5 / 2]
