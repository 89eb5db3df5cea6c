import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from speedyfeed.errors import InputError
from speedyfeed.models.bus import (
    BACKENDS,
    Group,
    Layout,
    Scoring,
    _build_varlen,
    _choose,
    _dense,
    _grouped,
    build_layout,
    bus_attention,
)
from tests.models.families import (
    CONFIGS,
    LENGTHS,
    build,
    error,
    gradient_error,
    packed_pass,
    random_tokens,
    stock_pass,
)

SEGMENTS = [2, 3, 1]
shapes = st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=5).filter(lambda news: any(news))


def layout_of(news: list[list[int]], **keywords: object) -> Layout:
    """The layout of news given as lists of segment lengths."""
    lengths = torch.tensor([length for segments in news for length in segments])
    return build_layout(lengths, torch.tensor([len(segments) for segments in news]), **keywords)


@pytest.mark.parametrize("family", CONFIGS)
def test_one_segment_packed_is_the_stock_model(family: str) -> None:
    model, tokens = build(family), random_tokens(LENGTHS)
    ours = packed_pass(model, tokens, LENGTHS, [1] * len(LENGTHS))
    theirs = stock_pass(model, tokens, LENGTHS)
    assert error(ours.hidden, theirs.hidden) <= 1e-5
    assert gradient_error(ours, theirs) <= 1e-5


@pytest.mark.parametrize("family", CONFIGS)
def test_segments_without_bus_are_the_stock_model_too(family: str) -> None:
    model, tokens = build(family), random_tokens(LENGTHS)
    ours = packed_pass(model, tokens, LENGTHS, SEGMENTS, bus=False)
    theirs = stock_pass(model, tokens, LENGTHS)
    assert error(ours.hidden, theirs.hidden) <= 1e-5


@pytest.mark.parametrize("family", CONFIGS)
def test_grouped_bus_is_the_dense_reference(family: str) -> None:
    model, tokens = build(family), random_tokens(LENGTHS)
    grouped = packed_pass(model, tokens, LENGTHS, SEGMENTS, backend="grouped")
    dense = packed_pass(model, tokens, LENGTHS, SEGMENTS, backend="dense")
    assert error(grouped.hidden, dense.hidden) <= 1e-5
    assert gradient_error(grouped, dense) <= 1e-5


def test_the_bus_carries_something() -> None:
    model, tokens = build("bert"), random_tokens(LENGTHS)
    joined = packed_pass(model, tokens, LENGTHS, SEGMENTS).hidden
    apart = packed_pass(model, tokens, LENGTHS, SEGMENTS, bus=False).hidden
    alone = sum(LENGTHS[:5])  # the last news has one segment: nobody to talk to
    assert error(joined[:alone], apart[:alone]) > 1e-2
    assert error(joined[alone:], apart[alone:]) <= 1e-5


def test_an_article_does_not_see_its_neighbours() -> None:
    model, tokens = build("bert"), random_tokens(LENGTHS)
    together = packed_pass(model, tokens, LENGTHS, SEGMENTS).hidden
    first = sum(LENGTHS[:2])
    by_itself = packed_pass(model, tokens[:first], LENGTHS[:2], SEGMENTS[:1]).hidden
    assert error(together[:first], by_itself) <= 1e-5


def test_keys_are_own_tokens_and_the_other_first_tokens() -> None:
    """Two news, of 2 and 1 segments: each query's keys by hand."""
    layout = layout_of([[3, 2], [2]])
    # packed: news 1's 2 tokens, news 0's second segment (2), then its first (3)
    assert layout.order_T.tolist() == [5, 6, 3, 4, 0, 1, 2]
    assert layout.groups == (
        Group(num_segments=1, length=2, others=0),
        Group(num_segments=1, length=2, others=1),
        Group(num_segments=1, length=3, others=1),
    )
    assert layout.bus_index.tolist() == [4, 2]  # each sees where the other begins
    varlen = _build_varlen(torch.tensor([2, 2, 3]), torch.tensor([0, 1, 1]), layout.bus_index, torch.device("cpu"))
    assert varlen.key_index.tolist() == [0, 1, 2, 3, 4, 4, 5, 6, 2]
    assert varlen.query_starts.tolist() == [0, 2, 4, 7]
    assert varlen.key_starts.tolist() == [0, 2, 5, 9]
    assert (varlen.max_query, varlen.max_key) == (3, 4)


