"""What every implementation of a seam must do. Subclass a contract in a test file and give it its fixture."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models.base import NewsModule
from speedyfeed.models.packed import PackedNews

LENGTHS = (4, 0, 6, 1)
"""Clicks of the users of a contract's batch: one has none, one fills all places."""


class UserEncoderContract:
    """Needs a fixture `encoder`: a user encoder for embeddings of width 12."""

    def test_one_embedding_per_prefix(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        users = encoder(clicks, clicked)
        assert users.shape == (len(LENGTHS), max(LENGTHS) + 1, 12)
        assert users.dtype == clicks.dtype

    def test_a_later_click_never_changes_an_earlier_prefix(self, encoder: nn.Module) -> None:
        clicks, clicked = some_clicks()
        before = encoder(clicks, clicked)
        for place in range(max(LENGTHS)):
            other = clicks.clone()
            other[:, place] += 10
            after = encoder(other, clicked)
            torch.testing.assert_close(after[:, : place + 1], before[:, : place + 1])
            assert not torch.allclose(after[2, place + 1 :], before[2, place + 1 :])

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


NEWS = ([5, 3, 7], [4], [], [6, 6], [2, 9, 1])
"""Segments of the news of a contract, by their tokens: one has none, one is a single segment."""


class NewsEncoderContract:
    """Needs a fixture `encoder`: a news encoder of width 12 in eval mode that knows 60 tokens."""

    def test_one_embedding_per_news(self, encoder: NewsModule) -> None:
        embeddings = encoder(some_news())
        assert embeddings.shape == (len(NEWS), encoder.dim) == (len(NEWS), 12)
        assert torch.isfinite(embeddings).all()

    def test_news_of_different_text_differ(self, encoder: NewsModule) -> None:
        news = some_news()
        changed = replace(news, tokens_T=torch.where(torch.arange(len(news.tokens_T)) == 1, 7, news.tokens_T))
        before, after = encoder(news), encoder(changed)
        assert not torch.allclose(after[0], before[0])
        torch.testing.assert_close(after[1:], before[1:])

    def test_batch_mates_and_their_order_never_matter(self, encoder: NewsModule) -> None:
        news = some_news()
        together = encoder(news)
        for row in range(len(NEWS)):
            torch.testing.assert_close(encoder(news.select(torch.tensor([row])))[0], together[row])
        order = torch.tensor([3, 0, 4, 0, 2, 1])
        torch.testing.assert_close(encoder(news.select(order)), together[order])

    @pytest.mark.parametrize("pad_to", [0, 20])
    def test_padding_never_matters(self, encoder: NewsModule, pad_to: int) -> None:
        news = some_news()
        has_text = torch.tensor([row for row, parts in enumerate(NEWS) if parts])
        upstream = torch.randn(len(has_text), 12, generator=torch.Generator().manual_seed(3))
        results = []
        for some in (news, replace(news, pad_to=pad_to)):
            encoder.zero_grad()
            embeddings = encoder(some)[has_text]
            (embeddings * upstream).sum().backward()
            gradients = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
            results.append((embeddings.detach(), gradients))
        (plain, gradients), (padded, padded_gradients) = results
        torch.testing.assert_close(padded, plain)
        assert gradients.keys() == padded_gradients.keys()
        assert gradients
        for name, gradient in gradients.items():
            torch.testing.assert_close(padded_gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)

    def test_padding_is_encoded(self, encoder: NewsModule) -> None:
        padded = replace(some_news(), pad_to=20)
        padded = (padded.joined() if encoder.joins else padded).padded()
        assert set(padded.lengths_K.tolist()) == {20}
        assert padded.segments_M.min() > 0
        assert torch.isfinite(encoder(padded)).all()

    def test_no_news_and_news_without_text_are_fine(self, encoder: NewsModule) -> None:
        news = some_news()
        assert encoder(news.select(torch.zeros(0, dtype=torch.long))).shape == (0, 12)
        assert encoder(news.select(torch.tensor([2]))).shape == (1, 12)

    def test_gradients_are_finite_and_reach_everything(self, encoder: NewsModule) -> None:
        encoder(some_news()).square().sum().backward()
        learned = {name: parameter for name, parameter in encoder.named_parameters() if parameter.requires_grad}
        assert learned
        for name, parameter in learned.items():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.any(), name

    def test_bulk_encoding_is_encoding_one_by_one(self, encoder: NewsModule) -> None:
        news = some_news()
        bulk = encoder.encode_all(news, tokens_per_batch=10)
        torch.testing.assert_close(bulk, encoder(news).detach(), rtol=1e-4, atol=1e-5)

    def test_what_is_personal_is_told_and_nothing_else_is(self, encoder: NewsModule) -> None:
        news = some_news()
        theirs = replace(news, user_ids_M=torch.tensor([2, 2, 2, 2, 2]))
        is_user_dependent = not torch.allclose(encoder(theirs)[0], encoder(news)[0])
        assert is_user_dependent == encoder.is_user_dependent
        if is_user_dependent:
            with pytest.raises(InputError, match="for every user"):
                encoder.encode_all(replace(news, user_ids_M=None))

    def test_a_trial_step_leaves_no_gradient(self, encoder: NewsModule) -> None:
        encoder.trial_step()()
        assert all(parameter.grad is None for parameter in encoder.parameters())


def some_news() -> PackedNews:
    """The news of `NEWS`, all read by user 1."""
    lengths_K = torch.tensor([length for parts in NEWS for length in parts])
    num_tokens = int(lengths_K.sum())
    generator = torch.Generator().manual_seed(4)
    return PackedNews(
        tokens_T=torch.randint(8, 60, (num_tokens,), generator=generator, dtype=torch.int32),
        frequencies_T=torch.randint(5, (num_tokens,), generator=generator, dtype=torch.uint8),
        segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
        news_starts=torch.tensor([0, *(len(parts) for parts in NEWS)]).cumsum(0),
        fields_K=torch.tensor([place for parts in NEWS for place in range(len(parts))], dtype=torch.uint8),
        categories_M=torch.tensor([1, 0, 0, 2, 1]),
        subcategories_M=torch.tensor([1, 1, 0, 2, 0]),
        user_ids_M=torch.ones(len(NEWS), dtype=torch.long),
    )


def some_clicks() -> tuple[Tensor, Tensor]:
    """Embeddings (4, 6, 12) and where they are clicks."""
    clicked = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    clicks = torch.randn(*clicked.shape, 12, generator=torch.Generator().manual_seed(5))
    return clicks * clicked[..., None], clicked
