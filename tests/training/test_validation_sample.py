"""What training validates on: the validation split, and nothing that a run is evaluated on."""

import json
import logging
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from speedyfeed.evaluation.metrics import measure_ranking
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.models.packed import PackedNews
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.ragged import Ragged
from speedyfeed.saved_model import WEIGHTS
from speedyfeed.training import validation_sample
from speedyfeed.training.config import TrainConfig
from speedyfeed.training.loop import train
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.trainer import PROJECTED_NEWS, Trainer
from speedyfeed.training.validation_sample import ValidationSample


def shuffle_labels(behaviors):
    """Give the labels of every impression to other candidates of it."""
    rng = random.Random(1)
    rows = [line.split("\t") for line in behaviors.read_text("utf-8").splitlines()]
    for row in rows:
        pairs = [shown.rpartition("-") for shown in row[4].split()]
        labels = [label for _, _, label in pairs]
        rng.shuffle(labels)
        row[4] = " ".join(f"{pair[0]}-{label}" for pair, label in zip(pairs, labels, strict=True))
    behaviors.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def shuffled(store, tmp_path_factory):
    """The log with other labels in all splits that runs are evaluated on."""
    folder = tmp_path_factory.mktemp("shuffled")
    shutil.copytree(store.path.parent / "logs", folder / "logs")
    held_out = [path for path in (folder / "logs").glob("*/behaviors.tsv") if path.parent.name != "train"]
    assert held_out
    for behaviors in held_out:
        shuffle_labels(behaviors)
    return prepare(folder / "logs", folder / "store", PrepareConfig()).store


def test_labels_of_dev_change_nothing_in_a_finished_run(store, shuffled, config, tmp_path):
    assert shuffled.impressions("dev").labels.tolist() != store.impressions("dev").labels.tolist()
    config = replace(config, train=replace(config.train, steps=6, validations=3))
    results = []
    for name, used in (("one", store), ("other", shuffled)):
        run = start_run(tmp_path / name, config, used)
        outcome = train(run, used)
        assert outcome.is_finished
        results.append((outcome.progress.best_auc, (run.model / WEIGHTS).read_bytes()))
    assert results[0] == results[1]
    assert results[0][0] > 0


def test_a_store_without_validation_split_trains_without_and_says_so(store, config, tmp_path, caplog):
    logs = store.path.parent / "logs"
    without = prepare(logs, tmp_path / "store", PrepareConfig(validation=0)).store
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=2)), without)
    outcome = train(run, without)
    assert outcome.is_finished
    assert outcome.progress.best_auc == 0
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"{without.path}: has no validation split: training without validations"]


def test_a_run_without_validations_needs_no_split(store, config, caplog):
    train_config = TrainConfig(validations=0)
    assert ValidationSample.of(store, train_config, IdMaps()) is None
    assert not caplog.messages


@pytest.fixture
def clicks(tmp_path):
    """A log of clicks alone: each user's second-last is validation, and the last one test."""
    logs = tmp_path / "logs"
    logs.mkdir()
    items = "".join(f"N{number},Title of {number}\n" for number in range(1, 9))
    (logs / "items.csv").write_text("item_id,title\n" + items)
    rows = [f"U{user},N{1 + (user + turn) % 8},{1769900000 + turn}\n" for user in range(1, 7) for turn in range(4)]
    (logs / "interactions.csv").write_text("user_id,item_id,timestamp\n" + "".join(rows))
    return prepare(logs, tmp_path / "store", PrepareConfig(split="last")).store


def test_clicks_without_impressions_are_ranked_among_those_of_others(clicks, monkeypatch):
    monkeypatch.setattr(validation_sample, "NUM_OTHERS", 3)
    assert clicks.splits == ("train", "valid", "test")
    second_last = clicks.impressions("valid").candidates.values.tolist()
    sample = ValidationSample.of(clicks, TrainConfig(validation_impressions=5), IdMaps())
    shown = sample.impressions
    assert len(shown.users) == 5
    for row, candidates in enumerate(shown.candidates):
        ids = sample.news[candidates - 1].tolist()
        assert 2 <= len(ids) <= 4
        labels = shown.labels[slice(*shown.candidates.offsets[row : row + 2])]
        assert labels.tolist() == [1] + [0] * (len(ids) - 1)
        assert set(ids) <= set(second_last)
        assert ids[0] not in ids[1:]
    again = ValidationSample.of(clicks, TrainConfig(validation_impressions=5), IdMaps())
    assert again.impressions.candidates.values.tolist() == shown.candidates.values.tolist()


