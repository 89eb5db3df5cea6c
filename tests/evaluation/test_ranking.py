import dataclasses

import numpy as np
import pytest
import torch

from speedyfeed.data.store import Impressions
from speedyfeed.errors import InputError
from speedyfeed.evaluation import ranking
from speedyfeed.evaluation.metrics import IN_HISTORY, measure_recall
from speedyfeed.evaluation.ranking import RETRIEVED, score_and_retrieve, score_candidates
from speedyfeed.ragged import Ragged
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import ExactIndex, Neighbours
from speedyfeed.scoring import Users
from tests.evaluation.conftest import ragged


class MeanOfClicks:
    """User embeddings without a model; remembers the histories it was given."""

    def __init__(self, news_VD: np.ndarray) -> None:
        self.news_VD = news_VD
        self.histories: list[list[int]] = []

    def __call__(self, histories: Ragged, users: np.ndarray | None = None) -> Users:
        self.histories += [row.tolist() for row in histories]
        return Users.single(self.means(histories))

    def means(self, histories: Ragged) -> np.ndarray:
        means = [self.news_VD[row].mean(0) if len(row) else self.news_VD[1] for row in histories]
        return np.stack(means).astype(np.float32)


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(ranking, "_USERS", 3)
        monkeypatch.setattr(ranking, "_CANDIDATES", 4)


def one_pool(impressions):
    return np.zeros(len(impressions.users), np.int64)


@pytest.mark.usefixtures("chunks")
def test_scores_equal_one_inner_product_at_a_time(impressions, news_VD):
    encode = MeanOfClicks(news_VD)
    scores = score_candidates(impressions, news_VD, encode)
    for row, candidates in enumerate(impressions.candidates):
        user = MeanOfClicks(news_VD).means(impressions.histories.take(impressions.users[[row]]))[0]
        for position, news in enumerate(candidates):
            expected = user @ news_VD[news] if news else -np.inf
            assert scores[row][position] == pytest.approx(expected, abs=1e-5)
    assert (scores.values == -np.inf).sum() == (impressions.candidates.values == 0).sum() > 0


@pytest.mark.usefixtures("chunks")
def test_each_user_is_encoded_once_and_retrieval_gives_the_same_scores(impressions, news_VD):
    first, second = MeanOfClicks(news_VD), MeanOfClicks(news_VD)
    scores = score_candidates(impressions, news_VD, first)
    again, _ = score_and_retrieve(impressions, news_VD, second, ExactIndex.build, one_pool(impressions))
    expected = [impressions.histories[user].tolist() for user in np.unique(impressions.users)]
    assert first.histories == second.histories == expected
    assert again.values.tolist() == scores.values.tolist()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("num_pools", [1, 3])
def test_a_click_is_found_at_its_rank_among_all_news_of_its_pool(num_pools, impressions, news_VD, monkeypatch):
    monkeypatch.setattr(ranking, "RETRIEVED", 20)
    pools = np.arange(len(impressions.users)) % num_pools
    _, retrieved = score_and_retrieve(impressions, news_VD, MeanOfClicks(news_VD), ExactIndex.build, pools)
    found = Ragged(values=retrieved.found, offsets=impressions.candidates.offsets)
    labels = Ragged(values=impressions.labels, offsets=impressions.candidates.offsets)
    ranks = []
    for row, candidates in enumerate(impressions.candidates):
        user = MeanOfClicks(news_VD).means(impressions.histories.take(impressions.users[[row]]))[0]
        pool = {
            news
            for other, shown in enumerate(impressions.candidates)
            for news in shown.tolist()
            if news and pools[other] == pools[row]
        }
        own = set(impressions.histories[impressions.users[row]].tolist())
        best = sorted(pool - own, key=lambda news, user=user: -(user @ news_VD[news]))[:20]
        for position, news in enumerate(candidates.tolist()):
            is_clicked = labels[row][position] == 1
            expected = best.index(news) + 1 if is_clicked and news in best else 0
            if is_clicked and news in own:
                expected = IN_HISTORY
            assert found[row][position] == expected
            ranks.append(expected)
    assert {0, IN_HISTORY} < set(ranks)
    assert max(ranks) > 5
    assert retrieved.num_pools == num_pools
    assert retrieved.index_recall == 1.0


def test_an_index_that_finds_half_says_so(impressions, news_VD):
    class HalfIndex(ExactIndex):
        def search_users(self, users, k):
            whole = super().search_users(users, k)
            return Neighbours(ids=whole.ids[:, ::2], scores=whole.scores[:, ::2])

    build = HalfIndex.build
    _, retrieved = score_and_retrieve(impressions, news_VD, MeanOfClicks(news_VD), build, one_pool(impressions))
    assert retrieved.news_per_pool < RETRIEVED
    assert retrieved.index_recall == pytest.approx(0.5, abs=0.01)


def test_a_model_that_has_diverged_is_named(impressions, news_VD):
    with pytest.raises(InputError, match="diverged"):
        score_candidates(impressions, np.where(news_VD, np.nan, news_VD), MeanOfClicks(news_VD))


