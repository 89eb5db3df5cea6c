import numpy as np
import pytest

from speedyfeed.data.store import Impressions
from speedyfeed.evaluation import user_dependent
from speedyfeed.evaluation.evaluate import evaluate, evaluate_user_dependent
from speedyfeed.evaluation.ranking import score_and_retrieve
from speedyfeed.evaluation.user_dependent import score_and_retrieve_user_dependent
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.index import ExactIndex
from tests.evaluation.test_ranking import MeanOfClicks


@pytest.mark.parametrize(("num_pools", "searches_all"), [(1, False), (3, False), (1, True)])
def test_embeddings_that_all_users_share_give_what_the_index_gives(impressions, news_VD, num_pools, searches_all):
    pools = np.arange(len(impressions.users)) % num_pools
    encode = MeanOfClicks(news_VD)

    def encode_for_user(user, history):
        histories = Ragged(values=history, offsets=np.array([0, len(history)]))
        return news_VD, encode.means(histories)[0]

    scores, retrieved = score_and_retrieve_user_dependent(
        impressions, encode_for_user, pools, searches_all=searches_all
    )
    wanted, wanted_retrieved = score_and_retrieve(
        impressions, news_VD, encode, ExactIndex.build, pools, searches_all=searches_all
    )
    np.testing.assert_allclose(scores.values, wanted.values, rtol=1e-5)
    np.testing.assert_array_equal(retrieved.found, wanted_retrieved.found)
    assert (retrieved.found > 0).any()
    assert (retrieved.num_pools, retrieved.news_per_pool) == (
        wanted_retrieved.num_pools,
        wanted_retrieved.news_per_pool,
    )
    ours = evaluate_user_dependent(impressions, encode_for_user, np.random.default_rng(0), resamples=10)
    theirs = evaluate(
        impressions, news_VD, encode, np.random.default_rng(0), build_index=ExactIndex.build, resamples=10
    )
    assert ours.values.keys() == theirs.values.keys()
    for name, values in ours.values.items():
        np.testing.assert_allclose(values, theirs.values[name], err_msg=name)


@pytest.mark.parametrize("searches_all", [False, True])
def test_articles_of_one_score_are_retrieved_in_any_order(searches_all):
    num_news = 1000
    shown = Impressions(
        candidates=Ragged(values=np.arange(1, num_news + 1), offsets=np.arange(num_news + 1)),
        labels=np.ones(num_news, np.int8),
        users=np.zeros(num_news, np.int64),
        histories=Ragged(values=np.zeros(0, np.int64), offsets=np.zeros(2, np.int64)),
    )
    news_VD, one_pool = np.zeros((num_news + 1, 2), np.float32), np.zeros(num_news, np.int64)
    _, alike = score_and_retrieve(
        shown, news_VD, MeanOfClicks(news_VD), ExactIndex.build, one_pool, searches_all=searches_all
    )
    _, by_user = score_and_retrieve_user_dependent(
        shown, lambda *_: (news_VD, news_VD[0]), one_pool, searches_all=searches_all
    )
    for retrieved in (alike, by_user):
        is_found = retrieved.found > 0
        assert is_found.sum() == 200
        assert 0.1 < is_found[:200].mean() < 0.3, "the first articles no more often than others"
        assert sorted(retrieved.found[is_found]) == list(range(1, 201))


def test_every_user_is_ranked_with_their_own_embeddings(impressions, news_VD, monkeypatch):
    monkeypatch.setattr(user_dependent, "RETRIEVED", 1)
    favourite = impressions.candidates.values[impressions.labels == 1]
    liked = {}
    for row, user in enumerate(impressions.users.tolist()):
        clicked = impressions.candidates[row][
            impressions.labels[slice(*impressions.candidates.offsets[row : row + 2])] == 1
        ]
        liked.setdefault(user, clicked[clicked > 0][:1].tolist())

    def encode_for_user(user, history):
        mine = np.zeros((len(news_VD), 1), np.float32)
        mine[liked[user]] = 1
        return mine, np.ones(1, np.float32)

    scores, retrieved = score_and_retrieve_user_dependent(
        impressions, encode_for_user, np.zeros(len(impressions.users), np.int64)
    )
    assert len(favourite)
    for row, user in enumerate(impressions.users.tolist()):
        shown = impressions.candidates[row]
        expected = np.where(shown == 0, -np.inf, np.isin(shown, liked[user]))
        assert scores[row].tolist() == expected.tolist()
    clicked = impressions.labels == 1
    assert retrieved.found[clicked].any()
    assert not retrieved.found[~clicked].any()
