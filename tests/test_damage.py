"""Damaged files of a store and a run: one line that names the file, or the same answer; never a wrong one."""

import errno
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from speedyfeed.checksums import seal, write_checksums
from speedyfeed.cli.main import main
from speedyfeed.data import store as stores
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.pretrained import Recommender
from speedyfeed.recipes import recipe
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.checkpoint import checkpoints
from speedyfeed.training.loop import train
from speedyfeed.training.metrics import load_saved
from speedyfeed.training.run_folder import open_run, start_run


def flip(path):
    content = bytearray(path.read_bytes())
    content[np.random.default_rng(0).integers(len(content))] ^= 0x10
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path):
    path.unlink()


DAMAGES = (flip, cut, remove)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_encoder):
    """A small store, and a run on it that was stopped at its end: two checkpoints and a model."""
    folder = tmp_path_factory.mktemp("damage")
    synthesize(folder / "logs", SynthConfig(users=60, news=80, days=4))
    store = prepare(folder / "logs", folder / "store", PrepareConfig()).store
    tiny = recipe("tiny")
    config = replace(
        tiny,
        news=NewsEncoderConfig(encoder=str(tiny_encoder), dim=16),
        train=replace(tiny.train, steps=4, checkpoint_every=2, precision="fp32", validations=1, lr=0.01),
    )
    assert train(start_run(folder / "run", config, store), store).is_finished
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the run that may be damaged."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def files_below(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_every_damaged_file_of_a_small_store_is_named_when_it_is_opened(made, tmp_path):
    names = files_below(made / "store")
    assert len(names) > 20
    for name in names:
        for damage in DAMAGES:
            if (tmp_path / "store").exists():
                shutil.rmtree(tmp_path / "store")
            shutil.copytree(made / "store", tmp_path / "store")
            if not (tmp_path / "store" / name).stat().st_size:
                continue
            damage(tmp_path / "store" / name)
            with pytest.raises(InputError) as error:
                open_store(tmp_path / "store")
            assert name in str(error.value) or "not a store" in str(error.value)


def test_a_damaged_file_of_a_large_store_is_named_before_it_is_used(made, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "VERIFIED_BYTES", 0)
    shutil.copytree(made / "store", tmp_path / "store")
    names = [name for name in files_below(tmp_path / "store") if name != "manifest.json"]
    assert len(names) > 20
    for name in names:
        file = tmp_path / "store" / name
        content = file.read_bytes()
        flip(file)
        store = open_store(tmp_path / "store")  # which reads none of the large files
        with pytest.raises(InputError, match=f"{name}: is damaged"):
            use_all(store)
        file.write_bytes(content)
    use_all(open_store(tmp_path / "store"))


def use_all(store):
    """Open everything that a store gives."""
    _ = store.news, store.word_tokens, store.word_tokenizer, store.train, store.document_frequencies
    store.load_titles(), store.load_abstracts(), store.load_users(), store.load_first_shown(), store.bodies
    for split in ("valid", "dev", "test"):
        store.impressions(split), store.load_impressions(split)


def test_every_damaged_file_of_a_model_is_named_when_it_is_loaded(copy):
    without = ("checksums.json", "README.md", "modules.json")  # these may be edited
    names = [name for name in files_below(copy / "model") if name not in without]
    assert {"model.safetensors", "news.safetensors", "recommender.json", "encoder/tokenizer.json"} <= set(names)
    for name in names:
        for damage in DAMAGES:
            content = (copy / "model" / name).read_bytes()
            damage(copy / "model" / name)
            with pytest.raises(InputError) as error:
                Recommender.from_pretrained(copy)
            assert name in str(error.value)
            (copy / "model" / name).write_bytes(content)
    assert Recommender.from_pretrained(copy).recommend([])


@pytest.mark.parametrize("name", ["model.safetensors", "news.safetensors"])
def test_numbers_that_are_none_are_never_served(copy, name):
    (copy / "model" / "checksums.json").unlink()
    tensors = load_file(copy / "model" / name)
    for value in tensors.values():
        value.view(-1)[0] = float("nan")
    save_file(tensors, copy / "model" / name)
    with pytest.raises(InputError, match="NaN or Inf"):
        Recommender.from_pretrained(copy)


