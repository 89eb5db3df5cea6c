import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import bus, encoder
from speedyfeed.models.bus import build_layout
from tests.models.families import LENGTHS, build, packed_pass, random_tokens


def test_counted_arithmetic_is_what_the_model_does() -> None:
    """The dense backend has only matrix products, which torch counts; it also scores pairs nobody sees."""
    model, tokens = build("bert"), random_tokens(LENGTHS)
    layout = build_layout(torch.tensor(LENGTHS), torch.tensor([2, 3, 1]))
    with FlopCounterMode(display=False) as counter:
        packed_pass(model, tokens, LENGTHS, [2, 3, 1], backend="dense")
    width, num_layers = model.config.hidden_size, model.config.num_hidden_layers
    seen = sum(g.num_segments * g.length * (g.length + g.others) for g in layout.groups)
    unseen = 12 * width * num_layers * (len(tokens) ** 2 - seen)
    assert encoder.useful_flops(model, layout) + unseen == counter.get_total_flops()


def test_lengths_are_drawn_as_stated() -> None:
    lengths = encoder._draw_lengths(20_000, torch.Generator().manual_seed(0)).double()
    for column, (mean, spread) in zip(lengths.T, encoder.FIELDS.values(), strict=True):
        assert abs(float(column.mean()) / mean - 1) < 0.05
        assert abs(float(column.log().std()) / spread - 1) < 0.1


def test_the_encoder_benchmark_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "PEAK_SIZE", 512)
    config = build("bert").config
    config.max_position_embeddings = 3 * encoder.LONGEST
    model = type(build("bert"))(config)
    model.save_pretrained(tmp_path)
    settings = encoder.EncoderBenchmarkConfig(encoder=str(tmp_path), num_news=3, rounds=1)
    figures = json.loads(json.dumps(asdict(encoder.measure(settings))))
    assert figures["packed_over_padded"] > 0
    assert 0 < figures["peak_share"] < 1
    speed = figures["tokens_per_second"]
    assert abs(figures["packed_over_padded"] - speed["packed"] / speed["padded"]) < 1e-9
    last = encoder.measure_last(settings)
    assert all(seconds > 0 for seconds in last.values())


@pytest.mark.usefixtures("forked_pools")
def test_a_bus_row_measures_its_own_memory(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path)
    settings = bus.BusBenchmarkConfig(encoder=str(tmp_path), tokens=1200, rounds=1)
    row = bus.measure_row(settings, text_length=24, segments=5, times=2)
    assert (row.tokens, row.segments) == (2400, 5)
    assert row.seconds > 0
    assert row.peak_megabytes >= 0
