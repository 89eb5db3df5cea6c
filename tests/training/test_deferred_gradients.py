"""With the weights held still, an epoch with a cache that learns gives the gradients of one without a cache."""

import json
import warnings
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch.amp import GradScaler

from speedyfeed.batching.loader import Loader
from speedyfeed.models.config import UserConfig
from speedyfeed.models.users import USER_ENCODERS
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import PAPER_CACHE, RECIPES, conventional, recipe
from speedyfeed.training.checkpoint import Checkpointer
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS
from speedyfeed.training.loop import open_loader, train
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer
from tests.training.distributed.processes import run_ranks

STEPS = 11
BREAK = 6  # the end of an update of 1, 2 or 3 batches


@pytest.fixture
def still(config, monkeypatch):
    """A run without dropout, whose weights never move, in batches that do not depend on the cache."""
    monkeypatch.setattr(Recommender, "train", lambda self, mode=True: torch.nn.Module.train(self, False))
    return replace(
        config,
        user=UserConfig(heads=4, query_width=6, id_width=5),
        batch=replace(config.batch, size=6, max_clicks=8, token_budget=600),
        cache=replace(config.cache, gamma=4, beta=0.5, draw="news", gradients=True, center=False),
        loss=replace(config.loss, fallback_negatives_weight=0.3),
        train=replace(
            config.train,
            lr=0.0,
            encoder_lr=1e-30,  # 0 would freeze the encoder, which then receives no gradients
            validations=0,
            steps=STEPS,
            checkpoint_every=BREAK,
        ),
    )


def without_cache(config):
    return replace(config, cache=replace(config.cache, gamma=0))


def learn(group, path, config, store, monkeypatch, *, breaks=False):
    """Summed gradients of all updates of a run, by parameter; it stops and resumes once if it `breaks`."""
    total, step = {}, Trainer.step

    def interrupted(self, batch, factor):
        if batch.step == BREAK:
            raise KeyboardInterrupt
        return step(self, batch, factor)

    group.on_rank_0(lambda: start_run(path, config, store))
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, _: add_up(total, parameters))
        if breaks:
            with patch.context() as inner, pytest.raises(KeyboardInterrupt):
                inner.setattr(Trainer, "step", interrupted)
                train(open_run(path), store, group=group)
        assert train(open_run(path), store, group=group).is_finished
    return {number: gradient.numpy() for number, gradient in total.items()}


def assert_same(ours, twin):
    assert ours.keys() == twin.keys()
    assert len(ours) > 10
    noise = 1e-5 * max(np.abs(expected).max() for expected in twin.values())
    for number, expected in twin.items():
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


def random_case(still, name, seed):
    """A run with this user encoder, whose other settings are drawn."""
    rng = np.random.default_rng(seed)
    cache = replace(
        still.cache,
        gamma=int(rng.integers(1, 9)),
        beta=float(rng.choice([0.1, 0.5, 1e9])),
        draw=str(rng.choice(["news", "step"])),
    )
    size, negatives, fallback = int(rng.integers(2, 7)), int(rng.integers(1, 4)), float(rng.uniform(0.1, 1))
    return replace(
        still,
        user=replace(still.user, name=name),
        batch=replace(still.batch, size=size, negatives=negatives, max_clicks=int(rng.integers(3, 9))),
        cache=cache,
        loss=replace(still.loss, fallback_negatives_weight=fallback),
        train=replace(still.train, seed=seed, accumulate=int(rng.integers(1, 4))),
    )


def walk(group, path, config, store, monkeypatch, *, parts=(BREAK, STEPS - BREAK)):
    """Summed gradients of some steps and a final delivery, by parameter; a new trainer for each part."""
    group.on_rank_0(lambda: start_run(path, config, store))
    group.barrier()
    run, total = open_run(path), {}
    trainer, state = Trainer(run, store, group), None
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, _: add_up(total, parameters))
        for num_steps in parts:
            if state is not None:
                deferred, cache = trainer.export_deferred(), trainer.cache
                trainer = Trainer(run, store, group)
                trainer.load_deferred(deferred)
                if cache is not None and group.is_writer:
                    trainer.cache.load(cache.export(BREAK - config.cache.gamma))
                group.barrier()
            with open_loader(trainer.config, store.train, trainer.news.lengths_M.numpy(), state) as loader:
                for batch in islice(loader, num_steps):
                    trainer.step(batch, 0.0)
                state = loader.state()
        trainer.finish(STEPS, 0.0)
    assert not trainer.deferred or trainer.deferred.share_delivered == 1
    return {number: gradient.numpy() for number, gradient in total.items()}


