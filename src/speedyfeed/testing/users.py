"""The contract of user encoders: clicks in, one user embedding per prefix of the clicks out.

B users   L clicks   D width
"""

import torch
from torch import Tensor, nn

LENGTHS = (4, 0, 6, 1)
"""Number of clicks of each user in the contract's batch; one has none, one fills all positions."""


class UserEncoderContract:
    """What every user encoder must do. Needs a fixture `encoder`: one for news embeddings of width 12."""

    def test_one_embedding_per_prefix(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        users = encoder(clicks, clicked)
        assert users.shape == (len(LENGTHS), max(LENGTHS) + 1, 12)
        assert users.dtype == clicks.dtype

    def test_a_later_click_never_changes_an_earlier_prefix(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        before = encoder(clicks, clicked)
        for position in range(max(LENGTHS)):
            other = clicks.clone()
            other[:, position] += 10
            after = encoder(other, clicked)
            torch.testing.assert_close(after[:, : position + 1], before[:, : position + 1])
            assert not torch.allclose(after[2, position + 1 :], before[2, position + 1 :])

    def test_a_prefix_is_the_same_without_what_came_after(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        whole = encoder(clicks, clicked)
        for length in range(max(LENGTHS)):
            torch.testing.assert_close(encoder(clicks[:, :length], clicked[:, :length]), whole[:, : length + 1])

    def test_what_stands_at_padding_never_matters(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        before = encoder(clicks, clicked)
        other = torch.where(clicked[..., None], clicks, torch.full_like(clicks, 1e3)).requires_grad_()
        after = encoder(other, clicked)
        torch.testing.assert_close(after, before)
        (gradient,) = torch.autograd.grad(after.square().sum(), other)
        assert not gradient[~clicked].any()
        assert gradient[clicked].any()

    def test_more_padding_never_matters(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        before = encoder(clicks, clicked)
        after = encoder(nn.functional.pad(clicks, (0, 0, 0, 3), value=7.0), nn.functional.pad(clicked, (0, 3)))
        torch.testing.assert_close(after[:, : before.size(1)], before)

    def test_after_the_last_click_the_row_stays(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        users = encoder(clicks, clicked)
        for user, length in zip(users, LENGTHS, strict=True):
            torch.testing.assert_close(user[length:], user[length].expand_as(user[length:]))

    def test_batch_mates_never_matter(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        together = encoder(clicks, clicked)
        alone = [encoder(clicks[[b]], clicked[[b]]) for b in range(len(LENGTHS))]
        torch.testing.assert_close(torch.cat(alone), together)
        order = torch.tensor([2, 0, 3, 1])
        torch.testing.assert_close(encoder(clicks[order], clicked[order]), together[order])

    def test_an_empty_history_is_the_learned_start(self, encoder: nn.Module) -> None:
        nothing = encoder(torch.zeros(3, 0, 12), torch.zeros(3, 0, dtype=torch.bool))
        assert nothing.shape == (3, 1, 12)
        clicks, clicked = some_clicks()
        torch.testing.assert_close(encoder(clicks, clicked)[:, :1], nothing[:1].expand(len(LENGTHS), 1, 12))
        gradients = torch.autograd.grad(nothing.sum(), list(encoder.parameters()), allow_unused=True)
        assert any(gradient is not None and gradient.any() for gradient in gradients)

    def test_gradients_are_finite_and_reach_everything(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        clicks = (clicks * 30).requires_grad_()  # large enough to saturate a softmax
        users = encoder(clicks, clicked)
        gradients = torch.autograd.grad(users.square().sum(), [clicks, *encoder.parameters()])
        assert all(torch.isfinite(gradient).all() and gradient.any() for gradient in gradients)

    def test_the_same_twice_in_eval_mode(self, encoder: nn.Module) -> None:
        encoder.eval()
        clicks, clicked = some_clicks()
        assert torch.equal(encoder(clicks, clicked), encoder(clicks, clicked))


def some_clicks() -> tuple[Tensor, Tensor]:
    """Embeddings of clicks, (4, 6, 12), and a mask that is False at padding, (4, 6)."""
    clicked = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    clicks = torch.randn(*clicked.shape, 12, generator=torch.Generator().manual_seed(5))
    return clicks * clicked[..., None], clicked
