"""Scores of users with one vector and with several, against the formula computed one number at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from speedyfeed.scoring import Users, concatenate

DIM = 5


def unit(*shape: int, seed: int) -> Tensor:
    rows = torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=-1).requires_grad_()


def some_users(num_users: int, num_prefixes: int, num_vectors: int, *, sharpness: float, seed: int = 0) -> Users:
    weights = torch.rand(num_users, num_prefixes, num_vectors, generator=torch.Generator().manual_seed(seed))
    weights = weights * (weights > 0.3) + 1e-3  # some vectors hardly count
    return Users(
        vectors_BKD=unit(num_users, num_vectors, seed=seed + 1),
        weights_BPK=(weights / weights.sum(-1, keepdim=True)).requires_grad_(),
        sharpness=sharpness,
    )


def naive(users: Users, user: int, prefix: int, article: Tensor) -> Tensor:
    """The score of one article for one user, vector by vector."""
    if users.weights_BPK is None:
        return users.vectors_BKD[user, prefix] @ article
    total = torch.zeros(())
    for vector, weight in zip(users.vectors_BKD[user], users.weights_BPK[user, prefix], strict=True):
        total = total + weight * torch.exp(users.sharpness * (vector @ article))
    return torch.log(total) / users.sharpness


@settings(max_examples=25, deadline=None)
@given(
    num_users=st.integers(1, 3),
    num_prefixes=st.integers(1, 4),
    num_vectors=st.integers(1, 4),
    num_news=st.integers(1, 4),
    sharpness=st.sampled_from([0.5, 6.0, 20.0]),
    seed=st.integers(0, 99),
)
def test_scores_are_the_formula_and_so_are_gradients(
    num_users: int, num_prefixes: int, num_vectors: int, num_news: int, sharpness: float, seed: int
) -> None:
    users = some_users(num_users, num_prefixes, num_vectors, sharpness=sharpness, seed=seed)
    news = unit(num_news, seed=seed + 2)
    scores = [
        naive(users, user, prefix, article)
        for user in range(num_users)
        for prefix in range(num_prefixes)
        for article in news
    ]
    expected = torch.stack(scores).view(num_users, num_prefixes, num_news)
    shown = news.expand(num_users, num_prefixes, num_news, DIM)
    inputs = [users.vectors_BKD, users.weights_BPK, news]
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    wanted = torch.autograd.grad((expected * towards).sum(), inputs, retain_graph=True)
    for ours in (users.score_all(news), users.score(shown)):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        gradients = torch.autograd.grad((ours * towards).sum(), inputs, retain_graph=True)
        for gradient, twin in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient, twin, rtol=1e-3, atol=1e-4)


def test_a_vector_alone_is_an_inner_product_at_any_sharpness() -> None:
    news = unit(6, seed=3)
    vectors = unit(2, 1, seed=4)
    softly = Users(vectors_BKD=vectors, weights_BPK=torch.ones(2, 1, 1), sharpness=9.0)
    plainly = Users(vectors_BKD=vectors)
    torch.testing.assert_close(softly.score_all(news), plainly.score_all(news))
    torch.testing.assert_close(plainly.score_all(news)[1, 0], news @ vectors[1, 0])


def test_sharpness_goes_from_the_mean_to_the_closest_vector() -> None:
    news = unit(6, seed=3)
    mean = some_users(2, 3, 4, sharpness=1e-3)
    torch.testing.assert_close(mean.score_all(news), mean.means_BPD @ news.mT, rtol=0, atol=2e-3)
    sharp = some_users(2, 3, 4, sharpness=2000.0)
    closest = (sharp.vectors_BKD @ news.mT).amax(1, keepdim=True).expand(2, 3, 6)
    torch.testing.assert_close(sharp.score_all(news), closest, rtol=0, atol=1e-2)


def test_one_close_click_among_many_counts_more_than_all_half_close_ones() -> None:
    """Sports and food: the mean is closer to something between both than to either."""
    vectors = torch.eye(2)[None]
    between = torch.tensor([1.0, 1.0]) / math.sqrt(2)
    news = torch.stack([vectors[0, 0], between])
    softly = Users(vectors_BKD=vectors, weights_BPK=torch.full((1, 1, 2), 0.5), sharpness=6.0)
    sports, neither = softly.score_all(news)[0, 0].tolist()
    assert sports > neither
    sports, neither = (softly.means_BPD @ news.mT)[0, 0].tolist()
    assert sports < neither


@pytest.mark.parametrize("is_soft", [False, True])
def test_parts_of_users_score_as_the_whole(is_soft: bool) -> None:
    users = some_users(4, 3, 3, sharpness=6.0) if is_soft else Users(vectors_BKD=unit(4, 3, seed=1))
    news = unit(5, seed=2)
    whole = users.score_all(news)
    torch.testing.assert_close(users.take(slice(1, 3)).score_all(news), whole[1:3])
    torch.testing.assert_close(users.take(torch.tensor([3, 0])).score_all(news), whole[[3, 0]])
    torch.testing.assert_close(users.prefixes(slice(1, None)).score_all(news), whole[:, 1:])
    chosen = torch.tensor([[2, 0], [1, 1], [0, 2], [2, 1]])
    torch.testing.assert_close(users.at(chosen).score_all(news), whole.take_along_dim(chosen[..., None], 1))
    joined = concatenate([users.take(slice(0, 1)), users.take(slice(1, 4))])
    torch.testing.assert_close(joined.score_all(news), whole)
    numbers = torch.arange(5.0)
    plus = users.with_constant().score_all(torch.cat([news, numbers[:, None]], 1))
    torch.testing.assert_close(plus, whole + numbers, rtol=1e-5, atol=1e-5)


def test_groups_with_fewer_vectors_are_padded() -> None:
    few, many = some_users(2, 1, 2, sharpness=6.0, seed=5), some_users(3, 1, 4, sharpness=6.0, seed=6)
    news = unit(5, seed=2)
    expected = torch.cat([few.score_all(news), many.score_all(news)])
    torch.testing.assert_close(concatenate([few, many]).score_all(news), expected)
