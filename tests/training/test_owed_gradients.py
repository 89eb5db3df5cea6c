"""With the weights held still, an epoch with a cache that learns gives the gradients of one without a cache."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from speedyfeed.batching.loader import Loader
from speedyfeed.models.users import USER_ENCODERS, UserConfig
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import conventional
from speedyfeed.training.checkpoint import Checkpointer
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS
from speedyfeed.training.loop import train
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer
from tests.training.distributed.processes import run_ranks

STEPS = 11
BREAK = 6


@pytest.fixture
def still(config, monkeypatch):
    """A run without dropout, whose weights never move, in batches that do not depend on the cache."""
    monkeypatch.setattr(Recommender, "train", lambda self, mode=True: torch.nn.Module.train(self, False))
    return replace(
        config,
        user=UserConfig(heads=4, query_width=6, id_width=5),
        batch=replace(config.batch, size=6, max_clicks=8, token_budget=600),
        cache=replace(config.cache, gamma=4, beta=0.5, draw="news", gradients=True),
        loss=replace(config.loss, fallback_negatives_weight=0.3),
        train=replace(config.train, lr=0.0, encoder_lr=0.0, validations=0, steps=STEPS, checkpoint_every=BREAK),
    )


def without_cache(config):
    return replace(config, cache=replace(config.cache, gamma=0))


def learn(group, path, config, store, monkeypatch, *, breaks=False):
    """Summed gradients of all updates of a run, by parameter; it stops and resumes once if it `breaks`."""
    total, step = {}, Trainer.step

    def add(parameters, _):
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None:
                total[number] = total.get(number, 0) + parameter.grad.double()
        return torch.tensor(0.0)

    def interrupted(self, batch, factor):
        if batch.step == BREAK:
            raise KeyboardInterrupt
        return step(self, batch, factor)

    group.on_rank_0(lambda: start_run(path, config, store))
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", add)
        if breaks:
            with patch.context() as inner, pytest.raises(KeyboardInterrupt):
                inner.setattr(Trainer, "step", interrupted)
                train(open_run(path), store, group=group)
        assert train(open_run(path), store, group=group).is_finished
    return {number: gradient.numpy() for number, gradient in total.items()}


def assert_same(ours, twin):
    assert ours.keys() == twin.keys()
    assert len(ours) > 10
    for number, expected in twin.items():
        noise = 1e-5 * np.abs(expected).max() + 1e-9
        np.testing.assert_allclose(ours[number], expected, rtol=0, atol=noise, err_msg=str(number))


def lines(path):
    return [json.loads(line) for line in (path / METRICS).read_text().splitlines()]


VARIANTS = {
    "draw step": lambda run: replace(run, cache=replace(run.cache, draw="step", beta=1.0)),
    "all cached": lambda run: replace(run, cache=replace(run.cache, gamma=99, beta=1e9)),
    "accumulated": lambda run: replace(run, train=replace(run.train, accumulate=3, checkpoint_every=BREAK)),
    "padded": lambda run: replace(run, batch=replace(run.batch, mode="padded")),
    "in place": lambda run: replace(run, batch=replace(run.batch, central=False)),
    "not autoregressive": lambda run: replace(run, batch=replace(run.batch, autoregressive=False)),
    "last layer": lambda run: replace(run, news=replace(run.news, train_layers=1)),
    "in-batch loss": lambda run: replace(run, loss=replace(run.loss, in_batch=0.5)),
}


@pytest.mark.parametrize("name", USER_ENCODERS)
def test_every_user_encoder_teaches_the_encoder_all_it_would_without_a_cache(
    name, store, still, tmp_path, monkeypatch
):
    run = replace(still, user=replace(still.user, name=name))
    twin = learn(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    assert_same(learn(SINGLE_PROCESS, tmp_path / "run", run, store, monkeypatch), twin)


@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_is_trained_and_resumed_nothing_is_lost(name, store, still, tmp_path, monkeypatch):
    run = VARIANTS[name](still)
    twin = learn(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    assert_same(learn(SINGLE_PROCESS, tmp_path / "run", run, store, monkeypatch, breaks=True), twin)
    rates = [line["cache_hit_rate"] for line in lines(tmp_path / "run") if "cache_hit_rate" in line]
    assert max(rates) > 0.1
    shares = [line["gradient_delivered"] for line in lines(tmp_path / "run") if "gradient_delivered" in line]
    assert shares[-1] == 1


def test_without_it_gradients_are_lost(store, still, tmp_path, monkeypatch):
    run = replace(still, cache=replace(still.cache, gradients=False))
    twin = learn(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(learn(SINGLE_PROCESS, tmp_path / "run", run, store, monkeypatch), twin)
    assert not any("gradient_delivered" in line for line in lines(tmp_path / "run"))


@pytest.mark.parametrize("name", ["all cached", "accumulated", "in-batch loss"])
def test_ranks_deliver_what_their_users_owe(name, store, still, tmp_path, monkeypatch):
    run = VARIANTS[name](still)
    twin = learn(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    ranks = run_ranks(
        2, lambda group: learn(group, tmp_path / "run", run, store, monkeypatch, breaks=name == "accumulated")
    )
    for total in ranks:
        assert_same(total, twin)


def test_another_number_of_ranks_resumes_with_the_same_debts(store, still, tmp_path, monkeypatch):
    run = replace(still, train=replace(still.train, steps=BREAK))

    def debts(group, *, is_first):
        trainer = Trainer(open_run(tmp_path / "run"), store, group)
        if is_first:
            trainer.owed.collect(0, torch.tensor([3, 5]), torch.tensor([3 + 2 * group.rank]), torch.ones(1, 32))
            trainer.owed.settle(1.0)
        else:
            trainer.load_owed({name: torch.from_numpy(value) for name, value in saved.items()})
        return {name: value.numpy() for name, value in trainer.export_owed().items()}

    start_run(tmp_path / "run", run, store)
    saved, _ = run_ranks(2, lambda group: debts(group, is_first=True))
    assert saved["rows"][:, :, 0].tolist() == [[1, 0], [0, 1]]
    assert run_ranks(2, lambda group: debts(group, is_first=False))[1]["rows"].tolist() == saved["rows"].tolist()
    alone = debts(SINGLE_PROCESS, is_first=False)
    assert alone["rows"][:, :, 0].tolist() == [[1, 1]]
    three = run_ranks(3, lambda group: debts(group, is_first=False))
    assert three[2]["rows"][:, :, 0].tolist() == [[1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_breaks_ends_bit_for_bit_like_one_that_does_not(
    precision, store, config, tmp_path, monkeypatch
):
    run = replace(
        config,
        cache=replace(config.cache, gradients=True, draw="news", beta=0.5),
        train=replace(config.train, steps=10, validations=0, precision=precision),
    )
    whole, broken = (start_run(tmp_path / part, run, store) for part in ("whole", "broken"))
    train(whole, store)
    step = Trainer.step

    def breaks(self, batch, factor):
        if batch.step == BREAK:
            raise KeyboardInterrupt
        return step(self, batch, factor)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "step", breaks)
        train(broken, store)
    trainer = Trainer(broken, store)
    Checkpointer(trainer).restore()
    assert len(trainer.owed.owing()) > 0
    train(broken, store)
    ours, twin = (Recommender.from_pretrained(one.path).state_dict() for one in (broken, whole))
    assert all(torch.equal(ours[name], twin[name]) for name in ours)


def test_old_debts_are_delivered_though_the_article_does_not_come_again(store, still, tmp_path):
    run = replace(still, cache=replace(still.cache, gamma=2), batch=replace(still.batch, token_budget=1 << 20))
    trainer = Trainer(start_run(tmp_path / "run", run, store), store)
    since = []
    lengths = trainer.news.lengths_M.numpy()
    with Loader(store.train, lengths, run.batch, run.cache, seed=0) as loader:
        for batch in islice(loader, 12):
            trainer.step(batch, 0.0)
            since.append(int(trainer.export_owed()["since"].numpy().min(initial=batch.step)))
            assert torch.equal(
                trainer.owed.owing().sort()[0], torch.from_numpy(np.flatnonzero(loader.state().debts_V >= 0))
            )
    assert all(oldest >= step - 2 for step, oldest in enumerate(since))
    assert any(oldest == step - 2 for step, oldest in enumerate(since))
    assert 0.5 < trainer.owed.share_delivered < 1


@pytest.mark.parametrize("train_layers", [0, 1])
def test_a_cached_row_is_what_the_weights_say(train_layers, store, config, tmp_path):
    news = replace(config.news, train_layers=train_layers)
    for name, rate in (("none", 0.0), ("some", 0.1)):
        run = replace(config, news=replace(news, hidden_dropout=rate))
        trainer = Trainer(start_run(tmp_path / name, run, store), store)
        with Loader(store.train, trainer.news.lengths_M.numpy(), run.batch, run.cache, seed=0) as loader:
            batch = next(loader)
        trainer.step(batch, 0.0)
        ids = torch.from_numpy(batch.encode_E).long()
        clean = trainer.model.news.encode_texts(trainer.news.select(ids))
        assert torch.allclose(trainer.cache.read(ids), clean, atol=1e-5) == (rate == 0)


def test_the_conventional_workflow_has_no_cache_and_no_debts(store, still, tmp_path):
    run = replace(conventional(still), train=still.train)
    assert Trainer(start_run(tmp_path / "run", run, store), store).owed is None
