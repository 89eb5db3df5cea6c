"""Time to quality: what is compared, what counts as time, and what is said where nothing was reached."""

import itertools
import json
from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from benchmarks.speed import time_to_quality
from benchmarks.speed.time_to_quality import Curve, Point, TimeToQualityConfig, sides_of, summarise, tables
from speedyfeed.recipes import conventional, recipe
from speedyfeed.training.trainer import Trainer

CONFIG = TimeToQualityConfig(minutes=2, our_minutes=1)


def curve(name, *aucs, budget):
    """Validations before training and after a quarter, a half and all of a budget in seconds."""
    times = [0.0, *(budget / 2**halvings for halvings in reversed(range(len(aucs) - 1)))]
    return Curve(
        name=name,
        points=[Point(due=t, seconds=t, clicks=10 * t, auc=auc) for t, auc in zip(times, aucs, strict=True)],
    )


def test_the_sides_go_from_conventional_to_the_default_recipe():
    sides = sides_of(CONFIG)
    assert list(sides) == [
        "conventional",
        "+ central and batching",
        "+ cache",
        "+ autoregressive",
        "+ BusLM",
        "+ packing",
        "+ cache gradients",
        "default recipe",
    ]
    assert all(before != after for before, after in itertools.pairwise(sides.values()))
    assert sides["conventional"] == conventional(sides["+ packing"])
    without = sides["+ packing"]
    assert not without.cache.gradients
    assert replace(without, cache=replace(without.cache, gradients=True)) == sides["+ cache gradients"]
    assert replace(sides["default recipe"], train=recipe("speed-mini").train) == recipe("speed-mini")
    rates = {(run.train.lr, run.train.encoder_lr, run.train.schedule, run.train.seed) for run in sides.values()}
    assert len(rates) == 1


def test_ratios_are_of_the_conventional_time_to_its_own_auc():
    slow = curve("conventional", 0.50, 0.51, 0.53, 0.52, budget=120)
    fast = curve("fast", 0.50, 0.515, 0.54, 0.60, budget=60)
    figures = summarise([slow, fast], CONFIG)
    first, second = figures.goals
    assert figures.has_learned
    assert (first.auc, first.is_bound) == (0.52, False)
    assert (first.arrivals["fast"].seconds, first.arrivals["fast"].ratio) == (30, 4)
    assert first.arrivals["conventional"].ratio == 1
    assert (second.auc, second.is_bound) == (0.55, True)
    assert (second.arrivals["fast"].seconds, second.arrivals["fast"].ratio) == (60, 2)
    assert second.arrivals["conventional"].seconds is None
    assert figures.equal_time == {"conventional": 0.53, "fast": 0.60}
    assert ">= 2.0x" in tables(figures)


def test_a_conventional_side_that_learned_nothing_sets_no_goal():
    slow = curve("conventional", 0.500, 0.501, 0.502, 0.499, budget=120)
    figures = summarise([slow, curve("fast", 0.50, 0.52, 0.55, 0.56, budget=60)], CONFIG)
    (only,) = figures.goals
    assert not figures.has_learned
    assert only.is_bound
    assert only.arrivals["fast"].ratio == 120 / 30
    assert "it learned nothing that counts" in tables(figures)


def test_where_no_side_learned_there_is_no_ratio():
    slow = curve("conventional", 0.5, 0.5, 0.5, budget=120)
    figures = summarise([slow, curve("fast", 0.5, 0.49, 0.502, budget=60)], CONFIG)
    assert figures.goals == []
    assert "x |" not in tables(figures)


def test_the_benchmark_trains_all_sides_from_one_start(store, tiny_encoder, tmp_path, capsys, monkeypatch):
    ticks = itertools.count()
    validate = Trainer.validate

    def slow_validation(trainer):
        next(itertools.islice(ticks, 1000, None))
        return validate(trainer)

    monkeypatch.setattr(time_to_quality, "_clock", lambda: float(next(ticks)))  # a second a step
    monkeypatch.setattr(Trainer, "validate", slow_validation)
    options = {"--store": store.path, "--encoder": tiny_encoder, "--out": tmp_path}
    options |= {"--minutes": 4 / 60, "--our-minutes": 2 / 60, "--validations": 2, "--validation-impressions": 40}
    main(["time-to-quality", "--json", *(str(part) for option in options.items() for part in option)])
    curves = json.loads(capsys.readouterr().out)["curves"]
    assert [curve["name"] for curve in curves] == list(sides_of(CONFIG))
    starts = [curve["points"][0]["auc"] for curve in curves]
    assert len(set(starts[:4])) == len(set(starts[4:])) == 1  # with one sequence, and with segments
    for number, curve in enumerate(curves):
        expected = [0, 1, 2] if number else [0, 2, 4]
        assert [point["seconds"] for point in curve["points"]] == pytest.approx(expected)  # without validations
        assert curve["points"][-1]["clicks"] > curve["points"][0]["clicks"] == 0
    assert curves[0]["points"][-1]["clicks"] == 4  # one click a step
    assert b"<svg" in (tmp_path / "time-to-quality.svg").read_bytes()


def test_an_unknown_side_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["time-to-quality", "--sides", "fastest"])
    assert "--sides 'fastest': no such side; choose conventional" in capsys.readouterr().err
