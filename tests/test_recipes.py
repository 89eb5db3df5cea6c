"""Every baseline through the commands a user types: train, stop, resume, evaluate, recommend."""

import json
from dataclasses import replace

import pytest

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.cli import main
from speedyfeed.data.prepare import PrepareConfig, prepare
from speedyfeed.data.synthetic import SynthConfig, synthesize
from speedyfeed.errors import InputError
from speedyfeed.recipes import RECIPES, WORKFLOWS, conventional, in_workflow, recipe

SMALL = [
    *("--news.dim", "16", "--words.width", "8", "--words.heads", "4", "--words.category-width", "4"),
    *("--user.heads", "4", "--batch.max-clicks", "8", "--batch.token-budget", "300"),
    *("--epochs", "1", "--validation-impressions", "20", "--seed", "3"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newsroom")
    synthesize(folder / "logs", SynthConfig(users=120, news=200, days=8))
    return prepare(folder / "logs", folder / "store", PrepareConfig()).store


@pytest.mark.parametrize(
    ("name", "workflow"),
    [(name, workflow) for name in ("nrms", "naml", "lstur") for workflow in WORKFLOWS] + [("npa", "conventional")],
)
def test_a_baseline_trains_resumes_evaluates_and_recommends(name, workflow, store, tmp_path, capsys):
    run = tmp_path / "run"
    main(["train", str(store.path), str(run), "--recipe", name, "--workflow", workflow, "--steps", "3", *SMALL])
    saved = json.loads((run / "run.json").read_text("utf-8"))["config"]
    assert saved["batch"]["central"] == saved["batch"]["autoregressive"] == (workflow == "fast")
    main(["train", str(store.path), str(run), "--recipe", name, "--resume"])  # done already, and says so
    capsys.readouterr()

    main(["evaluate", str(run), str(store.path), "--json", "--exact"])
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["auc"] < 1
    assert 0 < figures["recall@200"] <= 1
    ids = store.load_titles()["news_id"].to_pylist()
    answers = []
    for reader in ("nobody", *store.load_users()["user_id"].to_pylist()[:8]):
        main(["recommend", str(run), "--history", ",".join(ids[:3]), "--k", "4", "--json", "--reader", reader])
        answers.append(capsys.readouterr().out)
    assert len(json.loads(answers[0])["recommendations"]) == 4
    assert (len(set(answers)) > 1) == (name in ("lstur", "npa"))


def test_npa_is_refused_in_the_fast_workflow_with_one_line(store, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", str(store.path), str(tmp_path / "run"), "--recipe", "npa", "--workflow", "fast", *SMALL])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "npa" in said
    assert "--workflow conventional" in said


def test_every_recipe_has_a_conventional_twin():
    for name in RECIPES:
        run = recipe(name)
        slow = conventional(run)
        assert replace(slow.batch, central=True, autoregressive=True, size=0, mode="packed", gamma=20) == replace(
            run.batch, central=True, autoregressive=True, size=0, mode="packed", gamma=20
        )
        assert conventional(slow) == slow
        assert in_workflow(run, None) == run
    assert recipe("plm-conventional") == conventional(recipe("speedy-mini"))
    assert recipe("npa").batch.central is False
    assert recipe("nrms").batch.central is BatchConfig().central is True
    with pytest.raises(InputError, match="no workflow 'slow': choose fast or conventional"):
        in_workflow(recipe("nrms"), "slow")
