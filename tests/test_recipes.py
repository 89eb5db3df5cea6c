"""Every baseline through the commands a user types: train, stop, resume, evaluate, recommend."""

import json
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import speedyfeed
from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.models.baselines import WORD_ENCODERS, register_word_encoder
from speedyfeed.models.config import FROM_WORDS, WITH_CATEGORIES
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.recipes import RECIPES, WORKFLOWS, conventional, in_workflow, recipe
from speedyfeed.serving.micro_batcher import MicroBatcher
from speedyfeed.serving.opening import open_feed
from speedyfeed.serving.query import Query
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.config import RunConfig

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
    trained = ["--steps", "3", "--validations", "0"]  # keeps the last model: the start knows no user
    main(["train", str(store.path), str(run), "--recipe", name, "--workflow", workflow, *trained, *SMALL])
    saved = json.loads((run / "run.json").read_text("utf-8"))["config"]
    assert saved["batch"]["central"] == saved["batch"]["autoregressive"] == (workflow == "fast")
    main(["train", str(store.path), str(run), "--recipe", name, "--resume"])  # done already, and says so
    capsys.readouterr()

    main(["evaluate", str(run), str(store.path), "--json", "--exact"])
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["auc"] < 1
    assert 0 < figures["recall@200"] <= 1
    users = set(store.load_users()["user_id"].to_pylist())
    known = np.mean([user in users for user in store.load_impressions("dev")["user_id"].to_pylist()])
    assert figures.get("known_users") == (pytest.approx(known) if name in ("lstur", "npa") else None)
    ids = store.load_titles()["news_id"].to_pylist()
    answers = []
    for user in ("nobody", *store.load_users()["user_id"].to_pylist()[:8]):
        main(["recommend", str(run), "--history", ",".join(ids[:3]), "--k", "4", "--json", "--user", user])
        answers.append(capsys.readouterr().out)
    assert len(json.loads(answers[0])["recommendations"]) == 4
    assert (len(set(answers)) > 1) == (name in ("lstur", "npa"))


@pytest.mark.parametrize("name", ["nrms", "naml", "lstur", "npa"])
def test_a_baseline_is_evaluated_on_raw_logs_and_served_unless_it_is_user_dependent(name, store, tmp_path, capsys):
    run, logs = tmp_path / "run", store.path.parent / "logs"
    main(["train", str(store.path), str(run), "--recipe", name, "--steps", "2", *SMALL])
    capsys.readouterr()
    figures = []
    for data in (store.path, logs):  # read by the run's own words, whatever the log would make of them
        main(["evaluate", str(run), str(data), "--json", "--exact"])
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[1]["impressions"] == figures[0]["impressions"] > 0
    assert figures[1]["auc"] == pytest.approx(figures[0]["auc"], abs=1e-4)
    assert figures[0]["index"]["kind"] == "exact"
    main(["rank", str(run), str(logs), str(tmp_path / "out.zip")])
    main(["rank", "--check", str(tmp_path / "out.zip"), "--against", str(logs)])
    batcher = MicroBatcher()
    try:
        if name == "npa":
            with pytest.raises(InputError, match="user-dependent article embeddings, which cannot be indexed"):
                open_feed(run, tmp_path / "cache", batcher)
        else:
            feed = open_feed(run, tmp_path / "cache", batcher)
            answer = feed.recommend(Query(history=[("A late goal wins the cup", "", "", "")], k=3))
            assert len(answer.ranked) == 3
    finally:
        batcher.close()


def test_baselines_keep_the_settings_they_learn_with():
    """Whatever the defaults become, which are chosen for pretrained encoders."""
    temperatures = {name: recipe(name).loss.temperature for name in ("nrms", "naml", "lstur", "npa")}
    assert temperatures == {"nrms": 0.1, "naml": 1.0, "lstur": 1.0, "npa": 0.1}
    for name in temperatures:
        run = recipe(name)
        assert (run.loss.fallback_negatives_weight, run.batch.negatives, run.train.lr) == (0.0, 4, 1e-3)
        assert not run.news.normalize


