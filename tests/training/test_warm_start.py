"""Weights of an earlier run in a new one: copied by name where names have rows, refused where they do not fit."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from speedyfeed.cli.main import main
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.preparation.vocabulary import build_word_tokenizer
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import recipe
from speedyfeed.training.config import TEMPERATURE, LossConfig
from speedyfeed.training.loop import train
from speedyfeed.training.losses import ClickLoss
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.warm_start import take_biases, warm_start

BEFORE = IdMaps(categories=["sport", "world"], subcategories=["cup"], users=["U7", "U8"])
AFTER = IdMaps(categories=["culture", "world"], subcategories=["cup", "law"], users=["U8", "U9", "U10"])


def build(id_maps, words, name="lstur", **changes):
    config = recipe(name).recommender
    parts = {part: dataclasses.replace(getattr(config, part), **values) for part, values in changes.items()}
    config = dataclasses.replace(config, **parts)
    model = Recommender(config, id_maps=id_maps, tokenizer=build_word_tokenizer(words))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def rows(model, kind, names):
    """Embedding of some names: row 0 for None."""
    if kind == "words":
        return model.news.embedding.weight[[model.news.vocabulary[name] for name in names]]
    table = {
        "users": model.user_embeddings,
        "categories": model.news.word_encoder.categories[0],
        "subcategories": model.news.word_encoder.categories[1],
    }[kind]
    known = list(getattr(model.id_maps, kind))
    return table.weight[[0 if name is None else 1 + known.index(name) for name in names]]


def test_rows_are_taken_over_by_name_and_new_names_start_anew(tmp_path):
    earlier, model = build(BEFORE, ["cat", "dog"]), build(AFTER, ["bird", "dog"])
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    earlier.save_pretrained(tmp_path / "earlier")
    fresh = build(AFTER, ["bird", "dog"])
    fresh.load_state_dict(initial)
    taken = warm_start(model, tmp_path / "earlier")
    for kind, known, new in (
        ("users", [None, "U8"], ["U9", "U10"]),
        ("categories", [None, "world"], ["culture"]),
        ("subcategories", [None, "cup"], ["law"]),
        ("words", ["[UNK]", "[PAD]", "dog"], ["bird"]),
    ):
        torch.testing.assert_close(rows(model, kind, known), rows(earlier, kind, known))
        torch.testing.assert_close(rows(model, kind, new), rows(fresh, kind, new))
    torch.testing.assert_close(model.news.shift, earlier.news.shift)
    assert (taken.known["users"], taken.new["users"]) == (1, 2)
    assert (taken.known["categories"], taken.new["categories"]) == (1, 1)
    assert taken.new["words"] == 1
    assert "users 1 known and 2 new" in taken.describe()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lstur", {"user": {"id_width": 8}}, "expected a model of the same settings; train with the recipe"),
        ("nrms", {}, r"found encoder 'lstur', asked for 'nrms'; give --encoder lstur"),
    ],
)
def test_a_model_of_other_settings_is_refused(tmp_path, name, changes, message):
    build(BEFORE, ["cat"]).save_pretrained(tmp_path / "earlier")
    with pytest.raises(InputError, match=message):
        warm_start(build(BEFORE, ["cat"], name, **changes), tmp_path / "earlier")


def catalogue_of(biases, num_clicks):
    ids = [f"N{number}" for number in range(1, 1 + len(biases))]
    return Catalogue(
        news_ids=ids,
        titles=ids,
        categories=ids,
        embeddings_VD=torch.zeros(len(ids), 2),
        biases=biases,
        num_clicks=num_clicks,
    )


@pytest.mark.parametrize("part", [None, 0.5])
def test_biases_are_taken_over_and_grow_with_the_logarithm_of_the_clicks(part):
    loss = ClickLoss(LossConfig(temperature=0.2, popularity_correction=part), 1.0, num_news=4)
    catalogue = catalogue_of([0.4, 0.0, -0.1], [3, 0, 3])
    assert take_biases(loss, ["N3", "N9", "N2", "N1"], [3, 0, 7, 7], catalogue) == 2
    double = 0.2 * math.log(2) * (part or 1)  # of clicks and one, divided by the temperature as logits are
    mean = (0.4 - 0.1) / 2  # of articles with 3 clicks
    expected = [-0.1, mean + double, 0.4 + double]
    expected = [0.0, expected[0], sum(expected) / 3, *expected[1:]]  # N9 has no clicks
    torch.testing.assert_close(loss.biases(), torch.tensor(expected))


def test_without_earlier_biases_they_are_left_as_they_are():
    loss = ClickLoss(LossConfig(bias_start=1.0), 1.0, num_news=1)
    loss.start_biases(torch.tensor([0, 2]))
    for unlearned in (catalogue_of([0.0], [3]), dataclasses.replace(catalogue_of([1.0], [3]), biases=None)):
        assert take_biases(loss, ["N1"], [9], unlearned) == 0
        assert not loss.biases().any()


@pytest.mark.parametrize(
    ("options", "slope"),
    [([], 0.0), (["--loss.bias-start", "1"], 1.0), (["--loss.popularity-correction", "0.5"], 0.5)],
)
def test_the_biases_of_a_cold_run_begin_at_zero_or_at_a_multiple_of_the_logarithm_of_the_clicks(
    newsroom, tiny_encoder, tmp_path, options, slope
):
    untrained = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--validations", "0", "--steps", "0"]
    main(["train", str(newsroom.refined), str(tmp_path / "run"), *untrained, *options])
    catalogue = Recommender.from_pretrained(tmp_path / "run").catalogue
    logits = torch.tensor(catalogue.biases) / TEMPERATURE
    clicks = torch.tensor(catalogue.num_clicks)
    is_clicked, logarithms = clicks > 0, clicks.log1p()
    expected = torch.where(is_clicked, slope * (logarithms - logarithms[is_clicked].mean()), 0.0)
    assert is_clicked.any()
    assert not is_clicked.all()
    torch.testing.assert_close(logits, expected)


def test_a_run_takes_over_the_biases_of_an_earlier_one(newsroom, tiny_encoder, tmp_path):
    options = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--validations", "0"]
    first, second = (tmp_path / name for name in ("first", "second"))
    main(["train", str(newsroom.refined), str(first), *options, "--steps", "2"])
    main(["train", str(newsroom.refined), str(second), "--from", str(first), *options, "--steps", "0"])
    before, after = (Recommender.from_pretrained(path).catalogue.biases for path in (first, second))
    learned = [bias for bias in before if bias]
    assert learned
    kept = [(bias, now) for bias, now in zip(before, after, strict=True) if bias]  # the same store, as many clicks
    torch.testing.assert_close(torch.tensor([now for _, now in kept]), torch.tensor(learned))
    known = open_run(second).facts.taken_over["known"]["articles"]
    assert known == len(learned)


def test_a_warm_start_that_was_stopped_ends_like_one_that_was_not(newsroom, tiny_encoder, tmp_path):
    store = open_store(newsroom.refined)
    config = recipe("tiny", encoder=str(tiny_encoder), steps=4, validations=0)
    runs = [
        start_run(tmp_path / name, config, store, warm_start=newsroom.trained) for name in ("whole", "stopped")
    ]
    train(runs[0], store)
    assert not train(runs[1], store, callbacks=[lambda report: report.progress.step == 2]).is_finished
    train(runs[1], store)
    whole, stopped = (Recommender.from_pretrained(run.model) for run in runs)
    assert whole.catalogue.biases == stopped.catalogue.biases
    assert torch.equal(whole.catalogue.embeddings_VD, stopped.catalogue.embeddings_VD)


@pytest.mark.parametrize("layers", [0, 1])  # of a run that trained all
def test_a_run_begins_with_the_weights_of_an_earlier_one(newsroom, tiny_encoder, tmp_path, layers):
    run = tmp_path / "run"
    options = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--steps", "0", "--validations", "0"]
    options += ["--news.train-layers", str(layers)]
    main(["train", str(newsroom.refined), str(run), "--from", str(newsroom.trained), *options])
    before, after = (Recommender.from_pretrained(path).state_dict() for path in (newsroom.trained, run))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert Path(open_run(run).facts.warm_start).samefile(newsroom.trained)