def test_nothing_that_a_user_has_clicked_is_a_candidate(clicks):
    sample = ValidationSample.of(clicks, TrainConfig(), IdMaps())
    shown = sample.impressions
    assert len(shown.users) == 6
    assert not any(set(shown.histories[user]) & set(shown.candidates[row]) for row, user in enumerate(shown.users))
    assert len(shown.candidates.values) < 6 * 6, "fewer than all six articles for some"


def test_a_click_on_what_was_clicked_before_is_not_ranked(tmp_path):
    (tmp_path / "items.csv").write_text("item_id,title\n" + "".join(f"N{n},Title {n}\n" for n in range(6)))
    rows = [f"U{user},N{(user + turn) % 6},{turn}\n" for user in range(4) for turn in range(4)]
    rows += [f"again,N{number},{turn}\n" for turn, number in enumerate((1, 2, 1))]
    rows += [f"U{user},N{(user + 4) % 6},4\n" for user in range(3)]  # the last tenth is dev
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n" + "".join(rows))
    options = PrepareConfig(split="time", columns="time=none", validation=0.5)
    sample = ValidationSample.of(prepare(tmp_path, tmp_path / "store", options).store, TrainConfig(), IdMaps())
    assert len(sample.impressions.users) == 4


@pytest.mark.parametrize("encoder_lr", [0.0, 1e-3])
def test_learned_popularity_is_part_of_the_scores_without_impressions(clicks, config, tmp_path, encoder_lr):
    config = replace(config, train=replace(config.train, encoder_lr=encoder_lr))
    trainer = Trainer(start_run(tmp_path / "run", config, clicks), clicks)
    trainer.initialize()
    with torch.no_grad():  # differences far above those of inner products of unit vectors
        trainer.loss.bias_V += torch.arange(clicks.num_news + 1)
    shown = trainer.validation.impressions
    ids = np.append(0, trainer.validation.news)[shown.candidates.values]
    by_bias = measure_ranking(Ragged(values=ids, offsets=shown.candidates.offsets), shown.labels).values["auc"]
    assert trainer.validate() == pytest.approx(by_bias.mean())
    assert trainer.validate(biases_V=torch.zeros(clicks.num_news + 1)) != pytest.approx(by_bias.mean())


def test_the_initial_model_is_validated_with_its_own_biases(clicks, config, tmp_path):
    """It is validated late, when other biases have been learned: as it would be before the first step."""
    config = replace(config, loss=replace(config.loss, bias_start=1.0), train=replace(config.train, lr=1.0))
    validated = []
    for steps in (0, 20):
        run = start_run(tmp_path / str(steps), replace(config, train=replace(config.train, steps=steps)), clicks)
        train(run, clicks)
        lines = [json.loads(line) for line in (run.path / METRICS).read_text().splitlines()]
        validated.append(next(line["validation_auc"] for line in lines if line["step"] == 0))
    assert validated[0] == validated[1]


def test_only_clicks_that_the_model_reads_are_encoded(store):
    whole, latest = (ValidationSample.of(store, TrainConfig(), IdMaps(), max_clicks=limit) for limit in (None, 3))
    assert len(latest.news) < len(whole.news)
    assert latest.impressions.labels.tolist() == whole.impressions.labels.tolist()
    clicked = [whole.news[row - 1].tolist() for row in whole.impressions.histories.tails(3)]
    assert [latest.news[row - 1].tolist() for row in latest.impressions.histories] == clicked


def test_clicks_on_one_article_validate_nothing(clicks, caplog):
    assert ValidationSample.of(clicks, TrainConfig(validation_impressions=1), IdMaps()) is None
    assert "all validation clicks are on one article: training without validations" in caplog.text


def test_the_projection_is_fitted_to_train_articles(store, config, tmp_path, monkeypatch):
    assert store.num_train_news < store.num_news
    trainer = Trainer(start_run(tmp_path / "run", config, store), store)
    chosen = []
    select = PackedNews.select
    monkeypatch.setattr(PackedNews, "select", lambda self, rows: chosen.append(rows) or select(self, rows))
    trainer.initialize()
    assert len(chosen[0]) == PROJECTED_NEWS
    assert 1 <= chosen[0].min() <= chosen[0].max() <= store.num_train_news
