import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from speedyfeed.batching.batches import news_lengths
from speedyfeed.batching.loader import Loader
from speedyfeed.profile import (
    BACKWARD,
    CACHE,
    FORWARD,
    PARTS,
    UPDATE,
    USER,
    WAIT,
    Stopwatch,
    TimedTrainer,
    timed_run,
)


def timed_trainer(store, tiny_encoder, folder: Path) -> TimedTrainer:
    torch.manual_seed(0)
    return TimedTrainer(
        timed_run("speed-mini", encoder=str(tiny_encoder), precision="fp32", seed=0), store, folder
    )


def test_a_stopwatch_changes_nothing_and_misses_no_moment(store, tiny_encoder, tmp_path, monkeypatch):
    plain, timed = (timed_trainer(store, tiny_encoder, tmp_path / name).trainer for name in ("plain", "timed"))
    moments = iter(range(10**6))
    monkeypatch.setattr("speedyfeed.profile.now", lambda: float(next(moments)))
    watch = Stopwatch(timed)
    with Loader(
        store.train, news_lengths(store.news), timed.config.batch, timed.config.cache, seed=timed.config.train.seed
    ) as loader:
        batches = [next(loader) for _ in range(3)]
    for batch in batches:
        torch.manual_seed(batch.step)
        expected = plain.step(batch, lr_factor=1.0)
        torch.manual_seed(batch.step)
        value = timed.step(batch, lr_factor=1.0)
        assert value == expected
    for ours, theirs in zip(timed.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    watch.switch_to(UPDATE)
    assert sum(watch.seconds.values()) == pytest.approx(watch._since)
    seen = {part for part, seconds in watch.seconds.items() if seconds > 0}
    assert seen >= {FORWARD, BACKWARD, USER, UPDATE, CACHE}


def test_the_benchmark_gives_shares_of_a_whole(store, tiny_encoder, tmp_path, capsys):
    options = {"--store": store.path, "--encoder": tiny_encoder, "--skip": 2, "--warmup": 1, "--steps": 2}
    arguments = [str(part) for option in options.items() for part in option]
    main(["step", *arguments, "--out", str(tmp_path), "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert set(figures["shares"]) == set(PARTS)
    assert sum(figures["shares"].values()) == pytest.approx(1)
    assert figures["encoder_share"] == figures["shares"][FORWARD] + figures["shares"][BACKWARD] > 0
    assert figures["waiting_share"] == figures["shares"][WAIT]
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert WAIT in (tmp_path / "step.md").read_text()