@settings(max_examples=60, deadline=None)
@given(news=shapes, bus=st.booleans(), window=st.sampled_from([None, 2, 4]), seed=st.integers(0, 9))
def test_any_layout_grouped_is_dense(news: list[list[int]], bus: bool, window: int | None, seed: int) -> None:
    layout = layout_of(news, bus=bus)
    generator = torch.Generator().manual_seed(seed)
    size = (len(layout.order_T), 2, 3)
    query, key, value = (
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    table = torch.randn(2, 13, generator=generator, dtype=torch.float64, requires_grad=True)

    def bias(length: int, others: int) -> Tensor:
        position = torch.arange(length)
        own = table[:, position - position[:, None] + 6]
        return torch.cat([own, table[:, -1:, None].expand(2, length, others)], 2)

    scoring = Scoring(scaling=0.7, dropout=0.0, window=window, bias=bias)
    upstream = torch.randn(size, generator=generator, dtype=torch.float64)
    results = []
    for attend in (_grouped, _dense):
        out = attend(query, key, value, layout, scoring)
        gradients = torch.autograd.grad((out * upstream).sum(), (query, key, value, table), allow_unused=True)
        results.append((out, *gradients))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(news=shapes, bus=st.booleans())
def test_the_varlen_keys_are_the_grouped_keys(news: list[list[int]], bus: bool) -> None:
    """Attention over `Varlen`'s own ranges, one segment at a time: what the CUDA kernel is asked to compute."""
    layout = layout_of(news, bus=bus)
    shape = [(g.length, g.others) for g in layout.groups for _ in range(g.num_segments)]
    lengths, others = (torch.tensor(column) for column in zip(*shape, strict=True))
    varlen = _build_varlen(lengths, others, layout.bus_index, torch.device("cpu"))
    query, key, value = torch.randn(3, len(layout.order_T), 2, 3)
    keys, values = key[varlen.key_index], value[varlen.key_index]
    parts = []
    for segment in range(len(shape)):
        q = query[varlen.query_starts[segment] : varlen.query_starts[segment + 1]]
        seen = slice(int(varlen.key_starts[segment]), int(varlen.key_starts[segment + 1]))
        weights = torch.einsum("iah,jah->aij", q, keys[seen]).softmax(-1)
        parts.append(torch.einsum("aij,jah->iah", weights, values[seen]))
    scoring = Scoring(scaling=1.0, dropout=0.0, window=None, bias=None)
    torch.testing.assert_close(torch.cat(parts), _grouped(query, key, value, layout, scoring))


def test_bf16_attention_is_fp32_attention_rounded() -> None:
    layout = layout_of([[9, 4, 7], [3], [9, 2], [5]])
    generator = torch.Generator().manual_seed(0)
    upstream, *inputs = torch.randn(4, 1, 2, len(layout.order_T), 16, generator=generator).bfloat16()

    def attend(dtype: torch.dtype) -> list[Tensor]:
        leaves = [one.to(dtype).requires_grad_() for one in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out, _ = bus_attention(torch.nn.Identity(), *leaves, None, layout=layout)
        return [out, *torch.autograd.grad(out, leaves, upstream.transpose(1, 2).to(dtype))]

    trained, exact = attend(torch.bfloat16), attend(torch.float32)
    for ours, theirs in zip(trained, exact, strict=True):
        assert torch.equal(ours, theirs.bfloat16())
    with torch.no_grad():
        encoded, _ = bus_attention(torch.nn.Identity(), *inputs, None, layout=layout)
    torch.testing.assert_close(encoded, trained[0], rtol=2**-7, atol=2**-7)


def test_attention_dropout_drops() -> None:
    layout = layout_of([[4, 4], [4]])
    query, key = torch.zeros(2, 12, 1, 2)
    value = torch.ones(12, 1, 2)
    torch.manual_seed(0)
    for attend in (_grouped, _dense):
        out = attend(query, key, value, layout, Scoring(scaling=1.0, dropout=0.5, window=None, bias=None))
        assert out.unique().numel() > 1  # without dropout every weighted mean of ones is one
        assert 0.5 < float(out.mean()) < 1.5


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    model, tokens = build(family), random_tokens(LENGTHS)
    plain = packed_pass(model, tokens, LENGTHS, SEGMENTS)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    again = packed_pass(model, tokens, LENGTHS, SEGMENTS)
    assert error(again.hidden, plain.hidden) <= 1e-6
    assert gradient_error(again, plain) <= 1e-5


def test_a_compiled_encoder_gives_the_same_for_any_layout() -> None:
    model, tokens = build("bert"), random_tokens(LENGTHS)
    expected = [packed_pass(model, tokens, LENGTHS, segments) for segments in (SEGMENTS, [6])]
    model.forward = torch.compile(model.forward, backend="aot_eager", dynamic=True)
    for segments, plain in zip((SEGMENTS, [6]), expected, strict=True):
        compiled = packed_pass(model, tokens, LENGTHS, segments)
        assert error(compiled.hidden, plain.hidden) <= 1e-5
        assert gradient_error(compiled, plain) <= 1e-5


def test_work_and_memory_grow_with_the_tokens_not_their_square() -> None:
    """Twice the articles, twice the scores; a score matrix over the batch would be four times."""

    def scores(num_news: int) -> int:
        layout = layout_of([[30, 12, 25]] * num_news)
        return sum(g.num_segments * g.length * (g.length + g.others) for g in layout.groups)

    assert scores(64) == 2 * scores(32)
    assert scores(64) < (64 * 67) ** 2 / 50


def test_wrong_backends_are_refused() -> None:
    with pytest.raises(InputError, match=", ".join(BACKENDS)):
        layout_of([[3]], backend="flash")
    with pytest.raises(InputError, match="needs CUDA"):
        layout_of([[3]], backend="varlen")


@pytest.mark.parametrize(("capability", "chosen"), [((7, 5), "grouped"), ((8, 0), "varlen"), ((9, 0), "varlen")])
def test_gpus_without_flash_attention_run_grouped(
    capability: tuple[int, int], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    device = torch.device("cuda")
    assert _choose("auto", device) == chosen
    assert _choose("grouped", device) == "grouped"
    if chosen == "grouped":
        with pytest.raises(InputError, match=r"compute capability 8\.0 or later, this one has 7\.5"):
            _choose("varlen", device)
