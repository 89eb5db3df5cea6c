"""Weights of an earlier run in a new one: copied by name where names have rows, refused where they do not fit."""

import dataclasses
from pathlib import Path

import pytest
import torch

from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.preparation.tokens import build_word_tokenizer
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import recipe
from speedyfeed.training.run_folder import open_run
from speedyfeed.training.warm_start import warm_start

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


def test_a_run_begins_with_the_weights_of_an_earlier_one(newsroom, tiny_encoder, tmp_path, capsys):
    run = tmp_path / "run"
    options = ["--recipe", "tiny", f"--encoder={tiny_encoder}", "--steps", "0", "--validations", "0"]
    main(["train", str(newsroom.refined), str(run), "--from", str(newsroom.trained), *options])
    before, after = (Recommender.from_pretrained(path).state_dict() for path in (newsroom.trained, run))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert Path(open_run(run).facts.warm_start).samefile(newsroom.trained)
