import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.news import CATEGORY_NORM, CATEGORY_WIDTH, NewsEncoder
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import first_position
from speedyfeed.testing import NewsEncoderContract
from speedyfeed.tokenizers import load_tokenizer
from tests.models.families import CONFIGS, build, random_tokens

NEWS = [[5, 3, 4], [], [4], [3, 5], [1]]
"""Segment lengths of five news; the second is padding."""


def make_news(news: list[list[int]] = NEWS) -> PackedNews:
    lengths = torch.tensor([length for parts in news for length in parts])
    tokens = random_tokens(lengths.tolist())
    return PackedNews(
        tokens_T=tokens.to(torch.int32),
        frequencies_T=(tokens % 5).to(torch.uint8),
        segment_starts=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        news_starts=torch.tensor([0, *(len(parts) for parts in news)]).cumsum(0),
        categories_M=torch.arange(len(news)) % 3,
    )


def make_encoder(family: str = "bert", **settings: object) -> NewsEncoder:
    model = build(family)
    model.set_attn_implementation("bus")
    torch.manual_seed(3)
    encoder = NewsEncoder(NewsEncoderConfig(**{"dim": 12, **settings}), model, num_categories=2).eval()
    with torch.no_grad():
        for zero in (encoder.frequency, encoder.over_tokens.query, encoder.over_segments.query):
            zero.weight.normal_(std=0.3)
        if encoder.category is not None:
            encoder.category.weight[1:].normal_()
    return encoder


def padded_twin(encoder: NewsEncoder, news: PackedNews) -> Tensor:
    """The appendix on padded arrays: (news, segments, tokens), masks, and keys spelled out segment by segment."""
    out = []
    for row in range(len(news)):
        one = news.select(torch.tensor([row]))
        lengths = one.lengths_K.tolist()
        width = encoder.encoder.config.hidden_size
        if lengths:
            states = padded_bus(encoder, one, lengths)  # (segments, longest, width)
            mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
            segments = additive(encoder.over_tokens, states, mask)
        else:
            segments = torch.zeros(0, width)
        mask = torch.ones(1, len(segments), dtype=torch.bool)
        pooled = additive(encoder.over_segments, segments[None], mask)[0] if len(segments) else torch.zeros(width)
        out.append(encoder.projection(pooled))
    news_MD = torch.stack(out)
    if encoder.config.normalize:
        news_MD = torch.nn.functional.normalize(news_MD, dim=1)
    if encoder.category is not None:
        assert news.categories_M is not None
        news_MD = torch.cat([news_MD, encoder.category(news.categories_M)], 1)
        news_MD = torch.nn.functional.normalize(news_MD, dim=1) if encoder.config.normalize else news_MD
    return news_MD


def padded_bus(encoder: NewsEncoder, news: PackedNews, lengths: list[int]) -> Tensor:
    """A stock BERT's own modules, layer by layer; keys are [own, bus], own proxy masked in the bus."""
    bert = encoder.encoder
    num, longest = len(lengths), max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    tokens, frequencies = torch.zeros(2, num, longest, dtype=torch.long)
    tokens[mask], frequencies[mask] = news.tokens_T.long(), news.frequencies_T.long()
    embedded = bert.get_input_embeddings()(tokens) + encoder.frequency(frequencies)
    hidden = bert.embeddings(inputs_embeds=embedded, position_ids=torch.arange(longest)[None])
    bus_mask = ~torch.eye(num, dtype=torch.bool) if encoder.config.bus else torch.zeros(num, num, dtype=torch.bool)
    visible = torch.cat([mask, bus_mask], 1)[:, None, None]
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        bus = hidden[:, 0].expand(num, num, -1)
        keys_from = torch.cat([hidden, bus], 1)

        def heads(x: Tensor, module: torch.nn.Module, like: torch.nn.Module = attention) -> Tensor:
            return module(x).unflatten(-1, (like.num_attention_heads, -1)).transpose(1, 2)

        query = heads(hidden, attention.query)
        key, value = heads(keys_from, attention.key), heads(keys_from, attention.value)
        scores = (query @ key.transpose(-1, -2) * attention.scaling).masked_fill(~visible, -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        hidden = layer.feed_forward_chunk(layer.attention.output(attended, hidden))
    return hidden


def additive(layer: torch.nn.Module, items: Tensor, mask: Tensor) -> Tensor:
    scores = layer.query(torch.tanh(layer.project(items))).squeeze(-1)
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1)[..., None] * items).sum(-2)


