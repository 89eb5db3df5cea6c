"""Runs of several ranks as a user has them: stopped, killed, and gone on with by as many ranks or others."""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.training.checkpoint import checkpoints
from speedyfeed.training.loop import train
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import is_run_of, open_run, start_run
from speedyfeed.training.trainer import Trainer
from tests import forked
from tests.training.distributed.processes import run_ranks


def weights(run):
    return load_file(run.model / "model.safetensors")


def clicks_of_an_epoch(store, config):
    """Clicks to learn from, those without negatives of their own by their weight in the loss."""
    lengths = np.minimum(store.train.clicks.lengths, config.batch.max_clicks)
    ends = store.train.clicks.offsets[1:]
    own = [store.train.click_pools[end - length : end] >= 0 for end, length in zip(ends, lengths, strict=True)]
    num_own = int(np.concatenate(own).sum())
    return pytest.approx(num_own + config.loss_on(store.train).fallback_click_weight * (lengths.sum() - num_own))


def stopping_at(step, rank):
    """Makes `Trainer.step` send that rank, and no other, a signal at that step."""
    take = Trainer.step

    def stops(self, batch, factor):
        if batch.step == step and self.group.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, batch, factor)

    return stops


def test_a_signal_to_one_rank_stops_all_and_others_go_on(store, config, tmp_path, monkeypatch):
    whole, broken = (start_run(tmp_path / name, config, store) for name in ("whole", "broken"))
    undisturbed = train(whole, store)
    monkeypatch.setattr(Trainer, "step", stopping_at(5, rank=1))
    stopped = run_ranks(2, lambda ranks: train(open_run(broken.path), store, group=ranks))
    assert {(outcome.is_finished, outcome.progress.step) for outcome in stopped} == {(False, 6)}
    monkeypatch.setattr(Trainer, "step", stopping_at(9, rank=0))
    stopped = run_ranks(3, lambda ranks: train(open_run(broken.path), store, group=ranks), hosts=[1, 1, 1])
    assert {(outcome.is_finished, outcome.progress.step) for outcome in stopped} == {(False, 10)}
    monkeypatch.undo()
    finished = train(broken, store)
    assert finished.is_finished
    assert finished.progress.step == undisturbed.progress.step
    assert finished.progress.clicks == clicks_of_an_epoch(store, config)  # every user once, whoever computed them
    lines = [json.loads(line) for line in (broken.path / METRICS).read_text().splitlines()]
    assert [line["cache_copies"] for line in lines if "cache_copies" in line][-1] == 3
    steps = [line["step"] for line in lines if "validation_auc" in line]
    assert steps == sorted(set(steps))


def test_a_loss_that_is_no_number_on_one_rank_stops_all(store, config, tmp_path, monkeypatch):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, validations=0)), store)
    take = Trainer.step

    def poisoned(self, batch, factor):
        if batch.step == 1 and self.group.rank == 1:
            self.model.user.start.data.fill_(float("nan"))
        return take(self, batch, factor)

    def attempt(ranks):
        try:
            train(open_run(run.path), store, group=ranks)
        except InputError as error:
            return str(error)

    monkeypatch.setattr(Trainer, "step", poisoned)
    told = run_ranks(2, attempt)
    assert len(told) == 2
    assert all(one.startswith("the loss became nan at step 1") for one in told)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


TORCHRUN = """
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from speedyfeed.cli.main import main
endpoint = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "killed"}
size = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2}
config = LaunchConfig(**size, **endpoint, max_restarts=2, monitor_interval=0.1, start_method="fork")
elastic_launch(config, main)(sys.argv[1:])
"""
"""What `torchrun --standalone --nproc-per-node 2 --max-restarts 2 -m speedyfeed` does, with forked ranks."""


def test_a_killed_rank_is_started_again_and_the_run_ends_like_one_that_was_not(store, tiny_encoder, tmp_path):
    settings = "--recipe tiny --batch.token-budget 1500 --batch.max-clicks 30 --cache.gamma 5 --checkpoint-every 3"
    settings += " --validations 1 --validation-impressions 50"
    words = [store.path, tmp_path / "killed", "--encoder", tiny_encoder, *settings.split(), "--json"]
    launched = forked.Popen([sys.executable, "-c", TORCHRUN, "train", *words], stdout=forked.PIPE)
    while launched.poll() is None and not checkpoints(tmp_path / "killed" / "checkpoints"):
        time.sleep(0.02)
    os.kill(random.Random(7).choice(children(launched.pid)), signal.SIGKILL)
    printed, _ = launched.communicate()
    assert launched.returncode == 0
    outcome = json.loads(printed)  # printed once, by one rank
    killed = open_run(tmp_path / "killed")
    assert outcome["is_finished"]
    assert outcome["progress"]["clicks"] == clicks_of_an_epoch(store, killed.config)

    whole = start_run(tmp_path / "whole", killed.config, store)
    undisturbed = run_ranks(2, lambda ranks: train(open_run(whole.path), store, group=ranks))
    assert {one.progress.step for one in undisturbed} == {outcome["progress"]["step"]}
    ours, twin = weights(killed), weights(whole)
    assert ours.keys() == twin.keys()
    assert all(np.array_equal(ours[name], twin[name]) for name in ours)


def test_under_torchrun_the_same_command_goes_on(store, config, tmp_path):
    run = start_run(tmp_path / "run", config, store)
    assert is_run_of(run.path, config, store)
    assert not is_run_of(run.path, replace(config, train=replace(config.train, lr=1.0)), store)
    assert not is_run_of(tmp_path / "other", config, store)


def test_a_mistake_is_told_once_a_host(tmp_path, capsys, monkeypatch):
    for local_rank, num_lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        with pytest.raises(SystemExit) as stop:
            main(["train", str(tmp_path / "nothing"), str(tmp_path / "run")])
        assert stop.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == num_lines
