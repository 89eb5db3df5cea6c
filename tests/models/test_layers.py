import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speedyfeed.models.layers import AdditiveAttention


@settings(max_examples=40, deadline=None)
@given(owners=st.lists(st.integers(0, 4), min_size=1, max_size=20), seed=st.integers(0, 9))
def test_ragged_attention_is_the_attention_of_each_owner_alone(owners: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    layer = AdditiveAttention(6, query_width=4).double()
    torch.nn.init.normal_(layer.query.weight)
    items = torch.randn(len(owners), 6, dtype=torch.float64, requires_grad=True)
    owner = torch.tensor(owners)
    upstream = torch.randn(5, 6)

    rows = []
    for number in range(5):
        mine = items[owner == number]
        alpha = layer.query(torch.tanh(mine @ layer.project.weight.T + layer.project.bias)).softmax(0)
        rows.append((alpha * mine).sum(0))
    twin = torch.stack(rows)
    wanted = torch.autograd.grad((twin * upstream).sum(), [items, *layer.parameters()])

    ours = layer(items, owner, 5)
    gradients = torch.autograd.grad((ours * upstream).sum(), [items, *layer.parameters()])
    torch.testing.assert_close(ours.double(), twin, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_untrained_it_is_the_mean() -> None:
    items, owners = torch.randn(5, 6), torch.tensor([0, 1, 0, 1, 1])
    means = torch.stack([items[[0, 2]].mean(0), items[[1, 3, 4]].mean(0)])
    torch.testing.assert_close(AdditiveAttention(6)(items, owners, 2), means)


def test_large_scores_do_not_overflow() -> None:
    layer = AdditiveAttention(2, query_width=2)
    with torch.no_grad():
        layer.query.weight.fill_(1e4)
    out = layer(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 0]), 2)
    assert torch.isfinite(out).all()
    assert out[1].tolist() == [0.0, 0.0]
