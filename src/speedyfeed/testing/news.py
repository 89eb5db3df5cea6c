"""The contract of news encoders: packed articles in, one embedding each out.

Shapes: M articles, K segments, T tokens.
"""

from dataclasses import replace

import torch
from torch import nn

from speedyfeed.errors import InputError
from speedyfeed.models.base import NewsModule
from speedyfeed.models.packed import PackedNews

NEWS: tuple[list[int], ...] = ([5, 3, 7], [4], [], [6, 6], [2, 9, 1])
"""Segment lengths of each article of the contract, in tokens; one has no text, one is a single segment."""


class NewsEncoderContract:
    """What every news encoder must do.

    Needs a fixture `encoder`: a news encoder of width 12 in eval mode, with a vocabulary of 60 tokens.
    """

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

    def test_padding_never_matters(self, encoder: NewsModule) -> None:
        for pad_to in (0, 20):
            self._check_padding(encoder, pad_to)

    def _check_padding(self, encoder: NewsModule, pad_to: int) -> None:
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

    def test_embeddings_depend_on_the_user_exactly_where_the_encoder_says_so(self, encoder: NewsModule) -> None:
        news = some_news()
        theirs = replace(news, user_ids_M=torch.tensor([2, 2, 2, 2, 2]))
        is_user_dependent = not torch.allclose(encoder(theirs)[0], encoder(news)[0])
        assert is_user_dependent == encoder.is_user_dependent
        if is_user_dependent:
            message = ""
            try:
                encoder.encode_all(replace(news, user_ids_M=None))
            except InputError as error:
                message = str(error)
            assert "for every user" in message, "encoding articles without a user must raise InputError"

    def test_a_trial_step_leaves_no_gradient(self, encoder: NewsModule) -> None:
        encoder.trial_step()()
        assert all(parameter.grad is None for parameter in encoder.parameters())


def some_news() -> PackedNews:
    """The articles of `NEWS`, each encoded for user 1."""
    lengths_K = torch.tensor([length for parts in NEWS for length in parts])
    num_tokens = int(lengths_K.sum())
    generator = torch.Generator().manual_seed(4)
    return PackedNews(
        tokens_T=torch.randint(8, 60, (num_tokens,), generator=generator, dtype=torch.int32),
        frequencies_T=torch.randint(5, (num_tokens,), generator=generator, dtype=torch.uint8),
        segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
        news_starts=torch.tensor([0, *(len(parts) for parts in NEWS)]).cumsum(0),
        fields_K=torch.tensor([field for parts in NEWS for field in range(len(parts))], dtype=torch.uint8),
        categories_M=torch.tensor([1, 0, 0, 2, 1]),
        subcategories_M=torch.tensor([1, 1, 0, 2, 0]),
        user_ids_M=torch.ones(len(NEWS), dtype=torch.long),
    )