def test_npa_is_refused_in_the_fast_workflow_with_one_line(store, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", str(store.path), str(tmp_path / "run"), "--recipe", "npa", "--workflow", "fast", *SMALL])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "npa" in said
    assert "--workflow conventional" in said
    assert not (tmp_path / "run").exists()  # what never began is not in the way of the command put right


def test_a_language_model_trains_conventionally_click_by_click(store, tiny_encoder, tmp_path, capsys):
    run = tmp_path / "run"
    model = ["--recipe", "plm-conventional", "--encoder", str(tiny_encoder), "--news.dim", "16"]
    limits = ["--steps", "40", "--precision", "fp32", "--batch.max-clicks", "5", "--validation-impressions", "20"]
    main(["train", str(store.path), str(run), *model, *limits, "--json"])
    progress = json.loads(capsys.readouterr().out)["progress"]
    assert (progress["step"], progress["clicks"]) == (40, 40)
    settings = json.loads((run / "run.json").read_text("utf-8"))["config"]
    assert settings["batch"]["size"] * settings["train"]["accumulate"] == 32
    main(["train", str(store.path), str(run), "--recipe", "plm-conventional", "--resume"])
    main(["evaluate", str(run), str(store.path), "--json", "--exact"])
    assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["auc"] < 1


def test_every_recipe_has_a_conventional_twin():
    for name in RECIPES:
        run = recipe(name)
        slow = conventional(run)
        shape = {"central": True, "autoregressive": True, "size": 0, "mode": "packed"}
        assert replace(slow.batch, **shape) == replace(run.batch, **shape)
        assert slow.cache == replace(run.cache, gamma=0)
        assert conventional(slow) == slow
        assert in_workflow(run, None) == run
    assert recipe("plm-conventional") == conventional(recipe("speed-mini"))
    assert recipe("npa").batch.central is False
    assert recipe("nrms").batch.central is BatchConfig().central is True
    with pytest.raises(InputError, match="no workflow 'slow': choose fast or conventional"):
        in_workflow(recipe("nrms"), "slow")


def test_the_class_defaults_are_those_of_the_default_recipe():
    assert recipe("speed-mini") == RunConfig()
    assert (RunConfig().batch.negatives, RunConfig().cache) == (4, CacheConfig(beta=0.2, draw="news"))


@pytest.mark.parametrize("name", ["tiny", "zero-shot", "nrms", "naml", "lstur", "npa"])
def test_small_recipes_cache_as_in_the_paper(name):
    run = recipe(name)
    assert (run.cache.beta, run.cache.draw, run.cache.dtype) == (2e-3, "step", "fp32")
    assert run.batch.negatives == (1 if name in ("tiny", "zero-shot") else 4)


def test_settings_of_a_recipe_are_changed_by_name():
    run = recipe(
        "speed-mini", epochs=1, encoder="last:minilm", user={"name": "gru", "sharpness": 0}, batch=BatchConfig()
    )
    assert run == replace(
        recipe("speed-mini"),
        news=replace(recipe("speed-mini").news, encoder="last:minilm"),
        user=replace(recipe("speed-mini").user, name="gru", sharpness=0),
        train=replace(recipe("speed-mini").train, epochs=1),
    )
    with pytest.raises(
        InputError, match=r"no setting epoch: choose epochs, steps, .*, or encoder, or a part: news, "
    ):
        recipe("speed-mini", epoch=1)
    with pytest.raises(InputError, match=r"no setting user\.kind: choose name, "):
        recipe("speed-mini", user={"kind": "gru"})
    with pytest.raises(InputError, match="epochs 0"):
        recipe("speed-mini", epochs=0)


class BagOfWords(nn.Module):
    """The mean of the words of an article and its category, as somebody else may write it."""

    joins, uses_categories, is_user_dependent = True, True, False

    def __init__(self, *, dim, config, id_maps, user_embeddings):
        super().__init__()
        self.project = nn.Linear(config.width, dim)
        self.category = nn.Embedding(1 + len(id_maps.categories), dim)

    def encode_segments(self, text):
        sums_KE = (text.words_KWE * text.is_word_KW[..., None]).sum(1)
        return self.project(sums_KE / text.is_word_KW.sum(1, keepdim=True).clamp(min=1))

    def combine(self, segments_KD, owners_K, news):
        return self.category(news.categories_M.long()).index_add(0, owners_K, segments_KD)


@pytest.fixture
def bag():
    """A word encoder that is registered for the time of a test."""
    register_word_encoder("bag", BagOfWords)
    yield "bag"
    del WORD_ENCODERS["bag"]
    for names in (FROM_WORDS, WITH_CATEGORIES):
        names.discard("bag")


def test_a_word_encoder_of_ones_own_trains_is_saved_and_evaluated(store, tmp_path, bag):
    run = speedyfeed.train(
        store.path, tmp_path / "run", recipe("nrms", encoder=bag, steps=2, validations=0, news={"dim": 16})
    )
    assert isinstance(run.model.news.word_encoder, BagOfWords)
    assert run.model.news.word_encoder.category.num_embeddings > 2
    assert 0 < run.evaluate(exact=True).overall.metrics["auc"].mean < 1
    FROM_WORDS.discard(bag)  # as in a process that has not registered it
    with pytest.raises(InputError, match="found the news encoder 'bag' of another package"):
        speedyfeed.Recommender.from_pretrained(run.path)


def test_what_cannot_be_a_word_encoder_is_refused():
    with pytest.raises(InputError, match=r"found <class 'str'>, expected a class of torch\.nn\.Module"):
        register_word_encoder("text", str)
    dependent = type("Dependent", (BagOfWords,), {"is_user_dependent": True})
    with pytest.raises(InputError, match="only npa may be"):
        register_word_encoder("dependent", dependent)
