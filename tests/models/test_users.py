import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.config import UserConfig
from speedyfeed.models.users import (
    RECENCY,
    RECENCY_SCALE,
    USER_ENCODERS,
    AttentiveUser,
    SelfAttentionUser,
    build_user_encoder,
    weigh_clicks,
)
from speedyfeed.testing import UserEncoderContract

DIM = 12


def build(name: str, seed: int = 0) -> nn.Module:
    """A user encoder whose start vector and scores have been learned, not left at zero."""
    torch.manual_seed(seed)
    config = UserConfig(name=name, heads=3, query_width=7, id_width=5)
    encoder = build_user_encoder(config, dim=DIM, user_embeddings=nn.Embedding(3, 5))
    with torch.no_grad():
        assert isinstance(encoder.start, Tensor)
        encoder.start.normal_()
        if name == "attentive":
            encoder.score.weight.normal_()
            encoder.recency.normal_(std=1 / RECENCY_SCALE)
    return encoder


@pytest.fixture(params=list(USER_ENCODERS))
def encoder(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param)


class TestEveryUserEncoder(UserEncoderContract):
    pass


def one_prefix(encoder: nn.Module, name: str, clicks: Tensor, user: int) -> Tensor:
    """The user after these clicks (clicks, width), by the formula, one head and one click at a time."""
    items = [encoder.start, *clicks]
    if name in ("gru", "lstur-ini", "lstur-con"):
        long = encoder.long_term(encoder.user_embeddings.weight[user]) if name != "gru" else torch.zeros(DIM)
        state = long if name == "lstur-ini" else torch.zeros(DIM)
        for item in items:
            gates = zip(
                (encoder.gru.weight_ih_l0 @ item + encoder.gru.bias_ih_l0).chunk(3),
                (encoder.gru.weight_hh_l0 @ state + encoder.gru.bias_hh_l0).chunk(3),
                strict=True,
            )
            (reset_x, reset_h), (keep_x, keep_h), (new_x, new_h) = gates
            keep = torch.sigmoid(keep_x + keep_h)
            state = keep * state + (1 - keep) * torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        return encoder.join(torch.cat([state, long])) if name == "lstur-con" else state
    if name == "self-attention":
        items = [attend(encoder, items[: position + 1]) for position in range(len(items))]
    if name == "attentive":
        if not len(clicks):
            return encoder.start * 1
        recency = RECENCY_SCALE * encoder.recency[: len(clicks)].flip(0)
        scores = [encoder.score.weight[0] @ click + recency[position] for position, click in enumerate(clicks)]
        return weighted(scores, list(clicks))
    if name == "npa":
        query = torch.relu(encoder.user_query.query(encoder.user_query.user_embeddings.weight[user]))
        scores = [query @ torch.tanh(encoder.user_query.project(item)) for item in items]
    else:
        linear, _, query = encoder.score
        scores = [query.weight[0] @ torch.tanh(linear.weight @ item + linear.bias) for item in items]
    return weighted(scores, items)


def attend(encoder: nn.Module, items: list[Tensor]) -> Tensor:
    """What the last item sees of all, head by head."""
    projected = [(encoder.project.weight @ item + encoder.project.bias).view(3, 3, 4) for item in items]
    seen = []
    for head in range(3):
        scores = [projected[-1][0, head] @ item[1, head] / math.sqrt(4) for item in projected]
        seen.append(weighted(scores, [item[2, head] for item in projected]))
    return torch.cat(seen)


def weighted(scores: list[Tensor], items: list[Tensor]) -> Tensor:
    weights = torch.stack(scores).softmax(0)
    return sum((weight * item for weight, item in zip(weights, items, strict=True)), torch.zeros_like(items[0]))


@pytest.mark.parametrize("name", list(USER_ENCODERS))
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_all_prefixes_at_once_are_each_prefix_alone(name: str, lengths: list[int], seed: int) -> None:
    encoder = build(name, seed)
    clicked = torch.arange(5) < torch.tensor(lengths)[:, None]
    clicks = torch.randn(len(lengths), 5, DIM).requires_grad_()
    upstream = torch.randn(len(lengths), 6, DIM)

    rows = [
        one_prefix(encoder, name, clicks[user, : min(prefix, length)], user % 3)
        for user, length in enumerate(lengths)
        for prefix in range(6)
    ]
    twin = torch.stack(rows).view_as(upstream)
    users = encoder(clicks, clicked, torch.arange(len(lengths)) % 3)
    torch.testing.assert_close(users, twin, rtol=1e-5, atol=1e-5)

    parameters = dict(encoder.named_parameters())
    inputs = [clicks, *parameters.values()]
    # A weight of recency moves scores by ten times its change, and its gradient is as much longer and less exact.
    units = [1.0, *(RECENCY_SCALE if parameter == "recency" else 1.0 for parameter in parameters)]
    wanted = torch.autograd.grad((twin * upstream).sum(), inputs, allow_unused=True)
    gradients = torch.autograd.grad((users * upstream).sum(), inputs)
    for gradient, expected, unit in zip(gradients, wanted, units, strict=True):
        expected = torch.zeros_like(gradient) if expected is None else expected
        torch.testing.assert_close(gradient / unit, expected / unit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(USER_ENCODERS))
