"""BusLM as an attention function: segments in one packed row of tokens, joined by their first tokens.

The input is a row of tokens without padding; each segment attends to its own tokens and, over the bus, to the
first tokens of the other segments of the same article. A segment's own first token is not repeated, so an article
of one segment is encoded exactly as by the pretrained model. Importing this module registers the function with
transformers as attention implementation `bus`; the layout is passed as the keyword argument `layout`.

`build_layout` sorts segments by how many others they see, then by length, so that equal shapes are adjacent:

    caller's order   news 0: aaa bb   news 1: cc   news 2: ddd ee
    packed order     cc | bb ee | aaa ddd              groups of 1, 2 and 2 segments

A group is then a view of the packed row: attention inside it needs no padding and no mask, and only the bus is
gathered. Cost: the sum over segments of length x (length + others); nothing is quadratic in the batch.

Shapes: T packed tokens   K segments   M articles
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from speedyfeed.errors import InputError
from speedyfeed.models.packed import count_up

BACKENDS = ("auto", "dense", "grouped", "varlen")
VARLEN_CAPABILITY = (8, 0)
"""Compute capability from which on GPUs have the flash attention that `varlen` needs."""
VARLEN_DTYPES = (torch.bfloat16, torch.float16)

Bias = Callable[[int, int], Tensor]
"""(length, others) -> bias of the scores, (heads, length, length + others): own tokens first, then the bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Segments of one shape, adjacent in the packed row."""

    num_segments: int
    length: int
    others: int
    """Number of bus tokens that each segment sees: the first tokens of the other segments of its article."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Varlen:
    """Segments for a kernel that takes unequal lengths; keys are own tokens, then the bus."""

    key_index: Tensor
    """Packed position of every key, segment after segment."""
    query_starts: Tensor
    key_starts: Tensor
    max_query: int
    max_key: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Positions of the segments in the packed row, and the first tokens that each of them sees."""

    order_T: Tensor
    """Packed position -> position in the caller's order."""
    order_K: Tensor
    """Packed segment -> segment in the caller's order."""
    segment_T: Tensor
    """Packed position -> packed segment."""
    position_T: Tensor
    """Packed position -> position inside the segment, from 0."""
    news_K: Tensor
    """Packed segment -> article."""
    bus_index: Tensor
    """Packed positions of the first tokens that each segment sees, segment after segment."""
    has_bus: bool
    groups: tuple[Group, ...]
    backend: str
    varlen: Varlen | None
    is_padding_T: Tensor | None = None
    """Packed position -> whether it is padding, which first tokens never are; None where there is no padding."""


def build_layout(
    lengths_K: Tensor,
    segments_M: Tensor,
    *,
    bus: bool = True,
    backend: str = "auto",
    device: torch.device | str = "cpu",
    is_padding_T: Tensor | None = None,
) -> Layout:
    """Lay out articles of `segments_M` segments, which have `lengths_K` tokens; both in host memory.

    Built once per batch in a few vector operations and used by every layer. Without `bus` every segment is encoded
    on its own. `is_padding_T` is for comparison only: it shows what fixed shapes cost.
    """
    device = torch.device(device)
    backend = _choose(backend, device)
    news_K = torch.repeat_interleave(segments_M)
    starts_M = segments_M.cumsum(0) - segments_M
    others_K = segments_M[news_K] - 1 if bus else torch.zeros_like(news_K)
    order_K = torch.argsort(others_K * (int(lengths_K.max()) + 1) + lengths_K, stable=True)
    lengths, others, news = lengths_K[order_K], others_K[order_K], news_K[order_K]

    starts_K = lengths_K.cumsum(0) - lengths_K
    segment_T = torch.repeat_interleave(lengths)
    position_T = count_up(lengths)
    order_T = starts_K[order_K][segment_T] + position_T

    # The j-th other segment of an article, seen from its r-th, is the j-th if j < r, else the (j + 1)-th.
    viewer, j = torch.repeat_interleave(others), count_up(others)
    rank = (order_K - starts_M[news])[viewer]
    seen = starts_M[news][viewer] + j + (j >= rank)
    first_K = torch.empty_like(starts_K)
    first_K[order_K] = lengths.cumsum(0) - lengths
    bus_index = first_K[seen]

    shapes, counts = torch.unique_consecutive(torch.stack([others, lengths], 1), dim=0, return_counts=True)
    groups = tuple(
        Group(num_segments=count, length=length, others=other)
        for (other, length), count in zip(shapes.tolist(), counts.tolist(), strict=True)
    )
    return Layout(
        order_T=order_T.to(device, non_blocking=True),
        order_K=order_K.to(device, non_blocking=True),
        segment_T=segment_T.to(device, non_blocking=True),
        position_T=position_T.to(device, non_blocking=True),
        news_K=news.to(device, non_blocking=True),
        bus_index=bus_index.to(device, non_blocking=True),
        has_bus=bus,
        groups=groups,
        backend=backend,
        varlen=_build_varlen(lengths, others, bus_index, device) if backend == "varlen" else None,
        is_padding_T=None if is_padding_T is None else is_padding_T[order_T].to(device, non_blocking=True),
    )


