"""Re-ranking: what each term does, and that nothing changes where it is off."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from speedyfeed.data.headlines import headline_codes
from speedyfeed.errors import InputError
from speedyfeed.retrieval import rerank as rerank_module
from speedyfeed.retrieval.interests import group_clicks
from speedyfeed.retrieval.rerank import (
    PLAIN,
    STAGE,
    Candidates,
    RerankConfig,
    UserClicks,
    divergence,
    newness,
    popularity_weight,
    rerank,
    retrieval_size,
    shares,
    shortlist,
)

NOBODY = UserClicks.from_sections(np.array([], np.int64), np.ones(4))


def candidates(scores, *, embeddings=None, clicks=None, sections=None, ages=None, headlines=None):
    num = len(scores)
    return Candidates(
        embeddings_ND=np.eye(num, dtype=np.float32) if embeddings is None else np.array(embeddings, np.float32),
        scores_NQ=np.array(scores, np.float32).reshape(num, -1),
        clicks_N=None if clicks is None else np.array(clicks),
        sections_N=None if sections is None else np.array(sections),
        headlines_N=None if headlines is None else headline_codes(headlines),
        ages_N=None if ages is None else np.array(ages),
    )


def user(*sections):
    return UserClicks.from_sections(np.array(sections, np.int64), np.ones(4))


def test_plain_is_the_order_of_the_scores():
    found = candidates([0.1, 0.9, 0.5], clicks=[9, 0, 0], sections=[1, 2, 2], ages=[0, 1, 2])
    assert rerank(found, 3, PLAIN, user(1, 1)).tolist() == [1, 2, 0]
    assert rerank(found, 2, PLAIN, user()).tolist() == [1, 2]


def test_a_new_user_gets_what_is_popular_and_moves_to_taste_without_a_cliff():
    scores, clicks = np.linspace(1, 0, 9), (1 + np.arange(9)) ** 3
    config = RerankConfig(diversity=0)
    lists = [rerank(candidates(scores, clicks=clicks), 9, config, user(*[1] * num)).tolist() for num in range(15)]
    assert lists[0] == list(range(8, -1, -1))
    assert lists[-1] == list(range(9))
    weights = [popularity_weight(config, num) for num in range(20)]
    assert weights[:5] == pytest.approx([1, 0.707, 0.5, 0.354, 0.25], abs=1e-3)
    assert weights[-1] == 0
    assert max(a - b for a, b in itertools.pairwise(weights)) < 0.3
    assert popularity_weight(RerankConfig(popularity=0.4), 100) == 0.4


def test_without_clicks_of_anybody_a_new_user_gets_the_start_of_the_model():
    found = candidates([0.1, 0.9, 0.5], clicks=[0, 0, 0])
    assert rerank(found, 3, RerankConfig(diversity=0), NOBODY).tolist() == [1, 2, 0]


def test_freshness_is_worth_what_it_says_and_halves_in_a_day():
    scores = [1.0, -1.0]  # two standard deviations apart
    config = RerankConfig(diversity=0, halving_clicks=0, freshness=3)
    assert rerank(candidates(scores, ages=[np.nan, 0]), 2, config, NOBODY).tolist() == [1, 0]
    assert rerank(candidates(scores, ages=[np.nan, 24]), 2, config, NOBODY).tolist() == [0, 1]
    assert rerank(candidates(scores, ages=[1000, -5]), 2, config, NOBODY).tolist() == [1, 0]  # not yet published


def test_near_duplicates_are_shown_once():
    found = candidates([3, 2, 1], embeddings=[[1, 0], [5, 0.1], [0, 1]])
    assert rerank(found, 3, RerankConfig(diversity=0), NOBODY).tolist() == [0, 2]
    assert len(rerank(found, 3, RerankConfig(duplicates=1.01), NOBODY)) == 3


def user_who_read(*, read=None, headlines=()):
    embeddings = None if read is None else np.array(read, np.float32)
    return UserClicks.from_sections(
        np.array([], np.int64), np.ones(4), read_LD=embeddings, headlines_L=headline_codes(headlines)
    )


def test_near_duplicates_of_what_was_read_are_not_shown():
    found = candidates([3, 2, 1], embeddings=[[1, 0], [0.9, 0.43], [0, 1]])
    assert rerank(found, 3, RerankConfig(), user_who_read(read=[[0, -1], [7, 0.1]])).tolist() == [1, 2]
    assert len(rerank(found, 3, RerankConfig(), user_who_read(read=np.zeros((0, 2))))) == 3
    assert len(rerank(found, 3, RerankConfig(duplicates=1.01), user_who_read(read=[[1, 0]]))) == 3


def test_an_identical_headline_is_shown_once_and_not_after_it_was_read():
    titles = ["Storm  hits the coast", "Storm hits the Coast", "", "", "Storm hits"]
    found = candidates([5, 4, 3, 2, 1], headlines=titles)
    flat = RerankConfig(diversity=0)
    assert rerank(found, 5, flat, NOBODY).tolist() == [0, 2, 3, 4]
    assert rerank(found, 5, flat, user_who_read(headlines=["storm hits the coast", ""])).tolist() == [2, 3, 4]
    everything = RerankConfig(diversity=0.3, duplicates=1.01)
    assert len(rerank(found, 5, everything, user_who_read(headlines=["storm hits"]))) == 5


def test_diversity_prefers_what_is_unlike_the_articles_above():
    found = candidates([1.0, 0.95, 0.8], embeddings=[[1, 0], [0.9, 0.44], [0, 1]])
    assert rerank(found, 3, RerankConfig(diversity=0), NOBODY).tolist() == [0, 1, 2]
    assert rerank(found, 3, RerankConfig(diversity=0.8), NOBODY).tolist() == [0, 2, 1]


def test_the_sections_of_a_list_follow_the_clicks():
    """One section has the best scores and another none of the best; a user of all three gets all three."""
    rng = np.random.default_rng(0)
    sections = np.repeat([1, 2, 3], 40)
    found = candidates(rng.normal(size=120) * 0.2 + np.repeat([1.0, 0.75, 0.75], 40), sections=sections)

    def count(config, *clicked):
        return np.bincount(sections[rerank(found, 12, config, user(*clicked))], minlength=4)

    assert count(PLAIN, 1, 2, 3)[3] == 0
    assert count(RerankConfig(), 1, 2, 3)[1:].min() > 0
    devoted = count(RerankConfig(diversity=0.8), *[2] * 10, 3)
    assert devoted[2] > count(RerankConfig(diversity=0.8), 1, 2, 3)[2]
    assert devoted.argmax() == 2


@pytest.mark.parametrize("first", [1, 2, 3])
def test_three_clicks_on_three_sections_put_all_three_into_the_first_ten(first):
    """Every score for one section is far above every score for the others, as for a soft maximum of one topic."""
    sections = np.repeat([1, 2, 3], 40)
    found = candidates(np.linspace(1, 0, 120) + 9 * (sections == first), sections=sections)
    flat = replace(RerankConfig(), halving_clicks=0)
    chosen = sections[rerank(found, 30, flat, user(1, 2, 3))]
    for places, least in ((10, 1), (20, 2), (30, 3)):
        assert np.bincount(chosen[:places], minlength=4)[1:].min() >= least
    assert (chosen[:8] == first).all()  # and no more than that is promised
    assert np.bincount(sections[rerank(found, 30, PLAIN, user(1, 2, 3))], minlength=4)[first] == 30
    missing = UserClicks.from_sections(np.array([1, 2, 4]), np.ones(5))  # of the last there is no candidate
    assert len(rerank(found, 30, flat, missing)) == 30


def test_the_best_of_each_clicked_section_are_candidates():
    scores = np.concatenate([np.linspace(9, 8, 300), [3.0, 2.0, 1.0, -np.inf, 0.0]])
    sections = np.array([1] * 300 + [2, 2, 3, 3, 0])
    found = shortlist(scores[:, None], sections, 5, RerankConfig(), user(1, 2, 3))
    size = retrieval_size(5, RerankConfig())
    assert found.tolist() == [*range(size), 300, 301, 302]
    assert shortlist(scores[:, None], sections, 5, PLAIN, user(1, 2, 3)).tolist() == list(range(5))
    both = np.stack([scores, -scores], 1)
    assert 304 in shortlist(both, sections, 5, RerankConfig(), user(1))  # the best for the second interest
    ages = np.where(np.arange(305) < 302, np.nan, np.arange(305))
    fresh = shortlist(scores[:, None], sections, 5, RerankConfig(freshness=1), user(1), ages_N=ages)
    assert set(fresh) >= {302, 304}
    assert 303 not in fresh


@pytest.mark.parametrize("config", [RerankConfig(), RerankConfig(diversity=0.8), RerankConfig(diversity=0), PLAIN])
def test_a_list_is_the_beginning_of_every_longer_one(config):
    """For a new user, for one of few clicks and for one of many, with equal numbers of clicks at every border."""
    rng = np.random.default_rng(2)
    sections = rng.integers(0, 4, 600)
    found = candidates(
        rng.normal(size=600),
        embeddings=rng.normal(size=(600, 8)),
        clicks=rng.integers(0, 9, 600),
        sections=sections,
    )
    for clicked in ([], [1, 2, 3], [1] * 20 + [3]):
        longest = rerank(found, 200, config, user(*clicked)).tolist()
        assert len(longest) == 200
        for k in (1, 10, STAGE, STAGE + 1, 60):
            assert rerank(found, k, config, user(*clicked)).tolist() == longest[:k]


def test_each_further_story_of_one_event_costs_more(monkeypatch):
    """Five reports of one storm, no two of them copies, score higher than everything else."""

    def reports(shared):
        embeddings = np.concatenate([np.eye(30)[:5] + shared * np.eye(30)[29], np.eye(30)[5:25]])
        found = candidates(np.concatenate([np.full(5, 1.0), np.linspace(0.5, -2, 20)]), embeddings=embeddings)
        return rerank(found, 6, RerankConfig(halving_clicks=0), NOBODY) < 5

    assert reports(2)[0]
    assert reports(2).sum() == 2  # at cosines of .8
    assert reports(0.8).sum() == 5  # cosines of .4: of one kind, and not of one event
    monkeypatch.setattr(rerank_module, "EVENT", 2)
    assert reports(2).sum() == 5  # the largest cosine alone is no larger for the fifth than for the second


def test_wanted_shares_begin_with_everybodys_and_end_with_ones_own():
    everyone = np.array([5.0, 6.0, 2.0, 2.0])
    new = shares(UserClicks.from_sections(np.array([], np.int64), everyone), newness(RerankConfig(), 0))
    assert new.tolist() == pytest.approx([0, 0.6, 0.2, 0.2])  # articles without a section have no share
    half = shares(UserClicks.from_sections(np.array([3, 3]), everyone), newness(RerankConfig(), 2))
    assert half.tolist() == pytest.approx([0, 0.3, 0.1, 0.6])
    own = shares(UserClicks.from_sections(np.array([3] * 30 + [1] * 10), everyone), newness(RerankConfig(), 40))
    assert own.tolist() == pytest.approx([0, 0.25, 0, 0.75])


def test_divergence_is_zero_where_shares_agree_and_large_where_a_section_is_missing():
    wanted = np.array([0, 0.5, 0.5])
    assert divergence(wanted, wanted) == pytest.approx(0)
    missing = divergence(wanted, np.array([0.0, 1.0, 0.0]))
    # 0.99 and 0.01 of the two mixed, as Steck smooths: the definition by hand
    assert missing == pytest.approx(0.5 * np.log(0.5 / 0.995) + 0.5 * np.log(0.5 / 0.005))


def test_the_divergence_of_each_next_article_is_that_of_the_longer_list():
    """The fast update in the choice, and the definition."""
    codes = np.array([0, 1, 2, 3, 3])
    sections = rerank_module._Sections(codes, np.arange(5), 5, RerankConfig(), user(1, 1, 2, 3))
    counts = np.zeros(4)
    for chosen in (None, 1, 4, 0, 3):
        if chosen is not None:
            sections.add(chosen)
            counts[codes[chosen]] += codes[chosen] > 0
        wanted = shares(user(1, 1, 2, 3), newness(RerankConfig(), 4))
        expected = []
        for code in codes:
            longer = counts + (np.arange(4) == code) * (code > 0)
            expected.append(float(divergence(wanted, longer / max(longer.sum(), 1))))
        assert sections.divergence_N().tolist() == pytest.approx(expected, abs=1e-6)


def test_interests_are_groups_of_like_clicks():
    rng = np.random.default_rng(1)
    centres = np.eye(8)[[0, 1, 2, 0, 1, 2, 2]]
    groups = group_clicks((centres + 0.05 * rng.normal(size=centres.shape)).astype(np.float32), 3)
    assert sorted(group.tolist() for group in groups) == [[0, 3], [1, 4], [2, 5, 6]]
    assert [group.tolist() for group in group_clicks(np.ones((3, 4), np.float32), 3)] == [[0, 1, 2]]
    assert [group.tolist() for group in group_clicks(centres.astype(np.float32), 1)] == [list(range(7))]
    assert group_clicks(np.zeros((0, 4), np.float32), 3) == []


@pytest.mark.parametrize(
    "wrong", [{"diversity": 1.1}, {"popularity": -1}, {"interests": 0}, {"freshness": np.nan}]
)
def test_a_setting_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match="expected a number from"):
        RerankConfig(**wrong)
