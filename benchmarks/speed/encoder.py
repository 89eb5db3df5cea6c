"""The packed bus encoder against the stock padded model: forward and backward pass, timed in turn.

Articles have a title, an abstract and a body whose lengths are log-normal, with the deviations of MIND. The stock
model encodes each article as one row, padded to the longest of the batch; ours encodes the same tokens packed, in
segments. Both train with the dropout the encoder was published with, unless the variant says otherwise. The share
of peak is useful FLOPS against those of the best matrix product of the same run, in the same number format.

Example: python -m benchmarks encoder --json
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.harness import time_in_turn
from speedyfeed.drawing import DARK, LIGHT, new_figure, save
from speedyfeed.markdown import table
from speedyfeed.models.bus import Layout, build_layout
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import first_position, load_encoder

FIELDS = {"title": (14, 0.30), "abstract": (40, 0.66), "body": (32, 0.66)}
"""Mean tokens and standard deviation of their logarithm, which is that of MIND's titles and abstracts."""
SHORTEST, LONGEST = 4, 128
PEAK_SIZE = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderBenchmarkConfig:
    """Which encoder is measured, on how many articles."""

    encoder: str = "minilm"
    """Pretrained encoder to measure, by name or folder."""
    num_news: int = 24
    """Articles in the batch that is encoded."""
    rounds: int = 3
    """Timed rounds over all variants; the best one counts."""
    seed: int = 0
    """Seed of the lengths and tokens of the articles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderFigures:
    """Speeds of all variants; padding is not counted as tokens."""

    packed_over_padded: float
    """Tokens per second as a multiple of the stock padded model's: fp32, published dropout in both."""
    peak_share: float
    """Useful FLOPS of the packed encoder as we train it (fp32), as a share of the matrix product's."""
    tokens: int
    valid_share: float
    """Share of the padded batch that is not padding."""
    tokens_per_second: dict[str, float]
    peak_gflops: dict[str, float]
    peak_shares: dict[str, float]
    last_layer_seconds: dict[str, float]
    """Seconds of a step that trains all layers, the last one, and the last one on cached lower layers."""


def measure(config: EncoderBenchmarkConfig) -> EncoderFigures:
    """Time all variants in turn."""
    generator = torch.Generator().manual_seed(config.seed)
    lengths_MK = _draw_lengths(config.num_news, generator)
    stock, published = load_encoder(config.encoder), load_encoder(config.encoder)
    ours = load_encoder(config.encoder, attention_dropout=0.0)
    calm_stock, calm = (_without_dropout(load_encoder(config.encoder)) for _ in range(2))
    for model in (stock, calm_stock):
        model.set_attn_implementation("sdpa")
    tokens_T = torch.randint(5, stock.config.vocab_size, (int(lengths_MK.sum()),), generator=generator)
    lengths, segments = lengths_MK.flatten(), torch.full((config.num_news,), lengths_MK.size(1))
    padded = _pad(tokens_T, lengths_MK.sum(1))
    layout = build_layout(lengths, segments)

    def packed(model: PreTrainedModel) -> Callable[[], None]:
        return lambda: _step_packed(model, tokens_T, lengths, segments)

    def in_bf16(run: Callable[[], None]) -> Callable[[], None]:
        def cast() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                run()

        return cast

    def peak(dtype: torch.dtype) -> Callable[[], Tensor]:
        a, b = torch.randn(2, PEAK_SIZE, PEAK_SIZE, dtype=dtype)
        return lambda: a @ b

    variants: dict[str, Callable[[], object]] = {
        "padded": lambda: _step_padded(stock, padded),
        "packed": packed(published),
        "packed, no attention dropout": packed(ours),
        "padded, no dropout": lambda: _step_padded(calm_stock, padded),
        "packed, no dropout": packed(calm),
        "padded, bf16": in_bf16(lambda: _step_padded(stock, padded)),
        "packed, no attention dropout, bf16": in_bf16(packed(ours)),
        "peak fp32": peak(torch.float32),
        "peak bf16": peak(torch.bfloat16),
    }
    for model in (stock, published, ours, calm_stock, calm):
        model.train()
    seconds = time_in_turn(variants, rounds=config.rounds)
    work = useful_flops(ours, layout)
    peaks = {name: 2 * PEAK_SIZE**3 / seconds.pop(f"peak {name}") for name in ("fp32", "bf16")}
    shares = {name: work / best / peaks["bf16" if "bf16" in name else "fp32"] for name, best in seconds.items()}
    return EncoderFigures(
        packed_over_padded=seconds["padded"] / seconds["packed"],
        peak_share=shares["packed, no attention dropout"],
        tokens=len(tokens_T),
        valid_share=len(tokens_T) / padded["input_ids"].numel(),
        tokens_per_second={name: len(tokens_T) / best for name, best in seconds.items()},
        peak_gflops={name: peak_flops / 1e9 for name, peak_flops in peaks.items()},
        peak_shares=shares,
        last_layer_seconds=measure_last(config),
    )


