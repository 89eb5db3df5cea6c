"""What segments cost (the paper's figure on BusLM): time and peak memory of forward and backward.

The same number of tokens is read as texts of 96 or 480 tokens, each cut into 1 to 10 segments joined by the bus.
A second table doubles the batch at three segments: memory has to grow with the tokens, not with their square.
Every row runs in a process of its own, so that its peak memory is its own.

Example: speedyfeed bench bus --json
"""

import json
import multiprocessing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from speedyfeed.bench.harness import Machine, time_in_turn
from speedyfeed.models.bus import build_layout
from speedyfeed.models.plm import first_position, load_encoder

SEGMENTS = (1, 2, 3, 5, 8, 10)
TEXT_LENGTHS = (96, 480)


@dataclass(frozen=True, kw_only=True, slots=True)
class BusBenchConfig:
    """How much is measured."""

    encoder: str = "minilm"
    tokens: int = 3840
    """Tokens of a batch."""
    attention_dropout: float | None = 0.0
    """None keeps the encoder's own, as in the paper; torch then stores every score."""
    rounds: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class BusRow:
    """One batch."""

    text_length: int
    segments: int
    tokens: int
    seconds: float
    peak_megabytes: float
    """Above what the process held before the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BusFigures:
    rows: list[BusRow]
    growth: list[BusRow]
    """One, two and four times the tokens at three segments."""
    machine: Machine = field(default_factory=Machine)


def measure(config: BusBenchConfig) -> BusFigures:
    """All rows, one process each."""
    context = multiprocessing.get_context("spawn")
    cases = [(length, segments, 1) for length in TEXT_LENGTHS for segments in SEGMENTS]
    growth = [(TEXT_LENGTHS[0], 3, times) for times in (1, 2, 4)]
    with context.Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(measure_row, [(config, *case) for case in cases + growth], chunksize=1)
    return BusFigures(rows=rows[: len(cases)], growth=rows[len(cases) :])


def measure_row(config: BusBenchConfig, text_length: int, segments: int, times: int) -> BusRow:
    """One forward and backward: its peak memory first, then its time."""
    model = load_encoder(config.encoder, attention_dropout=config.attention_dropout)
    model.train()
    num_news = times * config.tokens // text_length
    cuts = torch.arange(segments + 1) * text_length // segments
    lengths_K, segments_M = cuts.diff().repeat(num_news), torch.full((num_news,), segments)
    generator = torch.Generator().manual_seed(0)
    tokens_T = torch.randint(5, model.config.vocab_size, (num_news * text_length,), generator=generator)

    def step(news: int = num_news) -> None:
        layout = build_layout(lengths_K[: news * segments], segments_M[:news])
        hidden = model(
            input_ids=tokens_T[layout.order_T][None],
            position_ids=layout.position_T[None] + first_position(model),
            layout=layout,
        ).last_hidden_state
        hidden.sum().backward()

    step(news=1)  # libraries and gradients take their memory before we look
    before = _memory("VmRSS")
    step()
    peak = _memory("VmHWM") - before
    seconds = time_in_turn({"step": step}, rounds=config.rounds)["step"]
    return BusRow(
        text_length=text_length,
        segments=segments,
        tokens=len(tokens_T),
        seconds=seconds,
        peak_megabytes=peak / 1e6,
    )


def _memory(entry: str) -> int:
    """Bytes of this process: VmRSS is now, VmHWM the highest so far (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {entry}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments(BusBenchConfig):
    json: bool = False
    """Print the figures as one JSON object."""


def run(arguments: Arguments) -> None:
    figures = measure(BusBenchConfig(**{k: v for k, v in asdict(arguments).items() if k != "json"}))
    if arguments.json:
        print(json.dumps(asdict(figures)))
        return
    print(figures.machine)
    print(f"{'text':>5} {'segments':>8} {'tokens':>7} {'seconds':>8} {'peak MB':>8}")
    for row in figures.rows + figures.growth:
        print(f"{row.text_length:5} {row.segments:8} {row.tokens:7} {row.seconds:8.3f} {row.peak_megabytes:8.0f}")
