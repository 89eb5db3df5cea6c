"""ProcessGroup take the steps that one process takes: same losses, same weights, same news encoded, same cache."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from speedyfeed.batching.loader import Loader
from speedyfeed.errors import InputError, LostRanksError
from speedyfeed.models.config import NewsEncoderConfig, UserConfig, WordConfig
from speedyfeed.recipes import conventional
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer, build_recommender
from speedyfeed.training.workflow import check_workflow
from tests.training.distributed.processes import run_ranks

EPS = 1e-4
"""Epsilon of AdamW, whose first update moves a weight by a whole learning rate however small its gradient, unless
it is below this. Ranks add up in another order than one process does: of a gradient of 1e-7 among some of 1e-2,
rounding is a part that shows."""


@pytest.fixture(scope="session")
def calm_encoder(tiny_encoder, tmp_path_factory):
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("calm") / "encoder"
    shutil.copytree(tiny_encoder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.0}))
    return folder


@pytest.fixture
def calm(config, calm_encoder):
    """A run in which nothing is left to chance."""
    return replace(
        config,
        news=replace(config.news, encoder=str(calm_encoder)),
        batch=replace(config.batch, token_budget=6000),
        cache=replace(config.cache, beta=0.2, draw="news"),
        train=replace(config.train, encoder_lr=5e-5, lr=1e-3, validations=0),
    )


def take_steps(ranks, path, config, store, num_steps):
    """What some steps learned, and what each cost."""
    ranks.on_rank_0(lambda: start_run(path, config, store))
    trainer = Trainer(open_run(path), store, ranks)
    for group in trainer.optimizer.param_groups:
        group["eps"] = EPS
    encoded, read = [], trainer.model.news.encode_text
    trainer.model.news.encode_text = lambda news: encoded.append(news) or read(news)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    losses, batches = [], []
    with Loader(store.train, trainer.news.lengths_M.numpy(), config.batch, config.cache, seed=0) as loader:
        for batch in islice(loader, num_steps):
            losses.append(trainer.step(batch, 1.0))
            batches.append(batch)
    weights = trainer.model.state_dict()
    return {
        "losses": losses,
        "weights": {name: value.numpy() for name, value in weights.items()},
        "moved": max(float((value - start[name]).abs().max()) for name, value in weights.items()),
        "users": [len(batch.users_B) for batch in batches],
        "fresh": [len(batch.encode_E) + len(batch.deliver_E) for batch in batches],
        "encoded": [len(news) for news in encoded],
        "tokens": [int(news.lengths_M.sum()) for news in encoded],
        "cache": trainer.cache.checksum() if trainer.cache is not None and ranks.is_writer else None,
    } | trainer.check_cache(num_steps)


def assert_same_steps(ranks, alone):
    """To 1e-6, and of something that moved much further."""
    assert alone["moved"] > 1e-3
    for one in ranks:
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=1e-6)
        assert one["weights"].keys() == alone["weights"].keys()
        for name, weight in one["weights"].items():
            np.testing.assert_allclose(weight, alone["weights"][name], rtol=0, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(weight, ranks[0]["weights"][name], err_msg=name)


@pytest.mark.parametrize("world", [2, 4])
def test_w_ranks_learn_what_one_process_learns(world, store, calm, tmp_path):
    alone = take_steps(SINGLE_PROCESS, tmp_path / "alone", calm, store, 20)
    ranks = run_ranks(world, lambda ranks: take_steps(ranks, tmp_path / "ranks", calm, store, 20))
    assert_same_steps(ranks, alone)
    assert sum(alone["fresh"]) < 20 * alone["fresh"][0]  # the cache answered
    encoded, tokens = (np.array([one[name] for one in ranks]) for name in ("encoded", "tokens"))
    assert encoded.sum(0).tolist() == alone["fresh"]  # no article twice, wherever its users are
    many = encoded.min(0) > 20
    assert many.sum() >= 4
    assert (np.abs(tokens - tokens.mean(0)) / tokens.mean(0))[:, many].max() < 0.05


VARIANTS = {
    "in-batch loss": lambda run: replace(
        run, loss=replace(run.loss, in_batch=0.5, learn_temperature=True, fallback_negatives_weight=0.3)
    ),
    "no cache, updates of two steps": lambda run: replace(
        run, cache=replace(run.cache, gamma=0), train=replace(run.train, accumulate=2)
    ),
    "all cached": lambda run: replace(
        run,
        batch=replace(run.batch, token_budget=10**6, max_clicks_per_batch=8000),
        cache=replace(run.cache, gamma=99, beta=1e9),
    ),
    "fewer users than ranks": lambda run: replace(
        run,
        user=UserConfig(name="gru"),
        batch=replace(run.batch, token_budget=1),
        cache=replace(run.cache, gamma=99, beta=1.0),
    ),
    "naml": lambda run: words(run, "naml"),
    "npa, conventional": lambda run: conventional(words(run, "npa")),
}


def words(run, name):
    return replace(
        run,
        news=NewsEncoderConfig(encoder=name, dim=16, normalize=False),
        words=WordConfig(width=12, heads=2, query_width=8, category_width=4, dropout=0.0),
        user=UserConfig(name=name if name == "npa" else "additive", query_width=8, id_width=6, id_dropout=0.0),
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_and_one_process_agree_whatever_is_trained(name, store, calm, tmp_path):
    run = VARIANTS[name](calm)
    alone = take_steps(SINGLE_PROCESS, tmp_path / "alone", run, store, 8)
    ranks = run_ranks(3, lambda ranks: take_steps(ranks, tmp_path / "ranks", run, store, 8))
    assert_same_steps(ranks, alone)
    if name == "all cached":
        assert 0 in alone["fresh"]
    if name == "fewer users than ranks":
        assert alone["users"].count(1) >= len(alone["users"]) / 2


def test_every_host_holds_the_same_cache_once(store, calm, tmp_path):
    ranks = run_ranks(4, lambda ranks: take_steps(ranks, tmp_path / "run", calm, store, 6), hosts=[1, 3])
    assert [one["cache"] is None for one in ranks] == [False, False, True, True]
    assert ranks[0]["cache"] == ranks[1]["cache"]
    assert {one["cache_copies"] for one in ranks} == {2}
    assert len({one["cache_checksum"] for one in ranks}) == 1


def test_caches_that_differ_are_noticed(store, calm, tmp_path):
    def differ(ranks):
        ranks.on_rank_0(lambda: start_run(tmp_path / "run", calm, store))
        trainer = Trainer(open_run(tmp_path / "run"), store, ranks)
        trainer.cache.write(torch.tensor([3]), torch.full((1, trainer.model.news.width), float(ranks.rank)), 0)
        trainer.check_cache(1)

    with pytest.raises(RuntimeError, match="caches of the hosts differ at step 1"):
        run_ranks(2, differ, hosts=[1, 1])


def test_memory_of_a_host_is_shared_and_leaves_nothing_behind():
    def share(ranks):
        before = set(os.listdir("/dev/shm"))
        memory = ranks.shared_zeros(3, 2, dtype=torch.bfloat16)
        if ranks.is_writer:
            memory[1] = 1 + ranks.rank
        ranks.barrier()
        return memory.tolist(), set(os.listdir("/dev/shm")) - before

    of_first, of_second = [[0, 0], [1, 1], [0, 0]], [[0, 0], [3, 3], [0, 0]]
    seen = run_ranks(3, share, hosts=[2, 1])
    assert [rows for rows, _ in seen] == [of_first, of_first, of_second]
    assert not any(names for _, names in seen)


LEAVES_THREADS = """
import os
from speedyfeed.training.distributed.process_group import open_process_group
with open_process_group() as ranks:
    ranks.barrier()
    import torch.distributed.nn.functional
    import transformers
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(sum("gloo" in name for name in names))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are listed by Linux")
def test_no_thread_of_the_group_is_left_when_it_is_closed():
    """One that is left may release a tensor while the interpreter ends, which aborts the process."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    world = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES_THREADS],
            env=world | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [(rank.communicate()[0], rank.returncode) for rank in ranks] == [("0\n", 0)] * 2


def test_rows_are_gathered_with_their_gradients():
    sizes = [2, 0, 1]

    def gather(ranks):
        rows = torch.arange(2.0 * sizes[ranks.rank]).view(-1, 2).add(10 * ranks.rank).requires_grad_()
        gathered = ranks.all_gather_rows(rows, sizes)
        (gathered * (1 + ranks.rank)).sum().backward()
        return gathered.tolist(), rows.grad.tolist()

    expected = [[0, 1], [2, 3], [20, 21]]
    ranks = run_ranks(3, gather)
    assert [rows for rows, _ in ranks] == [expected] * 3
    assert [gradient for _, gradient in ranks] == [[[6, 6], [6, 6]], [], [[6, 6]]]


def test_a_gradient_that_no_rank_has_stays_none():
    def add(ranks):
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (2, 3, 1)]
        parameters[0].grad = torch.full((2,), 1.0 + ranks.rank)
        if ranks.rank == 1:
            parameters[1].grad = torch.arange(3.0)
        ranks.all_reduce_gradients(parameters)
        return [None if one.grad is None else one.grad.tolist() for one in parameters]

    assert run_ranks(2, add) == [[[3, 3], [0, 1, 2], None]] * 2


def test_what_rank_0_cannot_do_stops_all():
    def fail(ranks):
        try:
            return ranks.on_rank_0(lambda: math.sqrt(-1.0))
        except ValueError as error:
            return f"{type(error).__name__}: {error}"

    assert run_ranks(2, fail) == [
        "ValueError: math domain error",
        "InputError: rank 0 failed; see its error message",
    ]
    assert run_ranks(2, lambda ranks: ranks.on_rank_0(lambda: 7)) == [7, None]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_or_silent_does_not_hang_the_others(how):
    def wait(ranks):
        if ranks.rank == 1:
            os.kill(os.getpid(), how)
        try:
            ranks.barrier()
        except LostRanksError as error:
            return str(error)

    (told,) = run_ranks(2, wait, timeout=2, lost=[1])
    assert told.startswith("rank 0 lost the others: ")


def test_what_ranks_cannot_do_is_refused(store, calm, tmp_path, monkeypatch):
    two = ProcessGroup(rank=1, world=2, local_rank=1, local_world=2)
    slow = replace(calm.batch, central=False)
    model = build_recommender(calm.recommender, store)
    with pytest.raises(InputError, match=r"set cache\.gamma 0"):
        check_workflow(model, calm.loss, slow, is_cached=True, world=2)
    check_workflow(model, calm.loss, slow, is_cached=True)
    kept = replace(calm, news=replace(calm.news, frozen_file=tmp_path / "kept"))
    with pytest.raises(InputError, match="leave it out"):
        Trainer(start_run(tmp_path / "run", kept, store), store, two)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="say cuda or auto"):
        two.local_device(torch.device("cuda:1"))
    with pytest.raises(InputError, match=r"2 ranks on this host.*1 GPUs"):
        two.local_device(torch.device("cuda"))
    assert two.local_device(torch.device("cpu")) == torch.device("cpu")