def test_the_user_id_matters_to_encoders_that_use_it(name: str) -> None:
    encoder = build(name)
    clicks, clicked = torch.randn(2, 4, DIM), torch.ones(2, 4, dtype=torch.bool)
    unknown = encoder(clicks, clicked)
    torch.testing.assert_close(encoder(clicks, clicked, torch.tensor([0, 0])), unknown)
    users = encoder(clicks, clicked, torch.tensor([0, 2]))
    torch.testing.assert_close(users[0], unknown[0])
    assert torch.allclose(users[1], unknown[1]) != UserConfig(name=name).uses_user_ids


def test_attentive_weights_by_hand() -> None:
    encoder = AttentiveUser(dim=1)
    with torch.no_grad():
        encoder.score.weight.fill_(1.0)
        encoder.start.fill_(5.0)
    two = math.log(2.0)  # a click of that value weighs twice as much as one of zero
    users = encoder(torch.tensor([[[0.0], [two], [two]]]), torch.ones(1, 3, dtype=torch.bool))
    assert users.flatten().tolist() == pytest.approx([5.0, 0.0, two * 2 / 3, two * 4 / 5])
    with torch.no_grad():
        encoder.score.weight.zero_()
        encoder.recency[0] = two / RECENCY_SCALE  # the latest click weighs twice as much as each other one
    users = encoder(torch.tensor([[[0.0], [0.0], [1.0], [7.0]]]), torch.tensor([[True, True, True, False]]))
    assert users.flatten().tolist() == pytest.approx([5.0, 0.0, 0.0, 1 / 2, 1 / 2])


def test_clicks_older_than_those_with_a_weight_of_their_own_share_the_last() -> None:
    encoder = AttentiveUser(dim=1)
    with torch.no_grad():
        encoder.recency[-1] = -1e3
    clicks = torch.cat([torch.full((1, 9, 1), 5.0), torch.ones(1, RECENCY - 1, 1)], 1)
    users = encoder(clicks, torch.ones(clicks.shape[:2], dtype=torch.bool))
    assert users[0, -1].item() == pytest.approx(1.0)
    assert users[0, 9].item() == pytest.approx(5.0)


def test_without_recency_the_order_of_the_clicks_does_not_matter() -> None:
    encoder = build_user_encoder(UserConfig(recency=False), dim=DIM)
    assert {name for name, _ in encoder.named_parameters()} == {"start", "score.weight"}
    with torch.no_grad():
        encoder.score.weight.normal_()
    clicks, clicked = torch.randn(1, 4, DIM), torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(encoder(clicks, clicked)[:, -1], encoder(clicks.flip(1), clicked)[:, -1])


def test_an_untrained_attentive_user_is_the_mean_of_the_clicks() -> None:
    clicks = torch.randn(1, 3, DIM)
    users = AttentiveUser(dim=DIM)(clicks, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(users[0, 3], clicks[0].mean(0))
    assert not users[0, 0].any()


def test_a_much_higher_later_score_does_not_blank_out_earlier_prefixes() -> None:
    encoder = AttentiveUser(dim=1)
    with torch.no_grad():
        encoder.score.weight.fill_(1.0)
    users = encoder(torch.tensor([[[-200.0], [300.0]]]), torch.ones(1, 2, dtype=torch.bool))
    assert users.flatten().tolist() == [0.0, -200.0, 300.0]


def test_mixed_precision_stays_close_to_full(encoder: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    clicks = torch.randn(3, 6, DIM, generator=generator)
    clicked = torch.arange(6) < torch.tensor([6, 2, 0])[:, None]
    with torch.autocast("cpu", torch.bfloat16):
        users = encoder(clicks, clicked)
    torch.testing.assert_close(users.float(), encoder(clicks, clicked), rtol=0.05, atol=0.05)


def test_mistakes_in_the_settings_are_told() -> None:
    with pytest.raises(InputError, match="no user encoder 'nrms': choose attentive, self-attention"):
        build_user_encoder(UserConfig(name="nrms"), dim=DIM)
    with pytest.raises(InputError, match="5 attention heads do not divide embeddings of width 12"):
        SelfAttentionUser(dim=12, heads=5)
    with pytest.raises(InputError, match=r"id_dropout 1.5: expected a number from 0 to 1"):
        UserConfig(id_dropout=1.5)


@pytest.mark.parametrize("name", ["attentive", "additive"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_the_user_is_the_start_and_the_clicks_by_their_weights(name, length):
    encoder, clicks = build(name), torch.randn(length, DIM)
    weights = weigh_clicks(encoder, clicks)
    start_weight = 1 - weights.sum()
    user = encoder(clicks[None], torch.ones(1, length, dtype=torch.bool))[0, -1]
    torch.testing.assert_close(start_weight * encoder.start + weights @ clicks, user)


def test_weights_are_shares_where_clicks_see_each_other_and_absent_where_nothing_is_summed():
    clicks = torch.randn(4, DIM)
    weights = weigh_clicks(build("self-attention"), clicks)
    assert weights.shape == (4,)
    assert 0 < weights.sum().item() < 1
    assert weigh_clicks(build("gru"), clicks) is None
