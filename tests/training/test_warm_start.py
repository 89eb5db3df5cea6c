"""Weights of an earlier run in a new one: copied by name where names have rows, refused where they do not fit."""

import dataclasses
from pathlib import Path

import pytest
import torch

from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.preparation.vocabulary import build_word_tokenizer
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import recipe
from speedyfeed.training.config import LossConfig
from speedyfeed.training.losses import ClickLoss
from speedyfeed.training.run_folder import open_run
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


def test_biases_of_articles_are_taken_over_and_new_ones_begin_at_their_mean():
    loss = ClickLoss(LossConfig(temperature=0.2), 1.0, num_news=4)
    ids = ["N1", "N2", "N3"]
    catalogue = Catalogue(
        news_ids=ids, titles=ids, categories=ids, embeddings_VD=torch.zeros(3, 2), biases=[0.4, 0.0, -0.1]
    )
    assert take_biases(loss, ["N3", "N9", "N2", "N1"], catalogue) == 2
    torch.testing.assert_close(loss.biases(), torch.tensor([0.0, -0.1, 0.15, 0.15, 0.4]))
    unlearned = dataclasses.replace(catalogue, biases=None)
    assert take_biases(loss, ["N3", "N9", "N2", "N1"], unlearned) == 0
    torch.testing.assert_close(loss.biases()[4], torch.tensor(0.4))


def test_a_run_takes_over_the_biases_of_an_earlier_one(newsroom, tiny_encoder, tmp_path):
    options = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--validations", "0"]
    first, second = (tmp_path / name for name in ("first", "second"))
    main(["train", str(newsroom.refined), str(first), *options, "--steps", "2"])
    main(["train", str(newsroom.refined), str(second), "--from", str(first), *options, "--steps", "0"])
    before, after = (Recommender.from_pretrained(path).catalogue.biases for path in (first, second))
    learned = [bias for bias in before if bias]
    assert learned
    expected = [bias or sum(learned) / len(learned) for bias in before]
    torch.testing.assert_close(torch.tensor(after), torch.tensor(expected))
    known = open_run(second).facts.taken_over["known"]["articles"]
    assert known == len(learned)


@pytest.mark.parametrize("layers", [0, 1])  # of a run that trained all
def test_a_run_begins_with_the_weights_of_an_earlier_one(newsroom, tiny_encoder, tmp_path, layers):
    run = tmp_path / "run"
    options = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--steps", "0", "--validations", "0"]
    options += ["--news.train-layers", str(layers)]
    main(["train", str(newsroom.refined), str(run), "--from", str(newsroom.trained), *options])
    before, after = (Recommender.from_pretrained(path).state_dict() for path in (newsroom.trained, run))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert Path(open_run(run).facts.warm_start).samefile(newsroom.trained)