def test_a_model_of_another_version_is_not_called_damaged(copy):
    (copy / "model" / "checksums.json").unlink()
    tensors = load_file(copy / "model" / "model.safetensors")
    name = sorted(tensors)[-1]
    save_file({key: value for key, value in tensors.items() if key != name}, copy / "model" / "model.safetensors")
    with pytest.raises(InputError, match=rf"was saved by speedyfeed .*: found no weights {name}; train it again"):
        Recommender.from_pretrained(copy)


def test_a_checkpoint_of_another_version_is_not_called_damaged(made, copy, capsys):
    shutil.rmtree(copy / "model")
    newest = checkpoints(copy / "checkpoints")[-1]
    for lost in ("loader.position", "optimizer.0.exp_avg"):
        tensors = load_file(newest / "training.safetensors")
        save_file({name: one for name, one in tensors.items() if name != lost}, newest / "training.safetensors")
        write_checksums(newest, ["training.safetensors", "state.json"])
        with pytest.raises(SystemExit) as stop:
            main(["train", str(made / "store"), str(copy), "--resume"])
        assert stop.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"speedyfeed: {newest}: is a checkpoint of another version of speedyfeed (KeyError")
        save_file(tensors, newest / "training.safetensors")


def test_a_store_of_another_version_is_not_called_damaged(made, tmp_path):
    shutil.copytree(made / "store", tmp_path / "store")
    manifest = tmp_path / "store" / "manifest.json"
    facts = json.loads(manifest.read_text("utf-8"))
    del facts["counts"], facts["sha256"]
    manifest.write_text(json.dumps(seal(facts)), "utf-8")
    with pytest.raises(InputError, match=r"was prepared by another version of speedyfeed .*'counts'"):
        open_store(tmp_path / "store")


def test_settings_of_another_version_are_said_to_be_so(copy):
    (copy / "model" / "checksums.json").unlink()
    settings = copy / "model" / "recommender.json"
    settings.write_text(settings.read_text("utf-8").replace('"dim"', '"width"'), "utf-8")
    with pytest.raises(InputError, match=r"was saved by speedyfeed .* settings that this one does not know"):
        Recommender.from_pretrained(copy)


def test_equal_weights_of_a_run_take_room_once(made):
    (best,) = (made / "run" / "best").glob("step-*/model.safetensors")
    assert best.samefile(made / "run" / "model" / "model.safetensors")


def test_the_validation_split_is_evaluated_when_asked_for(made, capsys):
    main(["evaluate", str(made / "run"), "--split", "valid"])
    told = capsys.readouterr().out
    assert told.splitlines()[1].startswith("valid: ")
    assert "training chose the model by this split" in told


def test_damage_to_the_store_is_named_when_a_run_is_evaluated(made, copy, tmp_path, capsys):
    shutil.copytree(made / "store", tmp_path / "store")
    run = open_run(copy)
    run.note(store=replace(run.facts.store, path=str(tmp_path / "store")))
    flip(tmp_path / "store" / "dev" / "labels.npy")
    with pytest.raises(SystemExit):
        main(["evaluate", str(copy)])
    assert "labels.npy: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["training.safetensors", "state.json", "model/model.safetensors"])
def test_a_damaged_checkpoint_is_skipped(made, copy, damage, name, caplog):
    shutil.rmtree(copy / "model")
    older, newer = checkpoints(copy / "checkpoints")
    damage(newer / name)
    assert train(open_run(copy), open_store(made / "store")).is_finished
    (line,) = [record.getMessage() for record in caplog.records if "resuming from" in record.getMessage()]
    assert str(newer / name) in line
    assert line.endswith(older.name)
    assert [path.name for path in checkpoints(copy / "checkpoints")] == [older.name, newer.name]
    same = [(folder / "model" / "model.safetensors").read_bytes() for folder in (copy, made / "run")]
    assert same[0] == same[1]


