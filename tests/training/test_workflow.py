"""Every acceleration on or off: the same loss from the same clicks, and the same gradients."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from speedyfeed.batching.batches import BatchConfig, Position
from speedyfeed.batching.cache_plan import CacheConfig, new_stamps
from speedyfeed.batching.loader import Loader, LoaderState
from speedyfeed.data.store import Timelines
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.inputs import open_packed
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig, UserConfig, WordConfig
from speedyfeed.pretrained import Recommender
from speedyfeed.ragged import Ragged
from speedyfeed.recipes import CONVENTIONAL_SIZE, conventional, fast
from speedyfeed.training.config import LossConfig, RunConfig, TrainConfig
from speedyfeed.training.loop import train
from speedyfeed.training.losses import ClickLoss
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.trainer import Trainer, build_recommender
from speedyfeed.training.workflow import Workflow, weigh

WORDS = WordConfig(width=8, heads=4, query_width=6, category_width=4)
USERS = {"nrms": "self-attention", "naml": "additive", "lstur": "lstur-ini", "npa": "npa", "plm": "attentive"}
BATCH = BatchConfig(token_budget=1 << 20, max_clicks=12, negatives=1, num_buckets=1)
CACHE = CacheConfig(gamma=0, beta=2e-3, draw="step")


def run_of(name, tiny_encoder):
    encoder = str(tiny_encoder) if name == "plm" else name
    user = UserConfig(name=USERS[name], heads=4, query_width=6, id_width=5)
    news = NewsEncoderConfig(encoder=encoder, dim=16, segments=name != "plm")
    return RunConfig(news=news, words=WORDS, user=user, batch=BATCH, cache=CACHE)


def one_user(store, num_clicks):
    """A log with one user of the store and their latest clicks."""
    lengths = store.train.clicks.lengths
    user = int(np.flatnonzero(lengths >= num_clicks)[0])
    positions = np.arange(store.train.clicks.offsets[user + 1] - num_clicks, store.train.clicks.offsets[user + 1])
    return Timelines(
        clicks=Ragged(values=store.train.clicks.values[positions], offsets=np.array([0, num_clicks])),
        click_pools=store.train.click_pools[positions],
        user_pools=store.train.user_pools[[user]],
        pools=store.train.pools,
    )


def build(config, store):
    torch.manual_seed(0)
    return build_recommender(config.recommender, store).eval()  # eval: no dropout, and no user is an unknown user


def learn(model, config, store, log, stamps=None, cache=None):
    """Loss and gradients of an epoch of one batch."""
    news = open_packed(store, word_tokens=model.news.uses_words, id_maps=model.id_maps)
    loss = ClickLoss(config.loss, fallback_negatives_weight=0.5, num_news=store.num_news)
    workflow = Workflow(model, loss, news, cache, torch.zeros(store.num_news + 1), config.batch)
    state = None
    if stamps is not None:
        position = Position(step=stamps.max() + 1)
        state = LoaderState(position=position, stamps_V=stamps, deferred_V=new_stamps(store.num_news))
    with Loader(log, news.lengths_M.numpy(), config.batch, config.cache, seed=0, epochs=1, state=state) as loader:
        (batch,) = loader
    model.zero_grad()
    learned = workflow(batch)
    learned.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return batch, learned, gradients


def assert_same(ours, twin):
    (_, learned, gradients), (_, expected, wanted) = ours, twin
    torch.testing.assert_close(learned.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == wanted.keys()
    assert len(gradients) > 3
    for name, gradient in gradients.items():
        noise = 1e-6 + 2e-5 * float(wanted[name].abs().max())  # of sums in another order, where terms cancel
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=noise, msg=name)


@pytest.mark.parametrize("num_clicks", [1, 7])
@pytest.mark.parametrize("name", [name for name in USERS if name != "npa"])
def test_conventional_and_fast_learn_the_same_from_one_user(name, num_clicks, store, tiny_encoder):
    config = run_of(name, tiny_encoder)
    model, log = build(config, store), one_user(store, num_clicks)
    batch, *_ = quick = learn(model, config, store, log)
    slow_config = conventional(config)
    slow_config = replace(slow_config, batch=replace(slow_config.batch, size=CONVENTIONAL_SIZE))  # one batch
    slow, *_ = conventionally = learn(model, slow_config, store, log)
    assert_same(conventionally, quick)
    assert batch.history_BL.shape == (1, num_clicks)
    assert slow.history_BL.shape == (num_clicks, BATCH.max_clicks)
    assert slow.num_clicks == batch.num_clicks == num_clicks
    assert batch.data_efficiency == 1 > slow.data_efficiency


@pytest.mark.parametrize(
    ("central", "autoregressive", "size", "mode"),
    list(product([True, False], [True, False], [0, 64], ["packed", "padded"]))[1:],
)
def test_any_subset_of_the_accelerations_learns_the_same(central, autoregressive, size, mode, store, tiny_encoder):
    log = one_user(store, 5)
    for name in ("nrms", "plm"):
        config = run_of(name, tiny_encoder)
        model = build(config, store)
        batch = replace(config.batch, central=central, autoregressive=autoregressive, size=size, mode=mode)
        assert_same(learn(model, replace(config, batch=batch), store, log), learn(model, config, store, log))


def test_bus_segments_are_padded_to_the_same_loss(store, tiny_encoder):
    config = run_of("plm", tiny_encoder)
    config = replace(config, news=replace(config.news, segments=True))
    model, log = build(config, store), one_user(store, 5)
    padded = replace(config, batch=replace(config.batch, mode="padded"))
    assert_same(learn(model, padded, store, log), learn(model, config, store, log))


@pytest.mark.parametrize("central", [True, False])
def test_rows_of_the_cache_are_used_wherever_news_are_encoded(central, store, tiny_encoder):
    config = run_of("nrms", tiny_encoder)
    config = replace(config, batch=replace(config.batch, central=central), cache=replace(CACHE, gamma=5, beta=1e9))
    model, log = build(config, store), one_user(store, 6)
    batch, fresh, _ = learn(model, config, store, log)
    cache = NewsCache(num_news=store.num_news, width=16)
    cache.write(fresh.merged.encoded_E, fresh.merged.encoded_EH, 0)
    assert fresh.merged.encoded_E.tolist() == batch.encode_E.tolist()
    stamps = new_stamps(store.num_news)
    stamps[batch.encode_E] = 0
    again, cached, gradients = learn(model, config, store, log, stamps, cache)
    assert len(again.encode_E) == 0
    assert len(cached.merged.encoded_E) == 0
    torch.testing.assert_close(cached.loss, fresh.loss)
    learned = {name for name, gradient in gradients.items() if name.startswith("news.") and gradient.any()}
    assert learned <= {"news.shift"}  # which is added to rows of the cache, too


def test_a_known_user_is_told_from_an_unknown_one_and_some_ids_are_hidden(store, tiny_encoder):
    for name in ("lstur", "npa"):
        config = conventional(run_of(name, tiny_encoder))
        model, log = build(config, store), one_user(store, 8)
        *_, known = learn(model, config, store, log)
        assert known["user_embeddings.weight"][1].any()
        assert not known["user_embeddings.weight"][0].any()
        model.train()
        torch.manual_seed(1)
        *_, some = learn(model, config, store, log)
        assert some["user_embeddings.weight"][0].any()  # eight instances, half of them unknown users
        assert some["user_embeddings.weight"][1].any()


def test_user_dependent_embeddings_and_a_shared_loss_are_refused_where_they_would_be_wrong(store, tiny_encoder):
    config = run_of("npa", tiny_encoder)
    model, log = build(config, store), one_user(store, 2)
    with pytest.raises(InputError, match=r"'npa' embeds an article differently.*--workflow conventional"):
        learn(model, config, store, log)
    config = run_of("nrms", tiny_encoder)
    slow = replace(conventional(config), loss=LossConfig(in_batch=0.5))
    with pytest.raises(InputError, match=r"batch.central and batch.autoregressive"):
        learn(build(config, store), slow, store, log)


def test_a_workflow_is_all_switches_and_back(tiny_encoder):
    config = replace(run_of("nrms", tiny_encoder), batch=BatchConfig(), cache=CacheConfig())
    slow = conventional(config)
    assert (slow.batch.central, slow.batch.autoregressive, slow.batch.mode, slow.cache.gamma) == (
        False,
        False,
        "padded",
        0,
    )
    assert slow.batch.size > 0
    assert not slow.news.segments
    assert fast(slow) == config


def test_news_too_long_for_the_encoder_are_told_at_once(store, tiny_encoder):
    config = run_of("plm", tiny_encoder)
    model = build(config, store)
    model.news.max_tokens = 10
    with pytest.raises(InputError, match="but this encoder reads 10"):
        learn(model, config, store, one_user(store, 2))


@pytest.mark.parametrize("name", ["naml", "lstur", "npa"])
def test_a_baseline_that_fails_and_resumes_ends_like_one_that_did_not(
    name, store, tiny_encoder, tmp_path, monkeypatch
):
    config = run_of(name, tiny_encoder)
    config = replace(
        conventional(config)
        if name == "npa"
        else replace(config, batch=replace(BATCH, token_budget=500), cache=replace(CACHE, gamma=3)),
        train=TrainConfig(lr=1e-2, precision="fp32", steps=6, epochs=1, checkpoint_every=2, validations=0),
    )
    whole, broken = (start_run(tmp_path / part, config, store) for part in ("whole", "broken"))
    train(whole, store)
    step = Trainer.step

    def breaks(self, batch, factor):
        if batch.step == 5:
            raise KeyboardInterrupt
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", breaks)
    with pytest.raises(KeyboardInterrupt):
        train(broken, store)
    monkeypatch.undo()
    assert train(broken, store).progress.step == 6
    ours, twin = (Recommender.from_pretrained(run.path).state_dict() for run in (broken, whole))
    assert ours.keys() == twin.keys()
    assert all(torch.equal(ours[name], twin[name]) for name in ours)


@pytest.mark.parametrize("name", ["nrms", "plm"])
def test_without_the_first_click_both_workflows_learn_from_the_clicks_after_it(name, store, tiny_encoder):
    config = run_of(name, tiny_encoder)
    config = replace(config, batch=replace(config.batch, first_click=False))
    model, log = build(config, store), one_user(store, 5)
    with torch.no_grad():
        model.user.start.normal_()  # a loss of the first click would depend on it, and on nothing else
    batch, *_ = quick = learn(model, config, store, log)
    slow_config = conventional(config)
    slow_config = replace(slow_config, batch=replace(slow_config.batch, size=CONVENTIONAL_SIZE))
    slow, *_ = conventionally = learn(model, slow_config, store, log)
    assert_same(conventionally, quick)
    assert batch.num_clicks == slow.num_clicks == 4
    assert batch.targets_BL[0, 0] == 0
    assert weigh(batch, 0.5) == weigh(slow, 0.5)
    _, whole, _ = learn(model, replace(config, batch=replace(config.batch, first_click=True)), store, log)
    assert not torch.isclose(whole.loss, quick[1].loss)


def test_without_the_first_click_users_have_no_start_vector(store, tiny_encoder, tmp_path):
    config = run_of("plm", tiny_encoder)
    config = replace(
        config,
        batch=replace(config.batch, first_click=False),
        train=TrainConfig(steps=2, validations=0, precision="fp32"),
    )
    run = start_run(tmp_path / "run", config, store)
    assert train(run, store).is_finished
    user = Recommender.from_pretrained(run.path).user
    assert not user.start.any()
    assert user.score.weight.any()


def test_the_in_batch_loss_needs_the_first_click(store, tiny_encoder):
    config = run_of("plm", tiny_encoder)
    config = replace(config, loss=LossConfig(in_batch=0.5), batch=replace(config.batch, first_click=False))
    with pytest.raises(InputError, match=r"leave out batch.no-first-click"):
        learn(build(config, store), config, store, one_user(store, 3))
