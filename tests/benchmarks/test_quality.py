"""The main table on a tiny newsroom: its keys, its rows, and that nothing is trained twice."""

import json
import os
import signal
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.quality import quality
from benchmarks.quality.quality import QualityConfig, choose, measure
from speedyfeed.errors import InputError
from speedyfeed.evaluation.metrics import measure_ranking
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.ragged import Ragged
from speedyfeed.sweep import trials
from speedyfeed.sweep.references import find_references
from speedyfeed.sweep.table import METRICS
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.loop import train
from speedyfeed.training.run_folder import open_run
from speedyfeed.training.trainer import Trainer


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality") / "logs"
    synthesize(folder, SynthConfig(users=200, news=300, days=5))
    return folder


@pytest.fixture(scope="module")
def store(logs):
    return prepare(logs, logs.parent / "store", PrepareConfig()).store


@pytest.fixture(scope="module")
def config(store, logs, tiny_encoder):
    return QualityConfig(
        store=store.path,
        runs=("nrms-fast", str(tiny_encoder)),
        seeds=(0, 1),
        work=logs.parent / "work",
        logs=logs,
        steps=2,
        validations=1,
        validation_impressions=20,
    )


@pytest.fixture(scope="module")
def figures(config):
    return measure(config)


def curves(row):
    return [trial["curve"] for trial in row["trials"]]


def test_every_run_has_all_metrics_and_their_spread(figures):
    found = json.loads(json.dumps(asdict(figures), allow_nan=False))
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        assert set(row["metrics"]) == set(METRICS)
        aucs = [trial["metrics"]["auc"] for trial in row["trials"]]
        assert row["metrics"]["auc"]["mean"] == pytest.approx(np.mean(aucs))
        assert row["metrics"]["auc"]["std"] == pytest.approx(abs(aucs[0] - aucs[1]) / 2**0.5)
        for trial in row["trials"]:
            assert trial["steps"] == 2
            start, end = trial["curve"]
            assert (start["clicks"], end["clicks"]) == (0, trial["clicks"])
            assert trial["best_clicks"] in (0, trial["clicks"])
        assert row["best_clicks"] == np.mean([trial["best_clicks"] for trial in row["trials"]])
    nrms, encoder = found["rows"]
    saved = [0 if start["auc"] >= end["auc"] else end["clicks"] for start, end in curves(nrms)]
    assert [trial["best_clicks"] for trial in nrms["trials"]] == saved
    assert nrms["clicks"] != encoder["clicks"]
    assert nrms["trials"][0]["metrics"] != nrms["trials"][1]["metrics"]  # seeds are seeds


def test_a_finished_trial_is_not_trained_again(figures, config, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("trains")

    monkeypatch.setattr(trials, "train", refuse)
    assert measure(config).rows == figures.rows


def test_a_trial_that_was_stopped_goes_on(config, store, tmp_path, monkeypatch):
    variant = trials.Variant(name="nrms-fast", config=config.limit(quality.main_variants()["nrms-fast"]))

    def stopped(*arguments, **options):
        step = Trainer.step

        def interrupted(self, batch, factor):
            os.kill(os.getpid(), signal.SIGINT)
            return step(self, batch, factor)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", interrupted)
            return train(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "train", stopped)
        with pytest.raises(KeyboardInterrupt) as stop:
            trials.run_trial(variant, 0, store, tmp_path)
        assert stop.value.args == (signal.SIGINT,)
    run = open_run(trials.trial_path(tmp_path, "nrms-fast", 0))
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001"]
    again = trials.run_trial(variant, 0, store, tmp_path)
    whole = trials.run_trial(variant, 0, store, config.work)
    assert (again.steps, again.clicks, again.metrics) == (2, whole.clicks, whole.metrics)


def test_other_settings_do_not_pass_for_these(figures, config):
    with pytest.raises(InputError, match="other settings"):
        measure(replace(config, steps=3))


def test_values_of_impressions_are_kept(figures, config):
    values = trials.load_values(trials.trial_path(config.work, "nrms-fast", 1), "auc")
    assert np.nanmean(values) == pytest.approx(figures.rows[0].trials[1].metrics["auc"])
    assert figures.impressions == np.count_nonzero(~np.isnan(values))


def test_references_count_clicks_and_categories(store):
    found = {reference.name: reference.metrics for reference in find_references(store, None).references}
    assert list(found) == ["chance", "popularity", "title length", "category counts"]
    assert found["chance"]["auc"] == 0.5
    dev = store.impressions("dev")
    category = ["", *store.load_titles()["category"].to_pylist()]
    clicks = store.train.clicks.values.tolist()
    popularity, counts = [], []
    for user, candidates in zip(dev.users.tolist(), dev.candidates, strict=True):
        own = [category[news] for news in dev.histories[user].tolist()]
        for news in candidates.tolist():
            popularity.append(clicks.count(news))
            counts.append(own.count(category[news]) if category[news] else 0)
    for name, values in (("popularity", popularity), ("category counts", counts)):
        scores = Ragged(values=np.array(values, np.float32), offsets=dev.candidates.offsets)
        expected = np.nanmean(measure_ranking(scores, dev.labels).values["auc"])
        assert found[name]["auc"] == pytest.approx(expected)
        assert expected != 0.5


def test_a_newsroom_knows_its_best(store, logs, tmp_path):
    facts = json.loads((logs / "newsroom.json").read_text())
    known = find_references(store, logs).references[-1]
    assert (known.name, known.metrics) == ("best possible", {"auc": facts["best_auc"]})
    with pytest.raises(InputError, match="prepared from"):
        find_references(store, tmp_path)


def test_figures_are_drawn(figures, tmp_path):
    paths = quality.draw(figures, tmp_path)
    assert len(paths) == 2
    for path in paths:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_runs_are_chosen_by_name_or_its_first_part():
    assert list(choose(["nrms", "speed-half"])) == ["nrms-conventional", "nrms-fast", "speed-half"]
    assert "plm-conventional" not in choose([])
    assert choose(["half:minilm"])["half:minilm"].news.encoder == "half:minilm"
    with pytest.raises(InputError, match="no run 'nmrs'"):
        choose(["nmrs"])


def test_the_command_prints_the_table(figures, config, tmp_path, capsys):
    arguments = ["--store", config.store, "--logs", config.logs, "--work", config.work, "--out", tmp_path]
    arguments += ["--runs", *config.runs, "--seeds", 0, 1, "--steps", 2]
    arguments += ["--validations", 1, "--validation-impressions", 20]
    main(["quality", *map(str, arguments)])
    text = capsys.readouterr().out
    for name in ("chance", "popularity", "best possible", "nrms-fast", "recall@200"):
        assert name in text
    assert {path.name for path in tmp_path.iterdir()} >= {"quality.md", "quality-curves.png", "quality-auc.png"}
    saved = json.loads((tmp_path / "quality.json").read_text())
    assert [row["name"] for row in saved["rows"]] == list(config.runs)
