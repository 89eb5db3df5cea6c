"""The cache benchmark, the ablation and the defaults on a tiny newsroom with a tiny encoder."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from benchmarks.quality import ablation, cache, defaults
from benchmarks.quality.ablation import AblationConfig
from benchmarks.quality.cache import CacheBenchmarkConfig
from benchmarks.quality.defaults import DefaultsConfig
from benchmarks.quality.drift import load_drift, watch_drift
from speedyfeed.batching.loader import Loader
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.recipes import recipe
from speedyfeed.sweep.summary import compare_trials
from speedyfeed.sweep.trials import load_values, trial_path
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = {"seeds": (0,), "validations": 0}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "logs"
    synthesize(folder, SynthConfig(users=200, news=300, days=5))
    return folder


@pytest.fixture(scope="module")
def store(logs):
    return prepare(logs, logs.parent / "store", PrepareConfig()).store


@pytest.fixture(scope="module")
def config(store, logs, tiny_encoder):
    return CacheBenchmarkConfig(
        store=store.path,
        work=logs.parent / "work",
        gammas=(0, 8),
        encoder=str(tiny_encoder),
        epochs=6,
        **SHORT,
    )


@pytest.fixture(scope="module")
def figures(config):
    return cache.measure(config)


def test_every_gamma_is_set_beside_none(figures, config):
    none, some, as_in_the_paper = json.loads(json.dumps(asdict(figures), allow_nan=False))["rows"]
    assert [row["gamma"] for row in (none, some, as_in_the_paper)] == [0, 8, 8]
    assert [row["gradients"] for row in (none, some, as_in_the_paper)] == [True, True, False]
    assert as_in_the_paper["metrics"] != some["metrics"]
    assert none["difference"] == {"mean": 0.0, "ci95": [0.0, 0.0]}
    assert some["difference"]["mean"] == pytest.approx(
        some["metrics"]["auc"]["mean"] - none["metrics"]["auc"]["mean"]
    )
    assert none["drift"] == [None]
    (drift,) = some["drift"]
    assert 0.5 < drift["cosine"] < 1
    assert 1 <= drift["steps"] <= 8
    assert some["trials"][0]["clicks"] == none["trials"][0]["clicks"]
    text = cache.tables(figures)
    assert text.count("\n") == 4
    assert [line.split("|")[2].strip() for line in text.splitlines()[2:]] == ["at once", "deferred", "none"]
    assert all(path.read_bytes()[:8] == PNG for path in cache.draw(figures, config.work))


def test_gamma_0_must_be_there(config):
    with pytest.raises(InputError, match="expected 0"):
        cache.measure(replace(config, gammas=(10, 20)))


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_row_drifts_when_the_weights_move(is_moved, store, tiny_encoder, tmp_path):
    run = recipe("tiny")
    run = replace(run, news=replace(run.news, encoder=str(tiny_encoder)))
    run = replace(run, cache=replace(run.cache, gamma=8, beta=10.0))
    trainer = Trainer(start_run(tmp_path / "run", run, store), store)
    trainer.model.eval()
    with Loader(store.train, trainer.news.lengths_M.numpy(), run.batch, run.cache, seed=run.train.seed) as loader:
        for batch in loader:
            if batch.step == 5:
                break
            with torch.no_grad():
                merged = trainer.workflow(batch).merged
            trainer.cache.write(merged.encoded_E, merged.encoded_EH, batch.step)
    if is_moved:
        with torch.no_grad():
            for weight in trainer.model.news.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    state = torch.get_rng_state()
    watch_drift(trainer, batch)
    assert torch.equal(torch.get_rng_state(), state)  # comparing changes nothing
    watch_drift(trainer, batch)  # as a resumed run would
    found = load_drift(tmp_path / "run")
    assert found.comparisons == 1
    assert (found.cosine < 0.99) if is_moved else (found.cosine > 0.999)


def test_an_interval_is_paired_and_over_the_mean_of_the_seeds(figures, config):
    none, some = (trial_path(config.work, f"gamma-{gamma}", 0) for gamma in config.gammas)
    both = (load_values(none, "auc") + load_values(some, "auc")) / 2
    found = compare_trials([none], [none, some])
    assert found.mean == pytest.approx(np.nanmean(both - load_values(none, "auc")))
    assert found.ci95[0] <= found.mean <= found.ci95[1]


def test_the_ablation_leaves_each_technique_out(store, logs, tiny_encoder, tmp_path):
    config = AblationConfig(store=store.path, work=tmp_path, encoder=str(tiny_encoder), steps=3, **SHORT)
    figures = ablation.measure(config)
    names = [row.name for row in figures.rows]
    assert names == ["without-bus", "without-cache", "default"]
    assert "--logs" in ablation.tables(figures)
    whole = ablation.measure(replace(config, logs=logs))
    assert [row.name for row in whole.rows] == ["without-bus", "without-cache", "without-refinement", "default"]
    assert not whole.left_out
    assert [row for row in whole.rows if row.name != "without-refinement"] == figures.rows
    runs = {row.name: open_run(trial_path(tmp_path, row.name, 0)) for row in whole.rows}
    assert [name for name, run in runs.items() if not run.config.news.bus] == ["without-bus"]
    assert [name for name, run in runs.items() if run.config.cache.gamma == 0] == ["without-cache"]
    refined = [name for name, run in runs.items() if run.facts.text.settings.refine != "none"]
    assert refined == ["without-bus", "without-cache", "default"]
    assert whole.rows[-1].difference.mean == 0
    json.dumps(asdict(whole), allow_nan=False)
    assert all(path.read_bytes()[:8] == PNG for path in ablation.draw(whole, tmp_path))
    with pytest.raises(InputError, match="not refined"):
        ablation.measure(replace(config, store=tmp_path / "store"))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_every_change_of_a_default_changes_one_setting(is_frozen, tmp_path):
    runs = defaults.variants_of(DefaultsConfig(store=tmp_path, frozen=is_frozen))
    settings = {name: flatten(asdict(run)) for name, run in runs.items()}
    for name, changed in settings.items():
        differing = [key for key, value in changed.items() if value != settings["default"][key]]
        assert len(differing) == (name != "default"), name
    assert all(run.is_frozen == is_frozen for run in runs.values())
    assert ("dropout" in runs) == (not is_frozen)


def test_defaults_are_compared_with_their_change(store, tiny_encoder, tmp_path):
    config = DefaultsConfig(
        store=store.path,
        work=tmp_path,
        encoder=str(tiny_encoder),
        steps=3,
        frozen=True,
        only=("no-recency",),
        **SHORT,
    )
    figures = defaults.measure(config)
    assert [row.name for row in figures.rows] == ["no-recency", "default"]
    assert figures.rows[-1].difference.mean == 0
    assert not open_run(trial_path(tmp_path, "no-recency", 0)).config.user.recency
    with pytest.raises(InputError, match="no such change"):
        defaults.measure(replace(config, only=("no-recncy",)))


def flatten(settings, prefix=""):
    """Nested settings by their dotted names."""
    found = {}
    for key, value in settings.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
