"""The sweep and profile commands, on a small newsroom."""

import json
import sys
from dataclasses import replace

import pytest

from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.finished_run import number_users
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.profile import PARTS
from speedyfeed.recipes import conventional, recipe
from speedyfeed.sweep.config import SweepConfig
from speedyfeed.sweep.summary import compare_trials
from speedyfeed.sweep.table import run_sweep
from speedyfeed.sweep.trials import load_users
from speedyfeed.sweep.variants import named_variant
from speedyfeed.synthetic import SynthConfig, synthesize

PNG = b"\x89PNG\r\n\x1a\n"
SHORT = ["--runs", "nrms", "--seeds", 0, 1, "--steps", 2, "--validations", 1, "--validation-impressions", 20]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    synthesize(folder / "logs", SynthConfig(users=100, news=150, days=4))
    return prepare(folder / "logs", folder / "store", PrepareConfig()).store


@pytest.fixture(scope="module")
def out(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    sweep(small, folder)
    return folder


def sweep(store, out, *words):
    main(["sweep", *map(str, (store.path, out, *SHORT, *words))])


def test_a_sweep_writes_runs_a_table_and_figures(out):
    names = {path.name for path in out.iterdir()}
    assert names == {"nrms-0", "nrms-1", "sweep.md", "sweep.json", "sweep-curves.png", "sweep-auc.png"}
    assert (out / "sweep-auc.png").read_bytes()[:8] == PNG
    text = (out / "sweep.md").read_text()
    assert all(
        f"| {name} " in text for name in ("chance", "popularity", "title length", "category counts", "nrms")
    )


def test_a_sweep_says_what_was_saved_and_how_far_variants_differ_over_users_and_seeds(small, out, tmp_path):
    (row,) = json.loads((out / "sweep.json").read_text())["rows"]
    assert sum(row["saved"].values()) == 2
    assert set(row["saved"]) <= {"initial", "trained"}
    assert row["difference"] is None  # nothing to compare the first with
    assert "saved after" in (out / "sweep.md").read_text()
    a, b = ([out / f"nrms-{seed}"] for seed in (0, 1))
    alone, both = compare_trials(a, b), compare_trials(a + b, b + a)
    assert alone.mean != 0
    assert both.mean == pytest.approx(0)
    assert both.ci95[0] < 0 < both.ci95[1]  # the same runs, but other seeds might differ
    assert load_users(a[0]).tolist() == number_users(small.load_impressions("dev")["user_id"]).tolist()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    (folder / "logs").mkdir()
    items = [f"I{item},red lamp {item}" for item in range(30)]
    clicks = [
        f"U{user},I{(user * 7 + place * place) % 30},{1700000000 + place}"
        for user in range(20)
        for place in range(5)
    ]
    (folder / "logs" / "items.csv").write_text("\n".join(["item_id,title", *items]))
    (folder / "logs" / "interactions.csv").write_text("\n".join(["user_id,item_id,timestamp", *clicks]))
    return prepare(folder / "logs", folder / "store", PrepareConfig(split="last", refine="none")).store


def test_without_impressions_variants_are_compared_by_hits_among_all_articles(shop, tmp_path):
    sweep(shop, tmp_path)
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert found["metrics"][:2] == ["hit@10", "pool_ndcg@10"]
    references = {one["name"]: one["metrics"]["hit@10"] for one in found["references"]}
    assert 0.3 < references["chance"] < 0.5  # ten of some thirty, less the history
    (row,) = found["rows"]
    assert 0 <= row["metrics"]["hit@10"]["mean"] <= 1
    assert row["trials"][0]["metrics"]["auc"] is None
    text = (tmp_path / "sweep.md").read_text()
    assert "those of hit@10 from nrms" in text
    assert (tmp_path / "sweep-hit.png").read_bytes()[:8] == PNG


def test_a_finished_sweep_prints_the_same_again(small, out, capsys):
    sweep(small, out, "--json")
    assert json.loads(capsys.readouterr().out) == json.loads((out / "sweep.json").read_text())


def test_without_matplotlib_there_are_tables_and_a_line_that_says_so(small, out, capsys, caplog, monkeypatch):
    (out / "sweep-auc.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sweep(small, out)
    assert "| nrms " in capsys.readouterr().out
    assert "pip install 'speedyfeed[plots]'" in caplog.text
    assert not (out / "sweep-auc.png").exists()


def test_variants_are_recipes_workflows_or_encoders():
    assert named_variant("nrms") == recipe("nrms")
    assert named_variant("nrms-conventional") == conventional(recipe("nrms"))
    assert named_variant("plm-conventional") == recipe("plm-conventional")
    assert named_variant("speed-mini-frozen").is_frozen
    assert not named_variant("speed-mini-no-gradients").cache.gradients
    changed = named_variant("nrms-minilm-conventional")
    assert changed == conventional(named_variant("nrms-minilm"))
    assert (changed.words.vectors, changed.words.width) == ("minilm", 384)
    for name in ("nrms-frozen", "speed-mini-minilm", "nrms-no-gradients"):
        with pytest.raises(InputError, match="leave it out"):
            named_variant(name)
    assert named_variant("half:minilm").news.encoder == "half:minilm"
    with pytest.raises(InputError, match="no run 'nmrs'"):
        named_variant("nmrs")


def test_a_variant_without_training_is_only_evaluated(small, tiny_encoder, tmp_path):
    run = recipe("zero-shot")
    run = replace(run, news=replace(run.news, encoder=str(tiny_encoder)))
    (row,) = run_sweep({"zero-shot": run}, SweepConfig(seeds=(0,)), small, tmp_path).rows
    assert row.clicks == row.best_clicks == row.trials[0].steps == 0
    assert row.metrics["auc"].mean is not None


def test_a_profile_gives_shares_of_a_whole(store, tiny_encoder, capsys):
    words = ["profile", store.path, "--encoder", tiny_encoder, "--skip", 2, "--warmup", 1, "--steps", 2]
    main([*map(str, words), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["shares"]) == set(PARTS)
    assert sum(found["shares"].values()) == pytest.approx(1)
    main([*map(str, words)])
    text = capsys.readouterr().out
    assert all(f"| {part} " in text for part in PARTS)


def test_a_recipe_without_a_language_model_cannot_be_profiled(store, capsys):
    with pytest.raises(SystemExit):
        main(["profile", str(store.path), "--recipe", "nrms"])
    assert "has no language model" in capsys.readouterr().err
