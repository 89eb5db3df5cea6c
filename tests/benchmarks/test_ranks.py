"""The model of many devices, checked by hand, and that its unit costs are measured."""

import json
import os
import sys
from dataclasses import asdict, replace

import pytest

from benchmarks import launch
from benchmarks.speed import ranks
from benchmarks.speed.rank import RankConfig, WorldFigures, measure_rank
from benchmarks.speed.ranks import RanksConfig, device_costs, measure, tables
from benchmarks.speed.scaling import DeviceCosts, scale
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS
from tests import forked

COSTS = DeviceCosts(
    tokens=1000,
    row_bytes=10,
    gradient_bytes=300,
    tokens_per_second=500,
    bytes_per_second=100,
    hop_seconds=0.125,
    planned_tokens_per_second=10_000,
)


def test_one_device_only_computes():
    alone = scale(COSTS, 1)
    assert (alone.step_seconds, alone.efficiency, alone.gradient_seconds, alone.row_seconds) == (
        2.0,
        1.0,
        0.0,
        0.0,
    )


def test_messages_go_around_the_ring_twice():
    four = scale(COSTS, 4)
    assert four.gradient_seconds == pytest.approx(2 * 3 / 4 * 300 / 100 + 6 * 0.125)
    assert four.row_seconds == pytest.approx(2 * 3 / 4 * 4 * 10 / 100 + 6 * 0.125)
    assert four.step_seconds == pytest.approx(2 + four.gradient_seconds + four.row_seconds)
    assert four.planning_seconds == pytest.approx(0.4)


def test_planning_counts_where_it_takes_longest():
    many = scale(replace(COSTS, planned_tokens_per_second=100), 4)
    assert many.step_seconds == many.planning_seconds == 40
    assert many.efficiency == pytest.approx(2 / 40)


def test_unit_costs_are_measured_and_can_be_imagined(store, tmp_path):
    taken = RankConfig(store=store.path, recipe="nrms", steps=1, token_budget=300)
    alone = measure_rank(taken, tmp_path / "run", SINGLE_PROCESS)
    assert alone == WorldFigures(**json.loads(json.dumps(asdict(alone))))
    assert alone.communicated_bytes == alone.communication_share == alone.token_imbalance == 0
    assert alone.tokens >= 300
    pair = replace(alone, world=2, gradient_seconds=0.5, message_seconds=0.25)
    config = RanksConfig()
    costs = device_costs(alone, pair, config)
    assert costs.tokens_per_second == alone.tokens / alone.step_seconds
    assert costs.bytes_per_second == alone.gradient_bytes / 0.5
    assert costs.hop_seconds == 0.125
    imagined = replace(config, tokens_per_second=7.0, gigabytes_per_second=2.0, hop_microseconds=3.0)
    costs = device_costs(alone, pair, imagined)
    assert (costs.tokens_per_second, costs.bytes_per_second, costs.hop_seconds) == (7.0, 2e9, pytest.approx(3e-6))


def test_ranks_are_launched_and_tabulated(store, monkeypatch):
    """Two by a real torchrun, which is forked while its ranks are not; one without."""

    def start(world, module, *arguments):
        if world > 1:
            return launch.start_ranks(world, module, *arguments)
        environment = os.environ | {"TORCHELASTIC_RUN_ID": f"alone-{os.getpid()}"}
        return forked.Popen([sys.executable, "-m", module, *arguments], env=environment, stdout=forked.PIPE)

    monkeypatch.setattr(ranks, "start_ranks", start)
    monkeypatch.setattr(launch, "subprocess", forked)
    figures = measure(RanksConfig(store=store.path, worlds=(2,), recipe="nrms", steps=1, token_budget=300))
    alone, pair = figures.worlds
    assert (alone.world, pair.world) == (1, 2)
    assert pair.tokens == alone.tokens  # the same steps
    assert pair.communicated_bytes > pair.gradient_bytes
    assert "| devices" in tables(figures)
