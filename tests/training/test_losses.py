import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from speedyfeed.errors import InputError
from speedyfeed.scoring import Users
from speedyfeed.training.config import LossConfig
from speedyfeed.training.losses import ClickLoss, in_batch_loss, log_popularity, next_click_loss

DIM = 5


def logits_of(users: Tensor, clicks: Tensor, negatives: Tensor) -> Tensor:
    """Inner products of each user with the click, then with the negatives."""
    shown = torch.cat([clicks[:, :, None], negatives], 2)
    return Users(vectors_BKD=users).score(shown)


def naive_next_click(
    users: Tensor, clicks: Tensor, negatives: Tensor, clicked: Tensor, weights: Tensor | None
) -> Tensor:
    """One click at a time."""
    total, weight_of_all = torch.zeros(()), 0.0
    for user in range(len(users)):
        for position in range(users.size(1)):
            if not clicked[user, position]:
                continue
            weight = 1.0 if weights is None else float(weights[user, position])
            good = torch.exp(users[user, position] @ clicks[user, position])
            bad = sum(torch.exp(users[user, position] @ negative) for negative in negatives[user, position])
            total = total - weight * torch.log(good / (good + bad))
            weight_of_all += weight
    return total / weight_of_all if weight_of_all else total


def naive_in_batch(users: Tensor, history: Tensor, news: Tensor, bias: Tensor | None) -> Tensor:
    """One click and one candidate at a time."""
    losses = []
    for user, own in enumerate(history.tolist()):
        for position, target in enumerate(own):
            if target == 0:
                continue
            powers = {}
            for candidate in range(1, len(news)):
                if candidate == target or candidate not in own:
                    logit = users[user, position] @ news[candidate]
                    powers[candidate] = torch.exp(logit if bias is None else logit + bias[candidate])
            losses.append(-torch.log(powers[target] / sum(powers.values())))
    return torch.stack(losses).mean() if losses else users.sum() * 0


def assert_twins(ours: Tensor, twin: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, twin, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(ours, inputs, retain_graph=True)
    wanted = torch.autograd.grad(twin, inputs, allow_unused=True, retain_graph=True)
    for gradient, expected in zip(gradients, wanted, strict=True):
        expected = torch.zeros_like(gradient) if expected is None else expected
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any),
    num_negatives=st.integers(1, 3),
    is_weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_next_click_is_the_sum_over_clicks(
    lengths: list[int], num_negatives: int, is_weighted: bool, seed: int
) -> None:
    clicked = torch.arange(3) < torch.tensor(lengths)[:, None]
    shape = (len(lengths), 3)
    users, clicks = normal(*shape, DIM, seed=seed), normal(*shape, DIM, seed=seed + 1)
    negatives = normal(*shape, num_negatives, DIM, seed=seed + 2)
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) if is_weighted else None
    ours = next_click_loss(logits_of(users, clicks, negatives), clicked * (1.0 if weights is None else weights))
    assert_twins(
        ours, naive_next_click(users, clicks, negatives, clicked, weights), inputs=[users, clicks, negatives]
    )


def test_next_click_by_hand() -> None:
    """Two users; the second has one click less. Logits: log 3 against 0 and so on."""
    users = torch.ones(2, 2, 1)
    clicks = torch.tensor([[[math.log(3.0)], [0.0]], [[math.log(4.0)], [99.0]]])
    negatives = torch.tensor([[[[0.0]], [[0.0]]], [[[0.0]], [[99.0]]]])
    clicked = torch.tensor([[True, True], [True, False]])
    probabilities = [3 / 4, 1 / 2, 4 / 5]
    loss = next_click_loss(logits_of(users, clicks, negatives), clicked.float())
    assert loss.item() == pytest.approx(-sum(map(math.log, probabilities)) / 3)
    weights = torch.tensor([[1.0, 0.5], [0.0, 7.0]])
    loss = next_click_loss(logits_of(users, clicks, negatives), clicked * weights)
    assert loss.item() == pytest.approx(-(math.log(3 / 4) + 0.5 * math.log(1 / 2)) / 1.5)


def test_a_click_meets_its_own_negatives_at_every_place() -> None:
    """Negatives shifted by one click would be told apart from it: each is aligned with its own click alone."""
    users = torch.eye(4)[None] * 20  # user t looks at coordinate t only
    clicks = torch.zeros(1, 4, 4)
    negatives = -torch.eye(4)[None, :, None]
    assert next_click_loss(logits_of(users, clicks, negatives)) < 1e-6
    assert next_click_loss(logits_of(users, clicks, negatives.roll(1, 1))) == pytest.approx(math.log(2.0))


@pytest.mark.parametrize("clicked", [False, True])
def test_nothing_to_learn_is_a_loss_of_zero_without_gradient(clicked: bool) -> None:
    """No click at all, or all of weight zero."""
    users, clicks, negatives = normal(2, 3, DIM), normal(2, 3, DIM), normal(2, 3, 1, DIM)
    mask = torch.full((2, 3), clicked)
    loss = next_click_loss(logits_of(users, clicks, negatives), mask * torch.zeros(2, 3))
    gradients = torch.autograd.grad(loss, [users, clicks, negatives])
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients)


