"""Time and peak memory of an encoder step against the number of segments (the paper's figure on BusLM).

The same number of tokens is encoded as texts of 96 or 480 tokens, each cut into 1 to 10 segments joined by the
bus. The last rows double the batch at three segments: memory should grow with the tokens, not with their square.
Every row is measured in a process of its own, so that peaks do not mix.

Example: python -m benchmarks bus --json
"""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import memory, time_in_turn
from speedyfeed.drawing import COLOURS, from_zero, new_figures, save
from speedyfeed.markdown import table
from speedyfeed.models.bus import build_layout
from speedyfeed.models.plm import first_position, load_encoder

SEGMENTS = (1, 2, 3, 5, 8, 10)
TEXT_LENGTHS = (96, 480)


@dataclass(frozen=True, kw_only=True, slots=True)
class BusBenchmarkConfig:
    """Which encoder is measured, on how many tokens."""

    encoder: str = "minilm"
    """Pretrained encoder to measure, by name or folder."""
    tokens: int = 3840
    """Number of tokens of a batch."""
    attention_dropout: float | None = 0.0
    """Dropout of attention weights; None takes the encoder's own, as in the paper, which takes more memory."""
    rounds: int = 3
    """Timed rounds of each row; the best one counts."""
    seed: int = 0
    """Seed of the tokens of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BusRow:
    """Time and memory of one batch."""

    text_length: int
    segments: int
    tokens: int
    seconds: float
    peak_megabytes: float
    """Peak memory of the step above that before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BusFigures:
    rows: list[BusRow]
    growth: list[BusRow]
    """Rows with one, two and four times the tokens, at three segments."""


def measure(config: BusBenchmarkConfig) -> BusFigures:
    """Measure all rows, one process each."""
    context = multiprocessing.get_context("spawn")
    cases = [(length, segments, 1) for length in TEXT_LENGTHS for segments in SEGMENTS]
    growth = [(TEXT_LENGTHS[0], 3, times) for times in (1, 2, 4)]
    with context.Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(measure_row, [(config, *case) for case in cases + growth], chunksize=1)
    return BusFigures(rows=rows[: len(cases)], growth=rows[len(cases) :])


def measure_row(config: BusBenchmarkConfig, text_length: int, segments: int, times: int) -> BusRow:
    """Measure the peak memory of a forward and backward pass, then its time."""
    model = load_encoder(config.encoder, attention_dropout=config.attention_dropout)
    model.train()
    num_news = times * config.tokens // text_length
    cuts = torch.arange(segments + 1) * text_length // segments
    lengths_K, segments_M = cuts.diff().repeat(num_news), torch.full((num_news,), segments)
    generator = torch.Generator().manual_seed(config.seed)
    tokens_T = torch.randint(5, model.config.vocab_size, (num_news * text_length,), generator=generator)

    def step(news: int = num_news) -> None:
        layout = build_layout(lengths_K[: news * segments], segments_M[:news])
        hidden = model(
            input_ids=tokens_T[layout.order_T][None],
            position_ids=layout.position_T[None] + first_position(model),
            layout=layout,
        ).last_hidden_state
        hidden.sum().backward()

    step(news=1)  # libraries and gradients take their memory first
    before = memory("VmRSS")
    step()
    peak = memory("VmHWM") - before
    seconds = time_in_turn({"step": step}, rounds=config.rounds)["step"]
    return BusRow(
        text_length=text_length,
        segments=segments,
        tokens=len(tokens_T),
        seconds=seconds,
        peak_megabytes=peak / 1e6,
    )


def tables(figures: BusFigures) -> str:
    """A row per batch."""
    return table(
        ["tokens/text", "segments", "tokens", "seconds", "peak MB"],
        [
            [
                str(row.text_length),
                str(row.segments),
                f"{row.tokens:,}",
                f"{row.seconds:.3f}",
                f"{row.peak_megabytes:,.0f}",
            ]
            for row in figures.rows + figures.growth
        ],
    )


def draw(figures: BusFigures, folder: Path) -> list[Path]:
    """Draw time and memory against the number of segments, a line per length of text."""
    figure, (left, right) = new_figures(["Time of a step", "Peak memory of a step"])
    for colour, length in zip(COLOURS, TEXT_LENGTHS, strict=False):
        rows = [row for row in figures.rows if row.text_length == length]
        segments = [row.segments for row in rows]
        label = f"texts of {length} tokens"
        left.plot(segments, [row.seconds for row in rows], "o-", color=colour, label=label)
        right.plot(segments, [row.peak_megabytes for row in rows], "o-", color=colour, label=label)
    left.set_ylabel(f"seconds for {figures.rows[0].tokens:,} tokens")
    right.set_ylabel("MB above those before the step")
    for ax in (left, right):
        ax.set_xlabel("segments per text")
        ax.set_xticks(SEGMENTS)
        ax.legend(loc="lower right")
    from_zero(left, [row.seconds for row in figures.rows])
    from_zero(right, [row.peak_megabytes for row in figures.rows])
    return [save(figure, folder / "bus.png")]