def bus_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    bias: Bias | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Bus attention for transformers: (1, heads, T, head width) in, (1, T, heads, head width) out.

    A sliding window limits what a token sees of its own segment; the bus is always visible.
    """
    assert attention_mask is None, "packed tokens take no mask"
    longest = max(group.length for group in layout.groups)
    scoring = Scoring(
        scaling=query.size(-1) ** -0.5 if scaling is None else scaling,
        dropout=dropout,
        window=None if sliding_window is None or sliding_window >= longest else sliding_window,
        bias=bias,
    )
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    if layout.backend == "dense":
        out = _dense(q, k, v, layout, scoring)
    elif (
        layout.varlen is not None
        and layout.is_padding_T is None
        and scoring.is_plain
        and query.dtype in VARLEN_DTYPES
    ):
        out = _varlen(q, k, v, layout.varlen, scoring)
    elif query.requires_grad and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        # The backward pass of the flash kernel in bf16 takes several times as long as in fp32.
        with torch.autocast("cpu", enabled=False):
            out = _grouped(q.float(), k.float(), v.float(), layout, scoring).to(query.dtype)
    else:
        out = _grouped(q, k, v, layout, scoring)
    return out[None], None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """Settings of the attention scores, apart from which tokens see each other."""

    scaling: float
    dropout: float
    window: int | None
    bias: Bias | None

    @property
    def is_plain(self) -> bool:
        """Whether scores are only scaled, which is all that the varlen kernel supports."""
        return self.dropout == 0 and self.window is None and self.bias is None


def _dense(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scoring: Scoring) -> Tensor:
    """Reference implementation: every token against every token with a mask, quadratic in the batch."""
    news_T, position_T = layout.news_K[layout.segment_T], layout.position_T
    own = layout.segment_T[:, None] == layout.segment_T
    over_bus = (news_T[:, None] == news_T) & (position_T == 0) & ~own & layout.has_bus
    near = own if scoring.window is None else own & ((position_T[:, None] - position_T).abs() < scoring.window)
    scores = torch.einsum("iah,jah->aij", query, key) * scoring.scaling
    if layout.is_padding_T is not None:
        scores = scores.masked_fill(layout.is_padding_T, _hidden(scores))
    if scoring.bias is not None:
        scores = scores + _dense_bias(scoring.bias, own, over_bus)
    weights = scores.masked_fill(~(near | over_bus), -math.inf).softmax(-1)
    return torch.einsum("aij,jah->iah", drop(weights, scoring.dropout), value)


def _dense_bias(bias: Bias, own: Tensor, over_bus: Tensor) -> Tensor:
    """Bias of every pair of tokens, row by row; zero for pairs that do not see each other."""
    rows = []
    for token in range(len(own)):
        mine, seen = own[token].nonzero().squeeze(1), over_bus[token].nonzero().squeeze(1)
        block = bias(mine.numel(), seen.numel())[:, token - int(mine[0])]
        rows.append(block.new_zeros(len(block), len(own)).index_copy(1, torch.cat([mine, seen]), block))
    return torch.stack(rows, 1)


def _grouped(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scoring: Scoring) -> Tensor:
    """Attention group by group, each a view of the packed row; only the bus is gathered."""
    own = [group.num_segments * group.length for group in layout.groups]
    seen = [group.num_segments * group.others for group in layout.groups]
    # split, not slices: its backward is one concatenation instead of one full-size tensor per group
    parts = zip(
        layout.groups,
        query.split(own),
        key.split(own),
        value.split(own),
        key.index_select(0, layout.bus_index).split(seen),
        value.index_select(0, layout.bus_index).split(seen),
        [None] * len(own) if layout.is_padding_T is None else layout.is_padding_T.split(own),
        strict=True,
    )
    out = []
    for group, q, k, v, bus_k, bus_v, is_padding in parts:
        segments = (group.num_segments, -1, *q.shape[1:])
        q, k, v = q.view(segments), k.view(segments), v.view(segments)
        if group.others:
            k = torch.cat([k, bus_k.view(segments)], 1)
            v = torch.cat([v, bus_v.view(segments)], 1)
        attended = scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=_group_mask(group, q, scoring, is_padding),
            dropout_p=scoring.dropout,
            scale=scoring.scaling,
        )
        out.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(out)


def _group_mask(group: Group, query: Tensor, scoring: Scoring, is_padding: Tensor | None) -> Tensor | None:
    """Mask added to the scores of a group, shared by its segments unless they have padding."""
    mask = None if scoring.bias is None else scoring.bias(group.length, group.others).to(query.dtype)
    if scoring.window is not None and scoring.window < group.length:
        position = torch.arange(group.length, device=query.device)
        far = query.new_zeros(group.length, group.length + group.others)
        is_far = (position[:, None] - position).abs() >= scoring.window
        far[:, : group.length].masked_fill_(is_far, -math.inf)
        mask = far if mask is None else mask + far
    if is_padding is not None:
        hidden = query.new_zeros(group.num_segments, 1, 1, group.length + group.others)
        hidden[..., : group.length].masked_fill_(is_padding.view(group.num_segments, 1, 1, -1), _hidden(query))
        mask = hidden if mask is None else mask + hidden
    return mask


def _hidden(like: Tensor) -> float:
    """Score of padding: zero weight beside any token, but no NaN where a window shows only padding."""
    return torch.finfo(like.dtype).min / 2


def _varlen(query: Tensor, key: Tensor, value: Tensor, varlen: Varlen, scoring: Scoring) -> Tensor:
    """Attention by one kernel for all segments (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        query.contiguous(),
        key.index_select(0, varlen.key_index),
        value.index_select(0, varlen.key_index),
        varlen.query_starts,
        varlen.key_starts,
        varlen.max_query,
        varlen.max_key,
        scale=scoring.scaling,
    )
    assert isinstance(out, Tensor), "no auxiliary output was asked for"
    return out