@settings(max_examples=30, deadline=None)
@given(
    history=st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=4).filter(any),
    has_bias=st.booleans(),
    max_logits=st.sampled_from([1, 15, 2**20]),
    seed=st.integers(0, 99),
)
def test_in_batch_is_the_sum_over_clicks_and_candidates(
    history: list[list[int]], has_bias: bool, max_logits: int, seed: int
) -> None:
    positions = torch.tensor([clicks + [0] * (3 - len(clicks)) for clicks in history])
    users, news = normal(len(history), 3, DIM, seed=seed), normal(7, DIM, seed=seed + 1)
    bias = normal(7, seed=seed + 2).detach() if has_bias else None
    ours = in_batch_loss(Users(vectors_BKD=users), positions, news, bias, max_logits=max_logits)
    assert_twins(ours, naive_in_batch(users, positions, news, bias), inputs=[users, news])


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    max_logits=st.sampled_from([1, 15, 2**20]),
    seed=st.integers(0, 99),
)
def test_users_with_several_vectors_learn_in_batch_as_one_click_at_a_time(
    lengths: list[int], max_logits: int, seed: int
) -> None:
    """Prefix t has weights for vectors 0 to t; users are taken by length and cut, which must change nothing."""
    positions = torch.tensor(
        [
            [1 + (user + position) % 6 if position < n else 0 for position in range(3)]
            for user, n in enumerate(lengths)
        ]
    )
    vectors, news = normal(len(lengths), 4, DIM, seed=seed), normal(7, DIM, seed=seed + 1)
    scores = normal(len(lengths), 3, 4, seed=seed + 2)
    is_visible = torch.ones(3, 4, dtype=torch.bool).tril()
    users = Users(
        vectors_BKD=vectors, weights_BPK=scores.masked_fill(~is_visible, -math.inf).softmax(-1), sharpness=2.0
    )
    logits = users.score_all(news)
    losses = []
    for user, own in enumerate(positions.tolist()):
        for position, target in enumerate(own):
            if target:
                others = [one for one in range(1, 7) if one == target or one not in own]
                losses.append(logits[user, position, others].logsumexp(0) - logits[user, position, target])
    ours = in_batch_loss(users, positions, news, max_logits=max_logits)
    assert_twins(ours, torch.stack(losses).mean(), inputs=[vectors, scores, news])


def test_own_clicks_and_padding_are_no_negatives() -> None:
    users, news = normal(2, 2, DIM), normal(5, DIM)
    history = torch.tensor([[1, 2], [3, 0]])
    losses = []
    for user, position, candidates in ((0, 0, [1, 3, 4]), (0, 1, [2, 3, 4]), (1, 0, [3, 1, 2, 4])):
        losses.append(-(users[user, position] @ news[candidates].mT).log_softmax(0)[0])
    assert_twins(
        in_batch_loss(Users(vectors_BKD=users), history, news), torch.stack(losses).mean(), inputs=[users, news]
    )


def test_a_batch_without_clicks_has_no_in_batch_loss() -> None:
    assert (
        in_batch_loss(Users(vectors_BKD=normal(2, 3, DIM)), torch.zeros(2, 3, dtype=torch.long), normal(4, DIM))
        == 0
    )


def test_a_correction_for_popularity_undoes_popularity() -> None:
    """News 1 was clicked 99 times, the others never: uncorrected, a model that knows no taste must learn that."""
    bias = -log_popularity(torch.tensor([0, 99, 0, 0]))
    torch.testing.assert_close(bias[1] - bias[2], torch.tensor(-math.log(100.0)))
    assert log_popularity(torch.tensor([0, 99, 0, 0])).exp().sum() == pytest.approx(1.0)
    users, news = torch.zeros(1, 1, DIM), torch.zeros(4, DIM)
    for target, chance in ((1, 0.01 / 2.01), (2, 1 / 2.01)):
        loss = in_batch_loss(Users(vectors_BKD=users), torch.tensor([[target]]), news, bias)
        assert loss.item() == pytest.approx(-math.log(chance), rel=1e-5)


def test_logits_are_exact_inside_autocast() -> None:
    users, news = normal(2, 3, DIM), normal(7, DIM)
    scaled = users * 30  # products of about 100, where bf16 steps are half a unit
    history = torch.tensor([[1, 2, 3], [4, 5, 0]])
    weights = normal(2, 4, 3, seed=5).detach().softmax(-1)
    users_of = Users(vectors_BKD=scaled), Users(vectors_BKD=scaled[:, :3], weights_BPK=weights[:, :3], sharpness=2)

    def losses() -> list[Tensor]:
        shown = news[torch.stack([history, history.flip(0)], -1)]
        by_click = [next_click_loss(some.score(shown), (history > 0).float()) for some in users_of]
        return by_click + [in_batch_loss(some, history, news) for some in users_of]

    exact = losses()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = losses()
    for ours, expected in zip(mixed, exact, strict=True):
        assert_twins(ours, expected, inputs=[users, news])