@pytest.mark.parametrize("settings", [{}, {"bus": False}, {"categories": False}, {"dim": 0}, {"normalize": False}])
def test_packed_encoding_is_the_padded_appendix(settings: dict[str, object]) -> None:
    encoder, news = make_encoder(**settings), make_news()
    upstream = torch.randn(len(news), encoder.dim)
    results = []
    for embed in (encoder, lambda n: padded_twin(encoder, n)):
        encoder.zero_grad()
        out = embed(news)
        (out * upstream).sum().backward()
        results.append((out, {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None}))
    (ours, our_grads), (twin, twin_grads) = results
    torch.testing.assert_close(ours, twin, rtol=1e-5, atol=1e-5)
    assert our_grads.keys() == twin_grads.keys()
    assert "frequency.weight" in our_grads
    for name, gradient in our_grads.items():
        torch.testing.assert_close(gradient, twin_grads[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_makes_news_embeddings(family: str) -> None:
    encoder, news = make_encoder(family), make_news()
    together = encoder(news)
    assert together.shape == (len(NEWS), 12)
    alone = torch.cat([encoder(news.select(torch.tensor([row]))) for row in range(len(news))])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    together.sum().backward()
    assert encoder.frequency.weight.grad is not None
    assert encoder.frequency.weight.grad.abs().sum() > 0


def test_an_untrained_frequency_changes_nothing() -> None:
    model: PreTrainedModel = build("bert")
    model.set_attn_implementation("bus")
    encoder, news = NewsEncoder(NewsEncoderConfig(), model).eval(), make_news()
    layout_free = encoder(news)
    with torch.no_grad():
        encoder.frequency.weight[3].normal_()
    assert not torch.allclose(layout_free, encoder(news))
    with torch.no_grad():
        encoder.frequency.weight.zero_()
    plain = PackedNews(
        tokens_T=news.tokens_T,
        frequencies_T=torch.ones_like(news.frequencies_T),
        segment_starts=news.segment_starts,
        news_starts=news.news_starts,
    )
    torch.testing.assert_close(encoder(plain), layout_free)


def test_bulk_encoding_is_encoding_one_by_one() -> None:
    encoder, news = make_encoder(), make_news([[5, 3], [2], [], [9, 9, 9], [4], [1, 1]])
    encoder.train()
    seen: list[tuple[int, int]] = []
    bulk = encoder.encode_all(
        news, tokens_per_batch=10, report=lambda stage, done, total: seen.append((done, total))
    )
    assert encoder.training
    assert len(seen) > 2
    assert seen[-1] == (6, 6)
    encoder.eval()
    for row in range(len(news)):
        torch.testing.assert_close(bulk[row], encoder(news.select(torch.tensor([row])))[0], rtol=1e-4, atol=1e-5)


def test_only_padding_in_a_batch_is_fine() -> None:
    assert make_encoder()(make_news([[], []])).shape == (2, 12)


def test_minilm_puts_like_texts_together() -> None:
    encoder = NewsEncoder(NewsEncoderConfig(dim=0))
    texts = [
        "Heavy storm floods the coast",
        ("Rain and wind hit seaside towns", "Rivers rise after a storm", ""),
        "Striker scores twice in cup final",
        ("Football team wins the trophy", "Two goals late in the match", "Fans celebrate"),
    ]
    rows = torch.from_numpy(encoder.encode(texts))
    likeness = torch.nn.functional.cosine_similarity(rows[:, None], rows, dim=-1)
    assert likeness[0, 1] > likeness[0, 2:].max()
    assert likeness[2, 3] > likeness[2, :2].max()
    assert encoder.encode(texts[:1]).shape == (1, 384)


def test_minilm_one_segment_is_the_stock_model() -> None:
    from transformers import AutoModel

    from speedyfeed.tokenizers import find_source, parse_encoder

    tokenizer = load_tokenizer("minilm")
    texts = ["Heavy storm floods the coast", "Cup final"]
    encoder = NewsEncoder(NewsEncoderConfig(dim=0))
    stock = AutoModel.from_pretrained(find_source(parse_encoder("minilm"))).eval()
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = stock(**padded).last_hidden_state
        mask = padded["attention_mask"][..., None]
        pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    torch.testing.assert_close(torch.from_numpy(encoder.encode(texts)), pooled, rtol=1e-4, atol=1e-5)


def test_segments_longer_than_the_positions_are_refused() -> None:
    model = build("roberta")  # 40 positions, two of them lost to the offset
    assert first_position(model) == 2
    with pytest.raises(InputError, match="38 positions"):
        NewsEncoder(NewsEncoderConfig(segment_length=39), model)


def test_a_trial_step_leaves_no_gradient() -> None:
    encoder = make_encoder(segment_length=8)
    encoder.trial_step()()
    assert all(p.grad is None for p in encoder.parameters())


def test_a_fitted_projection_takes_the_mean_away_and_keeps_what_tells_news_apart() -> None:
    encoder, news = make_encoder(dim=8, normalize=False, categories=False), make_news()
    pooled = encoder.encode_texts(news)
    encoder.initialize(pooled)
    after = encoder.encode_all(news)
    torch.testing.assert_close(after.mean(0), torch.zeros(8), rtol=0, atol=1e-6)
    spread = torch.linalg.svdvals(pooled - pooled.mean(0))
    assert float((after**2).sum()) == pytest.approx(float((spread[:8] ** 2).sum()), rel=1e-4)


def test_categories_have_dimensions_of_their_own_and_unknown_ones_are_zero() -> None:
    encoder, news = make_encoder(dim=8), make_news()
    encoder.initialize(encoder.encode_texts(news))
    weight = encoder.category.weight.detach()
    torch.testing.assert_close(weight @ weight.T, CATEGORY_NORM**2 * torch.diag(torch.tensor([0.0, 1.0, 1.0])))
    with_MD, bare_MD = encoder.encode_all(news), encoder.encode_all(replace(news, categories_M=None))
    unknown_MD = encoder.encode_all(replace(news, categories_M=torch.zeros(5, dtype=torch.long)))
    torch.testing.assert_close(unknown_MD, bare_MD)
    assert not bare_MD[:, 6:].any()
    is_known_M = news.categories_M > 0
    shrunk = 1 / math.sqrt(1 + CATEGORY_NORM**2)
    torch.testing.assert_close(with_MD[is_known_M, :6], shrunk * bare_MD[is_known_M, :6])
    assert make_encoder(dim=0).dim == encoder.width + CATEGORY_WIDTH


def test_embeddings_have_length_one_unless_told_otherwise() -> None:
    news = make_news([[5, 3, 4], [4], [3, 5]])
    torch.testing.assert_close(make_encoder().encode_all(news).norm(dim=1), torch.ones(3))
    assert (make_encoder(normalize=False).encode_all(news).norm(dim=1) - 1).abs().max() > 0.01


@pytest.fixture(params=[{}, {"segments": False}, {"categories": False}, {"bus": False}], ids=str)
def encoder(request: pytest.FixtureRequest) -> NewsEncoder:
    return make_encoder(**request.param)


class TestEveryNewsEncoder(NewsEncoderContract):
    pass


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("segments", [True, False])
def test_padding_never_matters_in_any_family(family: str, segments: bool) -> None:
    encoder, news = make_encoder(family, segments=segments, segment_length=8), make_news()
    has_text = torch.tensor([bool(parts) for parts in NEWS])
    plain = encoder(news)[has_text]
    for backend in ("grouped", "dense"):
        encoder.config = replace(encoder.config, backend=backend)
        padded = encoder(replace(news, pad_to=0))
        assert torch.isfinite(padded).all()
        torch.testing.assert_close(padded[has_text], plain, rtol=1e-4, atol=1e-5)


def test_one_sequence_is_the_stock_model_on_the_whole_news() -> None:
    encoder, news = make_encoder(segments=False, categories=False), make_news([[5, 3, 4]])
    encoder.encoder.set_attn_implementation("eager")
    tokens, frequencies = news.tokens_T.long(), news.frequencies_T.long()
    embedded = encoder.encoder.get_input_embeddings()(tokens) + encoder.frequency(frequencies)
    hidden = encoder.encoder(inputs_embeds=embedded[None]).last_hidden_state
    pooled = additive(encoder.over_tokens, hidden, torch.ones(1, 12, dtype=torch.bool))
    expected = torch.nn.functional.normalize(encoder.projection(pooled), dim=1)
    encoder.encoder.set_attn_implementation("bus")
    torch.testing.assert_close(encoder(news), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder(replace(news, pad_to=20)), expected, rtol=1e-4, atol=1e-5)
