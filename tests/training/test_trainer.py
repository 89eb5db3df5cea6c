"""Training on planted interests: it learns, it stops and goes on bit for bit, and it fails without harm."""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from speedyfeed.batching.batches import news_lengths
from speedyfeed.data.store import Store, open_store
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import conventional, recipe
from speedyfeed.retrieval.rerank import PLAIN
from speedyfeed.saved_model import CONFIG, WEIGHTS
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.checkpoint import Checkpointer, checkpoints, newest_step
from speedyfeed.training.config import LossConfig, TrainConfig
from speedyfeed.training.loop import open_loader, train
from speedyfeed.training.losses import BIAS_RATE
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import StoreReference, open_run, start_run
from speedyfeed.training.schedule import Progress, Schedule, lr_factor
from speedyfeed.training.trainer import Trainer
from tests import forked


def lines(run):
    return [json.loads(line) for line in (run.path / METRICS).read_text().splitlines()]


def weights(run):
    return (run.model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_every_click_is_learned_from_once_an_epoch(store, config, tmp_path, weight):
    config = replace(
        config,
        train=replace(config.train, epochs=2),
        loss=replace(config.loss, fallback_negatives_weight=weight, in_batch=0.0),
    )
    run = start_run(tmp_path / "run", config, store)
    outcome = train(run, store)
    assert outcome.is_finished
    clicks = store.train.clicks
    is_latest = np.concatenate([np.arange(length)[::-1] < 30 for length in clicks.lengths])
    has_own_negatives = store.train.click_pools[:] >= 0
    assert 0 < has_own_negatives.mean() < 1
    assert outcome.progress.clicks == 2 * np.sum(is_latest * np.where(has_own_negatives, 1, weight))
    validated = [line["step"] for line in lines(run) if "validation_auc" in line]
    assert validated[0] == 0
    assert len(validated) == 1 + config.train.validations


def test_a_run_holds_all_it_takes_to_recommend(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=3)), store)
    assert train(run, store).progress.step == 3
    model = Recommender.from_pretrained(run.path)
    ids = store.load_titles()["news_id"].to_pylist()
    found = model.recommend(ids[:3], k=5, rerank=PLAIN)
    assert len(found) == 5
    assert not {one.news_id for one in found} & set(ids[:3])
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert model.score(ids[:3], [found[0].news_id])[0] == pytest.approx(found[0].score, abs=1e-5)
    assert len(model.recommend([], k=2)) == 2  # a new user
    with pytest.raises(InputError, match="NOSUCH"):
        model.recommend(["NOSUCH"])
    saved = tmp_path / "copy"
    model.save_pretrained(saved)
    assert Recommender.from_pretrained(saved).recommend(ids[:3], k=5, rerank=PLAIN) == found
    assert model.encode_news(["a title", ("a title", "an abstract")]).shape == (2, 16)


def test_an_article_is_encoded_as_the_store_holds_it(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=1)), store)
    train(run, store)
    with (store.path.parent / "logs" / "train" / "news.tsv").open(encoding="utf-8") as file:
        columns = [line.split("\t") for line in file]
    articles = {row[0]: (row[3], row[4]) for row in columns[:20]}
    categories = [row[1] for row in columns[:20]]
    assert any(len(abstract.split()) > 15 for _, abstract in articles.values())  # refinement has work to do
    shutil.copytree(run.model, tmp_path / "model")  # a model folder stands alone
    shutil.rmtree(run.path)
    model = Recommender.from_pretrained(tmp_path / "model")
    expected = model.catalogue.embeddings_VD[[model.catalogue.row[news_id] for news_id in articles]]
    np.testing.assert_allclose(model.encode_news(list(articles.values()), categories), expected, atol=1e-6)
    assert np.abs(model.encode_news([title for title, _ in articles.values()]) - expected.numpy()).max() > 1e-3