HISTORY = torch.tensor([[1, 2, 3], [4, 5, 0]])
NEGATIVES = torch.tensor([[[6], [4], [5]], [[1], [6], [0]]])
HAS_POOL = torch.tensor([[False, True, True], [False, True, False]])
IDS = torch.tensor([0, 11, 12, 13, 14, 15, 16])
LOG_POPULARITY = log_popularity(torch.tensor([0, 5, 0, 2, 2, 9, 1]))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_both_losses_are_mixed_by_their_share(share: float) -> None:
    users, news = normal(2, 3, DIM), normal(7, DIM, seed=3)
    config = LossConfig(in_batch=share, popularity_correction=0.5, temperature=2.0)
    ours = ClickLoss(config, fallback_negatives_weight=0.2, num_news=16)(
        Users(vectors_BKD=users), news, HISTORY, NEGATIVES, HAS_POOL, IDS, LOG_POPULARITY
    )

    weights = torch.tensor([[0.2, 1.0, 1.0], [0.2, 1.0, 0.0]])
    next_click = naive_next_click(users / 2, news[HISTORY], news[NEGATIVES], HISTORY > 0, weights)
    in_batch = naive_in_batch(users / 2, HISTORY, news, -0.5 * LOG_POPULARITY)
    assert_twins(ours, (1 - share) * next_click + share * in_batch, inputs=[users, news])


def test_the_temperature_is_learned_when_asked_for() -> None:
    users = Users(vectors_BKD=normal(2, 3, DIM))
    arguments = users, normal(7, DIM, seed=3), HISTORY, NEGATIVES, HAS_POOL, IDS, LOG_POPULARITY

    def value(temperature: float) -> float:
        config = LossConfig(temperature=temperature, in_batch=0.5, article_bias=False)
        fixed = ClickLoss(config, fallback_negatives_weight=1.0, num_news=16)
        assert not any(parameter.requires_grad for parameter in fixed.parameters())
        return float(fixed(*arguments).detach())

    config = LossConfig(temperature=2.0, in_batch=0.5, learn_temperature=True, article_bias=False)
    learned = ClickLoss(config, fallback_negatives_weight=1.0, num_news=16)
    loss = learned(*arguments)
    assert float(loss.detach()) == value(2.0)
    (gradient,) = torch.autograd.grad(loss, list(learned.parameters()))
    step = 1e-2
    slope = (value(2.0 * math.exp(-step)) - value(2.0 * math.exp(step))) / (2 * step)
    assert gradient.item() == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_bias_of_an_article_is_added_to_its_logits(share: float) -> None:
    users, news = normal(2, 3, DIM), normal(7, DIM, seed=3)
    config = LossConfig(in_batch=share, temperature=2.0, popularity_correction=1.0)
    ours = ClickLoss(config, fallback_negatives_weight=1.0, num_news=16)
    assert ours.bias_V is not None
    with torch.no_grad():
        ours.bias_V[11:] = torch.tensor([0.5, -1.0, 1.5, 0.0, 2.0, -0.5])
    loss = ours(Users(vectors_BKD=users), news, HISTORY, NEGATIVES, HAS_POOL, IDS, LOG_POPULARITY)

    bias = ours.bias_V.detach().clone()[IDS].requires_grad_()
    total = torch.zeros(())
    for user, click in ((HISTORY > 0).nonzero()).tolist():
        target, negative = HISTORY[user, click], NEGATIVES[user, click]
        logits = news @ users[user, click] / 2 + bias
        shown = torch.cat([target[None], negative])
        total = total + (1 - share) * (logits[shown].logsumexp(0) - logits[target])
        others = [n for n in range(1, 7) if n == target or n not in HISTORY[user]]
        corrected = logits - LOG_POPULARITY
        total = total + share * (corrected[others].logsumexp(0) - corrected[target])
    expected = total / int((HISTORY > 0).sum())
    assert_twins(loss, expected, inputs=[users, news])
    (gradient,) = torch.autograd.grad(loss, [ours.bias_V])
    (twin,) = torch.autograd.grad(expected, [bias])
    torch.testing.assert_close(gradient[IDS[1:]], twin[1:])
    assert not gradient[:11].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fallback_negatives_weight": -1.0}, "fallback_negatives_weight -1.0: expected a number from 0"),
        ({"popularity_correction": math.nan}, "popularity_correction nan: expected a number from 0"),
        ({"in_batch": 1.5}, "in_batch 1.5: expected a number from 0 to 1"),
        ({"temperature": 0.0}, "temperature 0.0: expected a number from 1e-06"),
    ],
)
def test_mistakes_in_the_settings_are_told(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LossConfig(**settings)
