"""The public names: documented, lazy, and enough to go from logs to recommendations."""

import subprocess
import sys
from dataclasses import replace

import pytest

import speedyfeed

HEAVY = ("torch", "numpy", "pyarrow", "transformers", "tyro", "rich")


def in_new_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    assert in_new_python(f"import sys, speedyfeed; print([n for n in {HEAVY} if n in sys.modules])") == "[]"


def test_importing_the_package_takes_less_than_100_ms():
    """In processor time, which a busy machine hardly changes."""
    code = "from time import process_time as now; start = now(); import speedyfeed; print(now() - start)"
    assert min(float(in_new_python(code)) for _ in range(3)) < 0.1


def test_the_limit_of_onednn_is_set_before_torch_is_loaded():
    code = "import os, speedyfeed; print(os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'])"
    assert in_new_python(code) == "256"


@pytest.mark.slow
def test_a_recommender_is_loaded_without_what_prepares_logs():
    code = "import sys, speedyfeed.pretrained; print({'ibis', 'duckdb'} & set(sys.modules))"
    assert in_new_python(code) == "set()"


@pytest.mark.parametrize("name", speedyfeed.__all__)
def test_every_public_name_is_found_listed_and_documented(name):
    found = getattr(speedyfeed, name)
    assert found.__name__ == name
    assert len(found.__doc__.split()) >= 4
    assert name in dir(speedyfeed)
    if found.__module__ == "speedyfeed.api":
        assert ">>> " in found.__doc__


def test_public_names_and_their_modules_agree():
    assert sorted(speedyfeed.__all__) == sorted(speedyfeed._HOMES) == speedyfeed.__all__
    assert 12 <= len(speedyfeed.__all__) <= 15
    assert speedyfeed.InputError is speedyfeed.errors.InputError


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = speedyfeed.nothing


@pytest.fixture
def tiny(tiny_encoder):
    """The recipe `tiny` with an encoder that is quick to load and to save."""
    config = speedyfeed.recipe("tiny")
    return replace(config, news=replace(config.news, encoder=str(tiny_encoder)))


def test_from_logs_to_recommendations(mind_logs, tiny, tmp_path):
    store_path, run_path = str(tmp_path / "store"), str(tmp_path / "run")
    store = speedyfeed.prepare(str(mind_logs), store_path)
    assert speedyfeed.open_store(store_path).num_news == store.num_news
    config = replace(tiny, train=replace(tiny.train, steps=1, validations=0))
    assert speedyfeed.train(store_path, run_path, config).is_finished
    assert speedyfeed.train(store_path, run_path, config).is_finished, "the same call finds it finished"
    with pytest.raises(speedyfeed.InputError, match="has a run already"):
        speedyfeed.train(store_path, run_path, "tiny")
    assert speedyfeed.evaluate(run_path, exact=True).overall.num_impressions > 0
    model = speedyfeed.Recommender.from_pretrained(run_path)
    (best,) = model.recommend([], k=1)
    assert isinstance(best, speedyfeed.Recommendation)


def test_a_callback_sees_every_step_and_may_stop_the_run(newsroom, tiny, tmp_path):
    config = replace(tiny, train=replace(tiny.train, steps=4, validations=2))
    seen = []
    run, store = tmp_path / "run", tmp_path / "store"
    speedyfeed.prepare(newsroom.logs, store)
    outcome = speedyfeed.train(store, run, config, callbacks=[seen.append, lambda step: step.progress.step == 2])
    assert not outcome.is_finished
    assert [one.progress.step for one in seen] == [1, 2]
    assert [one.validation_auc is None for one in seen] == [True, False]
    assert seen[1].fraction == 0.5
    stopped = speedyfeed.train(store, run, config, callbacks=[seen.append, lambda step: True])
    assert not stopped.is_finished
    assert speedyfeed.train(store, run, config, callbacks=[seen.append]).is_finished
    assert [one.progress.step for one in seen] == [1, 2, 3, 4]


def test_a_run_has_its_model_its_evaluation_and_its_history(mind_logs, tiny, tmp_path):
    pytest.importorskip("pandas")
    config = replace(tiny, train=replace(tiny.train, steps=2, validations=0))
    store = speedyfeed.prepare(mind_logs, tmp_path / "store")
    with pytest.raises(speedyfeed.InputError, match="found 'wand', expected some of tensorboard"):
        speedyfeed.train(store.path, tmp_path / "run", config, track="wand")
    assert not (tmp_path / "run").exists()
    run = speedyfeed.train(store.path, tmp_path / "run", config, track="none")
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert run.history["step"].max() == run.progress.step > 0
    assert run.history["loss"].notna().any()
    assert run.model is run.model
    assert len(run.model.recommend([], k=2)) == 2
    assert run.evaluate(exact=True).overall.num_impressions > 0