def add_up(total, parameters):
    for number, parameter in enumerate(parameters):
        if parameter.grad is not None:
            total[number] = total.get(number, 0) + parameter.grad.double()
    return torch.tensor(0.0)


@pytest.mark.parametrize(("seed", "name"), list(enumerate(USER_ENCODERS)))
def test_every_user_encoder_teaches_the_encoder_all_it_would_without_a_cache(
    seed, name, store, still, tmp_path, monkeypatch
):
    run = random_case(still, name, seed)
    twin = walk(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    assert_same(walk(SINGLE_PROCESS, tmp_path / "run", run, store, monkeypatch), twin)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", USER_ENCODERS)
def test_with_every_user_encoder_ranks_deliver_what_their_users_owe(
    name, world, store, still, tmp_path, monkeypatch
):
    run = random_case(still, name, seed=10 * world + len(name))
    twin = walk(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch, parts=[BREAK])
    for total in run_ranks(
        world, lambda group: walk(group, tmp_path / "run", run, store, monkeypatch, parts=[BREAK])
    ):
        assert_same(total, twin)


def test_centered_gradients_are_those_of_rows_whose_mean_is_held_still(store, still, tmp_path):
    run = replace(still, cache=replace(still.cache, center=True))
    trainer = Trainer(start_run(tmp_path / "run", run, store), store)
    ids = torch.arange(1, 9)
    weights = torch.randn(8, trainer.model.news.width, generator=torch.Generator().manual_seed(0))

    def gradients(hold):
        rows = trainer.workflow.encode_text(ids)
        if hold:
            rows = rows - rows.mean(0) + rows.mean(0).detach()
        else:
            trainer._center_gradients(rows)
        loss = (rows * weights).sum() + (rows.pow(2) * weights).sum()  # two uses of the rows
        parameters = [one for one in trainer.model.news.encoder.parameters() if one.requires_grad]
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    for ours, twin in zip(gradients(hold=False), gradients(hold=True), strict=True):
        assert (ours is None) == (twin is None)
        if ours is not None:
            torch.testing.assert_close(ours, twin, rtol=1e-3, atol=1e-5)


def test_ranks_center_gradients_like_one_process(store, still, tmp_path, monkeypatch):
    run = replace(still, cache=replace(still.cache, center=True))
    twin = walk(SINGLE_PROCESS, tmp_path / "twin", run, store, monkeypatch, parts=[BREAK])
    plain = replace(still, cache=replace(still.cache, center=False))
    other = walk(SINGLE_PROCESS, tmp_path / "plain", plain, store, monkeypatch, parts=[BREAK])
    with pytest.raises(AssertionError):
        assert_same(twin, other)
    for total in run_ranks(2, lambda group: walk(group, tmp_path / "run", run, store, monkeypatch, parts=[BREAK])):
        assert_same(total, twin)


def test_the_scale_of_the_loss_may_change_between_reading_and_delivering(store, still, tmp_path, monkeypatch):
    run = replace(still, cache=replace(still.cache, beta=1e9))
    twin = walk(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    scalers = []

    def scaler(device, enabled):
        scalers.append(GradScaler(device, init_scale=4.0, growth_interval=2))
        return scalers[-1]

    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    assert_same(walk(SINGLE_PROCESS, tmp_path / "run", run, store, monkeypatch), twin)
    assert scalers[0].get_scale() > 4


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


def test_ranks_share_the_in_batch_loss_and_are_killed(store, still, tmp_path, monkeypatch):
    run = VARIANTS["in-batch loss"](still)
    twin = learn(SINGLE_PROCESS, tmp_path / "twin", without_cache(run), store, monkeypatch)
    for total in run_ranks(2, lambda group: learn(group, tmp_path / "run", run, store, monkeypatch, breaks=True)):
        assert_same(total, twin)


def test_another_number_of_ranks_resumes_with_the_same_deferred_gradients(store, still, tmp_path, monkeypatch):
    run = replace(still, train=replace(still.train, steps=BREAK))

    def exported_by(group, *, is_first):
        trainer = Trainer(open_run(tmp_path / "run"), store, group)
        if is_first:
            trainer.deferred.collect(
                0, torch.tensor([3, 5]), torch.tensor([3 + 2 * group.rank]), torch.ones(1, 32)
            )
            trainer.deferred.settle(1.0)
        else:
            trainer.load_deferred({name: torch.from_numpy(value) for name, value in saved.items()})
        return {name: value.numpy() for name, value in trainer.export_deferred().items()}

    start_run(tmp_path / "run", run, store)
    saved, _ = run_ranks(2, lambda group: exported_by(group, is_first=True))
    assert saved["rows"][:, :, 0].tolist() == [[1, 0], [0, 1]]
    assert (
        run_ranks(2, lambda group: exported_by(group, is_first=False))[1]["rows"].tolist()
        == saved["rows"].tolist()
    )
    alone = exported_by(SINGLE_PROCESS, is_first=False)
    assert alone["rows"][:, :, 0].tolist() == [[1, 1]]
    three = run_ranks(3, lambda group: exported_by(group, is_first=False))
    assert three[2]["rows"][:, :, 0].tolist() == [[1, 1], [0, 0], [0, 0]]


SMOKES = {
    "bf16": lambda run: replace(
        run, cache=replace(run.cache, dtype="bf16"), train=replace(run.train, precision="bf16")
    ),
    "last": lambda run: replace(run, news=replace(run.news, encoder=f"last:{run.news.encoder}")),
    "padded": lambda run: replace(run, batch=replace(run.batch, mode="padded")),
    "draw step": lambda run: replace(run, cache=replace(run.cache, draw="step", gamma=2)),
    "accumulated": lambda run: replace(run, train=replace(run.train, accumulate=3)),
}


@pytest.mark.parametrize("name", SMOKES)
def test_nothing_warns(name, store, config, tmp_path, caplog):
    cache = replace(config.cache, gradients=True, draw="news", beta=0.5)
    config = replace(config, train=replace(config.train, encoder_lr=1e-5, lr=1e-5))
    run = SMOKES[name](replace(config, cache=cache, train=replace(config.train, steps=12, validations=0)))
    with warnings.catch_warnings(action="error"):
        train(start_run(tmp_path / "run", run, store), store)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    *_, last = lines(tmp_path / "run")
    assert last["gradient_delivered"] == 1
    *_, compared = (line for line in lines(tmp_path / "run") if "cache_cosine_p5" in line)
    assert 0.9 < compared["cache_cosine_p5"] <= compared["cache_cosine"] < 1.001
    assert 0.9 < last["cache_cosine_age_4"] < 1.001


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
    assert len(trainer.deferred.pending()) > 0
    train(broken, store)
    ours, twin = (Recommender.from_pretrained(one.path).state_dict() for one in (broken, whole))
    assert all(torch.equal(ours[name], twin[name]) for name in ours)


def test_old_gradients_are_delivered_though_the_article_does_not_come_again(store, still, tmp_path):
    run = replace(still, cache=replace(still.cache, gamma=2), batch=replace(still.batch, token_budget=1 << 20))
    trainer = Trainer(start_run(tmp_path / "run", run, store), store)
    since = []
    lengths = trainer.news.lengths_M.numpy()
    with Loader(store.train, lengths, run.batch, run.cache, seed=0) as loader:
        for batch in islice(loader, 12):
            trainer.step(batch, 0.0)
            since.append(int(trainer.export_deferred()["since"].numpy().min(initial=batch.step)))
            assert torch.equal(
                trainer.deferred.pending().sort()[0],
                torch.from_numpy(np.flatnonzero(loader.state().deferred_V >= 0)),
            )
    assert all(oldest >= step - 2 for step, oldest in enumerate(since))
    assert any(oldest == step - 2 for step, oldest in enumerate(since))
    assert 0.5 < trainer.deferred.share_delivered < 1


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


def test_it_is_on_unless_the_cache_is_that_of_the_paper():
    for name in RECIPES:
        config = recipe(name)
        assert config.cache.gradients == (config.cache.beta != PAPER_CACHE.beta), name


def test_the_conventional_workflow_has_no_cache_and_defers_nothing(store, still, tmp_path):
    run = replace(conventional(still), train=still.train)
    assert Trainer(start_run(tmp_path / "run", run, store), store).deferred is None