def _build_varlen(lengths: Tensor, others: Tensor, bus_index: Tensor, device: torch.device) -> Varlen:
    keys = lengths + others
    is_bus = count_up(keys) >= torch.repeat_interleave(lengths, keys)  # own tokens come first
    key_index = torch.empty(int(keys.sum()), dtype=torch.long)
    key_index[is_bus] = bus_index
    key_index[~is_bus] = torch.arange(int(lengths.sum()))

    def starts(sizes: Tensor) -> Tensor:
        return torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).to(device, torch.int32, non_blocking=True)

    return Varlen(
        key_index=key_index.to(device, non_blocking=True),
        query_starts=starts(lengths),
        key_starts=starts(keys),
        max_query=int(lengths.max()),
        max_key=int(keys.max()),
    )


def _choose(backend: str, device: torch.device) -> str:
    if backend not in BACKENDS:
        raise InputError(f"no attention backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    if backend == "varlen" and device.type != "cuda":
        raise InputError(f"attention backend 'varlen' needs CUDA, not {device.type}: use 'grouped' or 'auto'")
    if backend in ("dense", "grouped") or device.type != "cuda":
        return "grouped" if backend == "auto" else backend
    found = torch.cuda.get_device_capability(device)
    if backend == "varlen" and found < VARLEN_CAPABILITY:
        raise InputError(
            f"attention backend 'varlen' needs a GPU of compute capability {_version(VARLEN_CAPABILITY)} or "
            f"later, this one has {_version(found)}: use 'grouped' or 'auto'"
        )
    return "varlen" if found >= VARLEN_CAPABILITY else "grouped"


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _no_mask(*_: Any, **__: Any) -> None:
    """Make no mask: packed tokens have no padding, and the layout separates segments."""


# Not traced by torch.compile: groups differ from batch to batch, and each set would be compiled again.
AttentionInterface.register("bus", torch.compiler.disable(bus_attention))
AttentionMaskInterface.register("bus", _no_mask)