def test_a_run_with_real_weights_ranks_better_than_chance(tmp_path):
    """By three standard errors: .29 is the deviation of the AUC of one impression without any skill."""
    synthesize(tmp_path / "logs", SynthConfig(users=300, news=1000))
    store = prepare(tmp_path / "logs", tmp_path / "store", PrepareConfig(fields=("title",))).store
    config = recipe("tiny")
    config = replace(
        config,
        news=replace(config.news, dim=256),
        train=replace(config.train, steps=3, validations=1, validation_impressions=1000),
    )
    outcome = train(start_run(tmp_path / "run", config, store), store)
    assert outcome.progress.best_auc > 0.5 + 3 * 0.29 / len(store.impressions("valid").users) ** 0.5


def test_the_same_seed_gives_the_same_model(store, config, tmp_path):
    short = replace(config, train=replace(config.train, steps=4))
    for name in ("one", "two"):
        train(start_run(tmp_path / name, short, store), store)
    assert weights(open_run(tmp_path / "one")) == weights(open_run(tmp_path / "two"))


TRAIN = """
import sys
from pathlib import Path
from speedyfeed.data.store import open_store
from speedyfeed.training.run_folder import open_run
from speedyfeed.training.loop import open_loader, train
from speedyfeed.training.losses import BIAS_RATE
train(open_run(Path(sys.argv[2])), open_store(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(("precision", "train_layers"), [("fp32", None), ("bf16", 1)])
def test_a_run_killed_at_any_step_ends_like_one_that_was_not(store, config, tmp_path, precision, train_layers):
    config = replace(
        config,
        news=replace(config.news, train_layers=train_layers),
        loss=replace(config.loss, bias_start=1.0 if train_layers else 0.0),
        train=replace(config.train, steps=60, precision=precision),
    )
    train(start_run(tmp_path / "whole", config, store), store)
    killed = start_run(tmp_path / "killed", config, store)
    draw = random.Random(3)
    for _ in range(2):
        process = forked.Popen([sys.executable, "-c", TRAIN, store.path, killed.path])
        seen = newest_step(killed.checkpoints)
        while process.poll() is None and newest_step(killed.checkpoints) == seen:
            time.sleep(0.001)
        time.sleep(draw.random() / 10)  # anywhere in the steps that follow
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not killed.model.exists()
    forked.run([sys.executable, "-c", TRAIN, store.path, killed.path]).check_returncode()
    whole = open_run(tmp_path / "whole")
    assert weights(killed) == weights(whole)
    ends = [checkpoints(run.checkpoints)[-1] for run in (killed, whole)]  # the kept model may be an earlier one
    for name in ("model/model.safetensors", "training.safetensors"):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes(), name
    steps = [line["step"] for line in lines(killed) if "validation_auc" in line]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_and_the_run_goes_on(store, config, tmp_path, monkeypatch, number):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=8)), store)
    before = signal.getsignal(number)
    step = Trainer.step

    def interrupted(self, batch, factor):
        if batch.step == 5:
            os.kill(os.getpid(), number)
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train(run, store)
    monkeypatch.undo()
    assert (outcome.is_finished, outcome.progress.step) == (False, 6)
    assert not run.model.exists()
    assert signal.getsignal(number) is before
    assert not [thread for thread in threading.enumerate() if "loader" in thread.name]
    outcome = train(run, store)
    assert (outcome.is_finished, outcome.progress.step) == (True, 8)
    assert train(run, store) == outcome  # and once more does nothing


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(store, config, tmp_path, monkeypatch):
    run = start_run(tmp_path / "run", config, store)
    step = Trainer.step

    def poisoned(self, batch, factor):
        if batch.step == 6:
            with torch.no_grad():
                self.model.user.start.fill_(torch.nan)
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", poisoned)
    with pytest.raises(InputError, match=r"nan at step 6.*lower"):
        train(run, store)
    monkeypatch.undo()
    assert [path.name for path in checkpoints(run.checkpoints)] == ["step-00000004"]
    assert train(run, store).is_finished


def test_a_store_that_changed_is_refused(store, config, tmp_path):
    run = start_run(tmp_path / "run", config, store)
    run.note(store=StoreReference(path=str(store.path), fingerprint="other"))
    with pytest.raises(InputError, match="prepared anew"):
        train(run, open_store(store.path))


def test_a_store_of_another_tokenizer_is_refused(store, config, tmp_path):
    run = start_run(tmp_path / "run", config, store)
    settings = replace(store.manifest.settings, tokenizer="another")
    store = Store(store.path, replace(store.manifest, settings=settings))
    with pytest.raises(InputError, match=r"holds tokens of encoder 'minilm', but .* needs others; prepare"):
        Trainer(run, store)


def test_a_folder_with_a_run_is_not_started_again(store, config, tmp_path):
    start_run(tmp_path / "run", config, store)
    with pytest.raises(InputError, match="--resume"):
        start_run(tmp_path / "run", config, store)
    with pytest.raises(InputError, match="no run here"):
        open_run(tmp_path)
    assert open_run(tmp_path / "run").config == config.for_log(store.train, store.num_news)


def test_a_run_of_another_layout_is_refused_with_one_line(store, config, tmp_path):
    start_run(tmp_path / "run", config, store)
    file = tmp_path / "run" / "run.json"
    facts = json.loads(file.read_text())
    del facts["sha256"]  # older layouts have no checksum
    changed = [
        {name: value for name, value in facts.items() if name != "run_version"},
        facts | {"unheard_of": 1},
        facts | {"config": {name: part for name, part in facts["config"].items() if name != "cache"}},
        [],
    ]
    for values in changed:
        file.write_text(json.dumps(values))
        with pytest.raises(InputError, match="is a run of an older layout; train it again"):
            open_run(tmp_path / "run")


def test_building_a_trainer_writes_nothing(store, config, tmp_path):
    run = start_run(tmp_path / "run", config, store)

    def contents():
        return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    before = contents()
    Trainer(run, store)
    assert contents() == before
    assert run.facts.precision is None


def test_accumulated_batches_make_one_update(store, config, tmp_path):
    without_debts = replace(config.cache, gradients=False)  # their last delivery takes updates of its own
    config = replace(config, cache=without_debts, train=replace(config.train, accumulate=2, steps=4))
    run = start_run(tmp_path / "run", config, store)
    trainer = Trainer(run, store)
    assert train(run, store).progress.step == 4
    Checkpointer(trainer).restore()
    counts = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert counts == {2}


@pytest.mark.parametrize("limits", [{"steps": 3}, {"epochs": 1}])
def test_batches_too_few_for_an_update_make_a_last_one(store, config, tmp_path, limits):
    config = replace(
        config,
        cache=replace(config.cache, gradients=False),
        train=replace(config.train, accumulate=50 if "epochs" in limits else 2, **limits),
    )
    run = start_run(tmp_path / "run", config, store)
    done = train(run, store).progress.step
    trainer = Trainer(run, store)
    Checkpointer(trainer).restore()
    counts = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert done % config.train.accumulate
    assert counts == {done // config.train.accumulate + 1}


@pytest.mark.parametrize(("size", "accumulate", "steps"), [(1, 6, 6), (2, 3, 3), (1, 50, 6)])
def test_batches_of_an_update_are_as_one(store, config, tmp_path, monkeypatch, size, accumulate, steps):
    """Clicks without negatives of their own weigh as little in either; 6 are too few for an update of 50."""
    lengths = []
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a: lengths.append(clip(*a)) or lengths[-1])
    monkeypatch.setattr(
        Recommender, "train", lambda self, mode=True: torch.nn.Module.train(self, False)
    )  # no dropout
    slow = conventional(config)
    for name, *settings in (("whole", 6, 1, 1), ("parts", size, accumulate, steps)):
        changed = replace(
            slow,
            batch=replace(slow.batch, size=settings[0], max_clicks=5),
            train=replace(slow.train, accumulate=settings[1], steps=settings[2], validations=0),
        )
        train(start_run(tmp_path / name, changed, store), store)
    assert len(lengths) == 2
    torch.testing.assert_close(lengths[0], lengths[1])


def test_a_short_run_has_metrics_too_and_no_pickle_anywhere(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=1)), store)
    train(run, store)
    assert [line["step"] for line in lines(run) if "tokens_per_second" in line] == [1]
    assert list((run.path / "tensorboard").glob("events.out.tfevents.*"))
    kinds = {path.suffix for path in run.path.rglob("*") if path.is_file() and path.parent.name != "tensorboard"}
    assert kinds <= {".json", ".jsonl", ".safetensors", ".parquet", ".txt", ".md", ""}


def test_a_checkpoint_encodes_articles_as_the_run_does(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4, validations=0)), store)
    train(run, store)
    (saved,) = checkpoints(run.checkpoints)
    article = [("Late goal wins the cup", "The cup goes north after a late, late goal, and the north is glad.")]
    ours, theirs = (Recommender.from_pretrained(path).encode_news(article) for path in (saved / "model", run.path))
    np.testing.assert_array_equal(ours, theirs)


def test_learning_rates_and_validations_follow_the_clock(store, config, tmp_path, monkeypatch):
    """Every step takes two seconds by this clock: one until the batch is there, one to learn from it."""
    config = replace(config, train=replace(config.train, epochs=50, minutes=20 / 60, warmup=0.0, validations=5))
    factors = []
    step = Trainer.step

    def noted(self, batch, factor):
        factors.append(factor)
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", noted)
    monkeypatch.setattr("speedyfeed.training.recorder.perf_counter", itertools.count().__next__)
    run = start_run(tmp_path / "run", config, store)
    assert train(run, store).progress.seconds == 20
    assert factors == pytest.approx([1 - done / 10 for done in range(10)], abs=0.02)
    validated = [line["step"] for line in lines(run) if "validation_auc" in line]
    assert validated == [0, 2, 4, 6, 8, 10]


def test_a_recommender_goes_to_the_hub_with_what_each_call_takes(store, config, tmp_path, monkeypatch):
    import huggingface_hub

    model = Trainer(start_run(tmp_path / "run", config, store), store).model
    calls = []
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *args, **options: calls.append((args, options)))

    def upload_folder(*, repo_id, folder_path, **options):
        calls.append(((repo_id, sorted(path.name for path in Path(folder_path).iterdir())), options))
        return "address"

    monkeypatch.setattr(huggingface_hub, "upload_folder", upload_folder)
    assert model.push_to_hub("org/name", token="secret", private=True, commit_message="first") == "address"
    (create, upload) = calls
    assert create == (("org/name",), {"token": "secret", "private": True, "exist_ok": True})
    assert upload[1] == {"token": "secret", "commit_message": "first"}
    assert {CONFIG, WEIGHTS} <= set(upload[0][1])


@pytest.mark.parametrize(
    ("limits", "count"),
    [({}, (150, 400)), ({"steps": 10}, (5, 10)), ({"steps": 10, "minutes": 1.0}, (45, 60))],
)
def test_progress_counts_what_ends_the_run_first(limits, count):
    progress = Progress(step=5, epochs=1.5, seconds=45.0)
    schedule = Schedule(TrainConfig(epochs=4, **limits), progress, num_instances=100)
    assert schedule.count == count


def test_learning_rates_rise_and_fall():
    assert lr_factor(0.05, 0.1) == pytest.approx(0.5)
    assert lr_factor(0.1, 0.1) == pytest.approx(1.0)
    assert lr_factor(0.55, 0.1) == pytest.approx(0.5)
    assert lr_factor(1.0, 0.1) == 0
    assert lr_factor(0.5, 0.0) == 0.5


def test_schedule_clipping_and_the_search_for_an_initialization_can_be_left_out(
    store, config, tmp_path, monkeypatch
):
    factors, norms = [], []
    step, clip = Trainer.step, torch.nn.utils.clip_grad_norm_

    def noted_step(self, batch, lr_factor):
        factors.append(lr_factor)
        return step(self, batch, lr_factor)

    def noted_clip(parameters, norm):
        before = [parameter.grad.clone() for parameter in parameters]
        length = clip(parameters, norm)
        norms.append(float(length))
        assert all(torch.equal(a, parameter.grad) for a, parameter in zip(before, parameters, strict=True))
        return length

    monkeypatch.setattr(Trainer, "step", noted_step)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted_clip)
    config = replace(
        config,
        loss=replace(config.loss, temperature=1e-3),  # gradients above any usual limit
        train=replace(config.train, steps=2, validations=1, schedule="constant", clip=0.0, init="random"),
    )
    run = start_run(tmp_path / "run", config, store)
    assert train(run, store).is_finished
    assert factors == [1.0, 1.0]
    assert min(norms) > 1
    assert ["validation_auc" in line for line in lines(run)].count(True) == 2


@pytest.mark.parametrize("best", ["last", "initial"])
def test_the_model_that_validates_best_is_saved_with_its_biases(store, config, tmp_path, monkeypatch, best):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4, validations=1)), store)
    initial = []
    aucs = iter([1.0, {"last": 1.2, "initial": 0.0}[best]])

    def validate(trainer, *_, **__):
        initial.append(trainer.model.news.projection.weight.detach().clone())
        return next(aucs)

    monkeypatch.setattr(Trainer, "validate", validate)
    outcome = train(run, store)
    assert outcome.progress.best_auc == max(1.0, {"last": 1.2, "initial": 0.0}[best])
    assert outcome.best_is_initial == (best == "initial")
    saved = Recommender.from_pretrained(run.model)
    assert not torch.equal(initial[0], initial[1])
    assert torch.equal(saved.news.projection.weight, initial[best == "last"])
    assert any(saved.catalogue.biases) == (best == "last")


def test_the_initial_model_is_validated_with_the_first_trained_one(store, config, tmp_path):
    """No step waits for it; a run of no steps gives the AUC that it must have, and one without it the weights."""
    untrained = start_run(tmp_path / "untrained", replace(config, train=replace(config.train, steps=0)), store)
    assert train(untrained, store).is_finished
    (initial,) = (line for line in lines(untrained) if "validation_auc" in line)
    steps = []
    config = replace(config, train=replace(config.train, steps=6, checkpoint_every=2))
    run = start_run(tmp_path / "run", config, store)
    train(run, store, callbacks=[lambda report: steps.append(lines(run)) or report.progress.step == 4])
    assert not any("validation_auc" in line for line in steps[1])
    validated = [line for line in lines(run) if "validation_auc" in line]
    assert [line["step"] for line in validated] == [0, 3]
    assert validated[0] == initial

    shutil.rmtree(run.checkpoints / "step-00000004")  # the first validation is run again, of the trained model
    assert newest_step(run.checkpoints) == 2
    assert train(run, store).is_finished
    assert [line["step"] for line in lines(run) if "validation_auc" in line] == [0, 3, 6]
    without = replace(config, train=replace(config.train, validations=0))
    other = start_run(tmp_path / "other", without, store)
    train(other, store)
    last = [
        Recommender.from_pretrained(one.checkpoints / "step-00000006" / "model").state_dict()
        for one in (run, other)
    ]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_random_heads_depend_on_the_seed_alone(store, config, tmp_path):
    heads = {}
    for name, seed, init in (("a", 0, "random"), ("b", 0, "random"), ("c", 1, "random"), ("d", 0, "means")):
        settings = replace(config.train, seed=seed, init=init, steps=0, validations=0)
        trainer = Trainer(start_run(tmp_path / name, replace(config, train=settings), store), store)
        trainer.initialize()
        news, user = trainer.model.news, trainer.model.user
        heads[name] = torch.cat(
            [
                layer.weight.detach().flatten()
                for layer in (news.over_tokens.query, news.over_segments.query, user.score)
            ]
        )
    assert heads["a"].count_nonzero() == heads["a"].numel()
    assert torch.equal(heads["a"], heads["b"])
    assert not torch.equal(heads["a"], heads["c"])
    assert not heads["d"].any()


def test_a_frozen_encoder_stays_as_it_is_and_encodes_each_article_once(store, config, tmp_path, monkeypatch):
    config = replace(config, train=replace(config.train, encoder_lr=0.0, lr=1e-2, epochs=2, validations=0))
    encoded = []
    begin = Trainer.step

    def step(trainer, batch, lr_factor):
        encoded.extend([*batch.encode_E.tolist(), *batch.deliver_E.tolist()])
        return begin(trainer, batch, lr_factor)

    monkeypatch.setattr(Trainer, "step", step)
    run = start_run(tmp_path / "run", config, store)
    before = {name: value.clone() for name, value in Trainer(run, store).model.state_dict().items()}
    train(run, store)
    assert len(encoded) == len(set(encoded)) > 10
    assert [line["data_efficiency"] for line in lines(run) if "data_efficiency" in line][-1] == 1
    after = Recommender.from_pretrained(run.path).state_dict()
    same = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert {name for name in before if name.startswith("news.")} - same == {
        "news.projection.weight",
        "news.projection.bias",
        "news.category.weight",
    }
    assert "user.score.weight" not in same


def test_a_frozen_encoder_with_and_without_its_cache_trains_the_same_model(store, config, tmp_path):
    frozen = replace(
        config,
        batch=replace(config.batch, size=16),
        train=replace(config.train, encoder_lr=0.0, lr=1e-2, steps=8, validations=0, precision="fp32"),
    )
    models = []
    for gamma in (0, 3):
        run = start_run(tmp_path / str(gamma), replace(frozen, cache=replace(config.cache, gamma=gamma)), store)
        assert train(run, store).progress.step == 8
        models.append(Recommender.from_pretrained(run.path).state_dict())
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_validations_of_a_frozen_encoder_encode_each_text_once_and_follow_the_projection(
    store, config, tmp_path, monkeypatch
):
    config = replace(config, train=replace(config.train, encoder_lr=0.0, validations=2, precision="fp32"))
    trainer = Trainer(start_run(tmp_path / "run", config, store), store)
    trainer.initialize()
    trainer.validate()
    with torch.no_grad():
        trainer.model.news.projection.weight.normal_(generator=torch.Generator().manual_seed(0))
    expected = trainer.validation.measure(trainer.model, trainer.news, trainer.precision)
    monkeypatch.setattr(trainer.model.news, "encode_text", None)
    assert trainer.validate() == pytest.approx(expected, abs=1e-6)


def test_what_changes_the_text_that_is_read_has_the_learning_rate_of_the_encoder(store, config, tmp_path):
    config = replace(config, train=replace(config.train, encoder_lr=1e-6, lr=1e-2))
    trainer = Trainer(start_run(tmp_path / "run", config, store), store)
    rates = {id(one): group["peak_lr"] for group in trainer.optimizer.param_groups for one in group["params"]}
    news = trainer.model.news
    for part in (news.encoder, news.frequency, news.over_tokens, news.over_segments):
        assert {rates[id(one)] for one in part.parameters()} == {1e-6}
    assert rates[id(news.projection.weight)] == 1e-2
    assert rates[id(trainer.loss.bias_V)] == 1e-2 * BIAS_RATE  # a number of logits, not a part of an embedding


def test_pooling_that_was_drawn_at_random_has_the_learning_rate_of_the_head(store, config, tmp_path):
    config = replace(config, train=replace(config.train, encoder_lr=1e-6, lr=1e-2, init="random"))
    trainer = Trainer(start_run(tmp_path / "run", config, store), store)
    rates = {id(one): group["peak_lr"] for group in trainer.optimizer.param_groups for one in group["params"]}
    news = trainer.model.news
    for parts, rate in (((news.encoder, news.frequency), 1e-6), ((news.over_tokens, news.over_segments), 1e-2)):
        assert {rates[id(one)] for part in parts for one in part.parameters()} == {rate}


def test_history_clicks_alone_are_learned_from_with_accumulation_too(store, config, tmp_path):
    config = replace(
        config,
        loss=LossConfig(in_batch=0.5),
        train=replace(config.train, accumulate=2, validations=0),
    )
    trainer = Trainer(start_run(tmp_path / "run", config, store), store)
    trainer.initialize()
    before = trainer.model.news.projection.weight.detach().clone()
    with open_loader(config, store.train, trainer.news.lengths_M.numpy()) as loader:
        for _ in range(2):
            batch = next(loader)
            trainer.step(replace(batch, has_own_negatives_BL=np.zeros_like(batch.has_own_negatives_BL)), 1.0)
    assert not torch.equal(trainer.model.news.projection.weight, before)


def test_the_last_validation_sees_what_was_delivered_after_the_last_step(store, config, tmp_path, monkeypatch):
    order = []
    finish, validate = Trainer.finish, Trainer.validate
    monkeypatch.setattr(Trainer, "finish", lambda *a: order.append("finish") or finish(*a))
    monkeypatch.setattr(Trainer, "validate", lambda *a, **k: order.append("validate") or validate(*a, **k))
    config = replace(config, cache=replace(config.cache, gamma=5))
    train(start_run(tmp_path / "run", config, store), store)
    assert order.count("finish") == 1
    assert order[-2:] == ["finish", "validate"]


def test_the_in_batch_loss_weighs_as_much_as_clicks_without_negatives_are_many_but_at_most_half(
    store, config, tmp_path, monkeypatch
):
    config = replace(config, loss=LossConfig())

    def weight(name, run):
        return Trainer(start_run(tmp_path / name, run, store), store).loss.in_batch

    share = float(np.mean(store.train.click_pools[:] < 0))
    assert store.train.share_without_negatives == pytest.approx(share)
    assert 0.1 < share < 0.9
    monkeypatch.setattr(type(store.train), "share_without_negatives", 0.4)
    assert weight("impressions", config) == 0.4
    monkeypatch.setattr(type(store.train), "share_without_negatives", 0.9)
    assert weight("histories", config) == 0.5
    assert weight("conventional", conventional(config)) == 0
    assert weight("asked", replace(config, loss=LossConfig(in_batch=0.25))) == 0.25
    monkeypatch.setattr(type(store.train), "share_without_negatives", 1.0)
    monkeypatch.setattr(type(store.train), "has_negatives", False)
    assert weight("clicks", config) == 1


def test_clicks_get_negatives_only_for_a_loss_that_uses_them(store, config, monkeypatch):
    def others(**loss):
        return replace(config, loss=LossConfig(**loss)).loss_on(store.train).without_negatives

    assert others() == "in-batch"
    assert others(in_batch=0.0) == "history"
    assert (
        others(fallback_negatives_weight=0.1) == others(fallback_negatives_weight=0.1, in_batch=0.0) == "fallback"
    )
    with open_loader(replace(config, loss=LossConfig()), store.train, news_lengths(store.news)) as loader:
        batch = next(loader)
    has_negatives_BL = batch.negatives_BLN.any(-1)
    assert (has_negatives_BL == batch.has_own_negatives_BL).all()
    assert has_negatives_BL.sum() < (batch.targets_BL > 0).sum()
    assert batch.weigh_clicks(0.5) == (has_negatives_BL.sum() + (batch.targets_BL > 0).sum()) / 2
    monkeypatch.setattr(type(store.train), "share_without_negatives", 1.0)
    monkeypatch.setattr(type(store.train), "has_negatives", False)
    assert others() == "in-batch"
    assert others(in_batch=0.5) == "fallback"


def test_popularity_is_part_of_scores_where_it_lasts(store, config, monkeypatch):
    def correction(**loss):
        settled = replace(config, loss=LossConfig(**loss)).loss_on(store.train)
        return settled.popularity_correction, settled.bias_start

    assert correction() == correction(in_batch=1.0) == (0.0, 0.0)  # a log with impressions
    monkeypatch.setattr(type(store.train), "share_without_negatives", 1.0)
    monkeypatch.setattr(type(store.train), "has_negatives", False)
    assert correction() == (0.5, 0.5)
    assert correction(popularity_correction=0.25) == (0.25, 0.25)
    assert correction(article_bias=False) == (0.0, 0.0)  # nothing would add to the scores what is corrected for
    assert correction(bias_start=0.0) == (0.5, 0.0)
    monkeypatch.setattr(type(store.train), "has_lasting_popularity", False)
    assert correction() == (0.0, 0.0)


def test_scores_are_sharper_where_clicks_are_compared_with_whole_batches_alone(store, config, monkeypatch):
    config = replace(config, loss=LossConfig())

    def temperature(run):
        return run.loss_on(store.train).temperature

    asked = replace(config, loss=LossConfig(temperature=0.3))
    assert store.train.has_negatives
    assert temperature(config) == 0.15
    assert temperature(asked) == 0.3
    monkeypatch.setattr(type(store.train), "share_without_negatives", 1.0)
    monkeypatch.setattr(type(store.train), "has_negatives", False)
    assert temperature(config) == 0.08
    assert temperature(asked) == 0.3
    assert temperature(conventional(config)) == 0.15  # a few negatives, whatever the log