def useful_flops(model: PreTrainedModel, layout: Layout) -> float:
    """FLOPs of a forward and backward pass: 6 per weight and token, 12 per width and attended pair of tokens."""
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    pairs = sum(group.num_segments * group.length * (group.length + group.others) for group in layout.groups)
    width: int = model.config.hidden_size
    num_layers: int = model.config.num_hidden_layers
    return 6.0 * weights * len(layout.order_T) + 12.0 * width * num_layers * pairs


def measure_last(config: EncoderBenchmarkConfig) -> dict[str, float]:
    """Seconds of a step on the same articles: all layers, the last one, the last one on cached lower layers."""
    generator = torch.Generator().manual_seed(config.seed)
    lengths_K = _draw_lengths(config.num_news, generator).flatten()
    every = NewsEncoder(NewsEncoderConfig(encoder=config.encoder, segment_length=LONGEST))
    vocab: int = every.encoder.config.vocab_size
    tokens_T = torch.randint(5, vocab, (int(lengths_K.sum()),), generator=generator)
    news = PackedNews(
        tokens_T=tokens_T,
        frequencies_T=torch.ones_like(tokens_T),
        segment_starts=nn.functional.pad(lengths_K.cumsum(0), (1, 0)),
        news_starts=torch.arange(0, len(lengths_K) + 1, len(FIELDS)),
    )
    cached = replace(news, ids_M=torch.arange(len(news)))
    last = NewsEncoder(
        NewsEncoderConfig(encoder=config.encoder, segment_length=LONGEST, train_layers=1, frozen_gigabytes=0.5)
    )
    variants: dict[str, Callable[[], object]] = {
        "all layers": lambda: every(news).sum().backward(),
        "last layer": lambda: last(news).sum().backward(),
        "last layer, lower layers cached": lambda: last(cached).sum().backward(),
    }
    return time_in_turn(variants, rounds=config.rounds)


def _draw_lengths(num_news: int, generator: torch.Generator) -> Tensor:
    """Tokens of each field of each article: (news, fields)."""
    columns = []
    for mean, spread in FIELDS.values():
        logs = torch.randn(num_news, generator=generator) * spread + torch.tensor(mean).log() - spread**2 / 2
        columns.append(logs.exp().round().clamp(SHORTEST, LONGEST).long())
    return torch.stack(columns, 1)


def _pad(tokens_T: Tensor, lengths_M: Tensor) -> dict[str, Tensor]:
    mask = torch.arange(int(lengths_M.max())) < lengths_M[:, None]
    input_ids = torch.zeros(mask.shape, dtype=torch.long)
    input_ids[mask] = tokens_T
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def _step_padded(model: PreTrainedModel, padded: dict[str, Tensor]) -> None:
    hidden = model(**padded).last_hidden_state
    hidden[padded["attention_mask"].bool()].sum().backward()
    model.zero_grad(set_to_none=True)


def _step_packed(model: PreTrainedModel, tokens_T: Tensor, lengths: Tensor, segments: Tensor) -> None:
    layout = build_layout(lengths, segments)  # part of the cost
    hidden = model(
        input_ids=tokens_T[layout.order_T][None],
        position_ids=layout.position_T[None] + first_position(model),
        layout=layout,
    ).last_hidden_state
    hidden.sum().backward()
    model.zero_grad(set_to_none=True)


def _without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def tables(figures: EncoderFigures) -> str:
    """Speeds of all variants, then seconds of steps that train the last layer only."""
    return "\n\n".join(
        [
            f"Packed over padded: {figures.packed_over_padded:.2f}x on {figures.tokens:,} tokens, "
            f"{figures.valid_share:.0%} of the padded batch. Peak GFLOPS: "
            f"{', '.join(f'{name} {value:.0f}' for name, value in figures.peak_gflops.items())}.",
            table(
                ["variant", "tokens/s", "of peak"],
                [
                    [name, f"{speed:,.0f}", f"{figures.peak_shares[name]:.0%}"]
                    for name, speed in figures.tokens_per_second.items()
                ],
            ),
            table(
                ["trained", "seconds/step"],
                [[name, f"{seconds:.3f}"] for name, seconds in figures.last_layer_seconds.items()],
            ),
        ]
    )


def draw(figures: EncoderFigures, folder: Path) -> list[Path]:
    """Draw the tokens per second of every variant."""
    figure, ax = new_figure("Tokens encoded per second, forward and backward", width=12)
    names = list(figures.tokens_per_second)
    speeds = list(figures.tokens_per_second.values())
    ax.barh(names, speeds, color=[DARK if name.startswith("packed") else LIGHT for name in names])
    for row, (name, speed) in enumerate(zip(names, speeds, strict=True)):
        ax.text(speed, row, f" {speed:,.0f}, {figures.peak_shares[name]:.0%} of peak", va="center")
    ax.invert_yaxis()
    ax.set_xlim(0, max(speeds) * 1.5)
    ax.set_xlabel("tokens per second")
    return [save(figure, folder / "encoder.png")]