def test_impressions_without_any_text_are_scored_and_nothing_is_found(impressions, news_VD):
    empty = dataclasses.replace(
        impressions,
        candidates=Ragged(
            values=np.zeros_like(impressions.candidates.values), offsets=impressions.candidates.offsets
        ),
    )
    scores, retrieved = score_and_retrieve(
        empty, news_VD, MeanOfClicks(news_VD), ExactIndex.build, one_pool(impressions)
    )
    assert (scores.values == -np.inf).all()
    assert not retrieved.found.any()


def test_two_hundred_are_retrieved_beside_those_clicked_before():
    """A user who has clicked the best 30 of 300 articles finds the 230th best, and no later one."""
    news_VD = np.concatenate([[0.0], np.arange(300, 0, -1)])[:, None].astype(np.float32)
    shown = Impressions(
        candidates=ragged([[30, 31, 230, 231], list(range(1, 301))]),
        labels=np.concatenate([np.ones(4), np.zeros(300)]).astype(np.int8),
        users=np.zeros(2, np.int64),
        histories=ragged([list(range(1, 31))]),
    )
    _, retrieved = score_and_retrieve(
        shown,
        news_VD,
        lambda histories, _: Users.single(np.ones((len(histories), 1), np.float32)),
        ExactIndex.build,
        one_pool(shown),
    )
    assert retrieved.found[:4].tolist() == [IN_HISTORY, 1, 200, 0]
    assert not retrieved.found[4:].any()
    found = Ragged(values=retrieved.found, offsets=shown.candidates.offsets)
    assert measure_recall(found, shown.labels, 200)[0] == pytest.approx(2 / 3)
    assert retrieved.index_recall == 1.0


def test_all_articles_are_searched_not_only_candidates():
    """A target is found behind the articles that no impression shows, less those of the history."""
    news_VD = np.concatenate([[0.0], np.arange(9, 0, -1)])[:, None].astype(np.float32)
    shown = Impressions(
        candidates=ragged([[4], [7]]),
        labels=np.ones(2, np.int8),
        users=np.array([0, 1]),
        histories=ragged([[1, 2], []]),
    )
    encode = lambda histories, _: Users.single(np.ones((len(histories), 1), np.float32))  # noqa: E731
    for searches_all, ranks, size in ((False, [1, 2], 2), (True, [2, 7], 9)):
        _, retrieved = score_and_retrieve(
            shown, news_VD, encode, ExactIndex.build, one_pool(shown), searches_all=searches_all
        )
        assert retrieved.found.tolist() == ranks
        assert (retrieved.news_per_pool, retrieved.searches_all) == (size, searches_all)


class ClicksThemselves:
    """Users whose vectors are their clicks, the first of which counts twice; without clicks, the first article."""

    def __init__(self, news_VD: np.ndarray) -> None:
        self.news_VD = torch.from_numpy(news_VD)

    def __call__(self, histories: Ragged, users: np.ndarray | None = None) -> Users:
        rows = [row.tolist() or [1] for row in histories]
        longest = max(map(len, rows))
        weights = torch.zeros(len(rows), 1, longest)
        for user, row in enumerate(rows):
            weights[user, 0, : len(row)] = torch.tensor([2.0] + [1.0] * (len(row) - 1)) / (len(row) + 1)
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return Users(vectors_BKD=self.news_VD[padded], weights_BPK=weights, sharpness=6.0)

    def score(self, history: np.ndarray, article: int) -> float:
        """The score of one article, click by click."""
        clicks = self.news_VD[history.tolist() or [1]]
        powers = torch.exp(6 * clicks @ self.news_VD[article])
        return float(torch.log((powers.sum() + powers[0]) / (len(clicks) + 1)) / 6)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("build", [ExactIndex.build, HnswIndex.build], ids=["exact", "hnsw"])
def test_users_with_several_vectors_are_scored_click_by_click(impressions, news_VD, build):
    """An index by inner product retrieves more than enough here, so that both find what exact search does."""
    encode = ClicksThemselves(news_VD)
    scores, retrieved = score_and_retrieve(impressions, news_VD, encode, build, one_pool(impressions))
    pool = [article for article in np.unique(impressions.candidates.values) if article]
    found = Ragged(values=retrieved.found, offsets=impressions.candidates.offsets)
    num_found = 0
    for row, user in enumerate(impressions.users):
        history = impressions.histories[user]
        for position, article in enumerate(impressions.candidates[row]):
            expected = encode.score(history, article) if article else -np.inf
            assert scores[row][position] == pytest.approx(expected, abs=1e-4)
            if found[row][position] > 0:
                others = [other for other in pool if other not in history]
                better = sum(encode.score(history, other) > expected + 1e-5 for other in others)
                assert found[row][position] == 1 + better
                num_found += 1
    assert num_found > 20
    assert retrieved.index_recall == pytest.approx(1.0)