def test_without_an_intact_checkpoint_one_line_says_so(made, copy, capsys):
    shutil.rmtree(copy / "model")
    for checkpoint in checkpoints(copy / "checkpoints"):
        cut(checkpoint / "training.safetensors")
    with pytest.raises(SystemExit) as stop:
        main(["train", str(made / "store"), str(copy), "--resume"])
    assert stop.value.code == 2
    assert "no checkpoint is intact" in capsys.readouterr().err


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["run.json", "best", "document_frequencies.parquet"])
def test_other_damaged_files_of_a_run_are_named(made, copy, damage, name):
    path = copy / name if name != "best" else next((copy / "best").glob("*/model.safetensors"))
    shutil.rmtree(copy / "model")
    damage(path)
    with pytest.raises((InputError, FileNotFoundError)) as error:
        train(open_run(copy), open_store(made / "store"))
    assert path.name in str(error.value) or "no run here" in str(error.value)


def test_a_best_model_that_is_gone_is_not_replaced_by_another(made, copy):
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "best")
    with pytest.raises(InputError, match="best: the model that validated best is missing"):
        train(open_run(copy), open_store(made / "store"))


def test_a_damaged_line_of_metrics_is_named(made, copy):
    shutil.rmtree(copy / "model")
    lines = (copy / "metrics.jsonl").read_text("utf-8").splitlines()
    (copy / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][3:], *lines[2:]]) + "\n", "utf-8")
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: is damaged"):
        train(open_run(copy), open_store(made / "store"))


def test_metrics_that_are_gone_are_missed(copy):
    """They say which model was saved, which `evaluate` and `compare` tell."""
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"metrics\.jsonl: is missing, .* give the model alone"):
        load_saved(copy)
    assert load_saved(copy / "model") is None


@pytest.mark.parametrize("change", ["cut", "other clicks"])
def test_metrics_that_say_something_else_than_the_run_are_refused(copy, change):
    saved, lines = load_saved(copy), (copy / "metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    best = max(
        (line for line in lines if "validation_auc" in line), key=lambda line: json.loads(line)["validation_auc"]
    )
    other = json.dumps(json.loads(best) | {"clicks": saved.clicks + 1}) + "\n"
    changed = (
        [other if line == best else line for line in lines] if change != "cut" else lines[: lines.index(best)]
    )
    (copy / "metrics.jsonl").write_text("".join(changed), "utf-8")
    with pytest.raises(InputError, match=r"metrics\.jsonl: is damaged, .* give the model alone"):
        load_saved(copy)


def test_check_reads_every_file(made, copy, capsys):
    main(["check", str(made / "store")])
    main(["check", str(copy)])
    assert capsys.readouterr().out.count("all intact") == 2
    flip(next((copy / "checkpoints").glob("*/training.safetensors")))
    with pytest.raises(SystemExit) as stop:
        main(["check", str(copy)])
    assert stop.value.code == 2
    assert "training.safetensors: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["model", "best/step-00000000", "checkpoints/step-00000004"])
def test_check_needs_the_checksums(copy, place, capsys):
    (path,) = copy.glob(f"{place}/checksums.json")
    path.unlink()
    with pytest.raises(SystemExit) as stop:
        main(["check", str(copy)])
    assert stop.value.code == 2
    assert f"{path}: is missing, so nothing can be compared with it" in capsys.readouterr().err


def test_check_does_not_count_what_people_edit(copy, capsys):
    main(["check", str(copy)])
    (copy / "model" / "README.md").unlink()
    main(["check", str(copy)])
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_an_unexpected_error_is_blamed_on_the_damage_behind_it(copy, monkeypatch, capsys):
    flip(next((copy / "checkpoints").glob("*/training.safetensors")))

    def fail(*_, **__):
        raise IndexError("index 4711 is out of bounds")

    monkeypatch.setattr(Recommender, "recommend", fail)
    with pytest.raises(SystemExit):
        main(["recommend", str(copy)])
    assert capsys.readouterr().err.startswith(f"speedyfeed: {copy}/checkpoints/")


def test_an_unexpected_error_beside_an_unreadable_file_is_one_line(copy, monkeypatch, capsys):
    def fail(*_, **__):
        raise IndexError("index 4711 is out of bounds")

    def forbid(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Recommender, "recommend", fail)
    monkeypatch.setattr("speedyfeed.cli.check.verify", forbid)  # root may read whatever is forbidden
    with pytest.raises(SystemExit) as stop:
        main(["recommend", str(copy)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"speedyfeed: {copy}: Permission denied\n"
