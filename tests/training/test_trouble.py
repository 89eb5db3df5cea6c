"""What may befall a run: a clear stop, nothing half written, and it goes on from where it was."""

import errno
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from speedyfeed.cli.main import main
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError, UnwritableError
from speedyfeed.files import FolderLock
from speedyfeed.models.base import NewsModule
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import silent
from speedyfeed.recipes import recipe
from speedyfeed.training.checkpoint import checkpoints, newest_step
from speedyfeed.training.loop import Outcome, train
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.schedule import Progress
from speedyfeed.training.trainer import Trainer
from tests import forked


def test_a_gradient_that_is_no_number_stops_the_run_before_it_is_learned_from(
    store, config, tmp_path, monkeypatch
):
    run = start_run(tmp_path / "run", config, store)
    step = Trainer.step

    def poisoned(self, batch, factor):
        self.model.user.start.register_hook(lambda gradient: gradient * torch.inf if batch.step == 3 else gradient)
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", poisoned)
    with pytest.raises(InputError, match=r"a gradient became (inf|nan).*lower"):
        train(run, store)
    monkeypatch.undo()
    assert not checkpoints(run.checkpoints)  # the one of step 4 would have had it
    assert train(run, store).is_finished


@pytest.mark.parametrize("place", ["best", "checkpoints", "."])
def test_a_disk_that_is_full_is_one_line_and_the_run_goes_on(store, config, tmp_path, monkeypatch, place):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4)), store)
    save = Recommender.save_pretrained

    def full(self, folder):
        save(self, folder)
        if Path(folder).is_relative_to(run.path / place) and (place != "." or Path(folder).parent == run.path):
            raise SafetensorError("No space left on device")

    monkeypatch.setattr(Recommender, "save_pretrained", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); make room"):
        train(run, store)
    monkeypatch.undo()
    assert not run.model.exists()
    assert not list(run.path.rglob(".*partial*"))
    assert train(run, store).is_finished


def test_a_signal_while_the_model_is_written_is_heard(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4)), store)
    told = []

    def report(stage, done, total, note="", /):
        if stage == "encoding articles" and not told:
            told.append(stage)
            os.kill(os.getpid(), signal.SIGTERM)

    # The wish is heard with the next report: there must be more than one batch of news to encode.
    monkey = pytest.MonkeyPatch()
    monkey.setattr(NewsModule.encode_all, "__kwdefaults__", {"tokens_per_batch": 500, "report": silent})
    outcome = train(run, store, report)
    monkey.undo()
    assert told
    assert not outcome.is_finished
    assert not run.model.exists()
    assert train(run, store).is_finished


def test_a_signal_before_anything_is_learned_is_heard(store, config, tmp_path):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=2)), store)

    def report(stage, done, total, note="", /):
        if stage == "initialize" and not done:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = train(run, store, report)
    assert (outcome.is_finished, outcome.progress.step) == (False, 0)
    assert newest_step(run.checkpoints) < 0
    assert train(run, store).is_finished


def test_the_command_stops_with_what_goes_on(store, tiny_encoder, tmp_path):
    words = ["--encoder", str(tiny_encoder), "--recipe", "tiny", "--epochs", "500", "--validations", "0"]
    words += ["--checkpoint-every", "3"]
    command = [sys.executable, "-m", "speedyfeed", "train", str(store.path), str(tmp_path / "run")]
    with forked.Popen([*command, *words], stdout=forked.PIPE) as process:
        while process.poll() is None and newest_step(tmp_path / "run" / "checkpoints") < 0:
            time.sleep(0.05)
        process.terminate()
        said = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGTERM
    assert f"stopped and saved; resume with: speedyfeed train {store.path} {tmp_path / 'run'} --resume" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_training_is_no_success(store, tiny_encoder, tmp_path, monkeypatch, number, code, capsys):
    def stopped(run, *_, **__):
        return Outcome(progress=Progress(step=3), is_finished=False, signal=number)

    monkeypatch.setattr("speedyfeed.training.loop.train", stopped)
    with pytest.raises(SystemExit) as stop:
        main(
            ["train", str(store.path), str(tmp_path / "a run"), "--encoder", str(tiny_encoder), "--recipe", "tiny"]
        )
    assert stop.value.code == code
    assert f"resume with: speedyfeed train {store.path} '{tmp_path / 'a run'}' --resume" in capsys.readouterr().out


@pytest.mark.parametrize("error", [UnwritableError("best", "full"), OSError(errno.ENOSPC, "full")], ids=["a", "b"])
def test_after_a_full_disk_the_advice_is_the_command_that_works(
    store, tiny_encoder, tmp_path, monkeypatch, capsys, error
):
    def full(run, *_, **__):
        (run.path / "metrics.jsonl").write_text("")
        raise error

    monkeypatch.setattr("speedyfeed.training.loop.train", full)
    with pytest.raises(SystemExit) as stop:
        main(["train", str(store.path), str(tmp_path / "run"), "--encoder", str(tiny_encoder), "--recipe", "tiny"])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert "cannot be written (full)" in line
    assert line.endswith(f"then: speedyfeed train {store.path} {tmp_path / 'run'} --resume\n")


def test_training_that_did_not_help_is_said(store, config, tmp_path, capsys):
    chosen = replace(config, train=replace(config.train, steps=2, lr=0.0, encoder_lr=0.0))
    outcome = train(start_run(tmp_path / "run", chosen, store), store)
    assert outcome.best_is_initial
    main(["train", str(store.path), str(tmp_path / "run"), "--resume"])
    assert "the saved model is the initial one" in capsys.readouterr().out


def test_the_room_that_a_run_takes_is_said_before_it_trains(store, config, tmp_path, caplog):
    caplog.set_level("INFO", logger="speedyfeed")
    chosen = replace(config, train=replace(config.train, steps=4, checkpoint_every=1, max_checkpoints=2))
    run = start_run(tmp_path / "run", chosen, store)
    train(run, store)
    (said,) = [record.args[1] for record in caplog.records if "will take up to" in record.msg]
    files = {file.stat().st_ino: file.stat().st_size for file in run.path.rglob("*") if file.is_file()}
    taken = sum(files.values()) / 1e6
    assert taken <= float(said.replace(",", "")) + 1 <= 4 * taken


def test_without_validation_there_is_no_best_auc(store, config, tmp_path, capsys):
    chosen = replace(config, train=replace(config.train, steps=1, validations=0))
    run = start_run(tmp_path / "run", chosen, store)
    assert not train(run, store).best_is_initial
    main(["train", str(store.path), str(tmp_path / "run"), "--resume", "--json"])
    assert json.loads(capsys.readouterr().out)["progress"]["best_auc"] is None
    assert json.loads((run.path / "run.json").read_text())["best_auc"] is None


def test_a_run_that_another_process_trains_is_refused_and_left_alone(store, config, tmp_path, capsys):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=0)), store)
    lock = FolderLock(run.path)
    with pytest.raises(InputError, match=f"process {os.getpid()} is writing it"):
        train(run, store)
    with pytest.raises(SystemExit):
        main(["train", str(store.path), str(run.path), "--resume"])
    assert f"speedyfeed: {run.path}: process {os.getpid()} is writing it" in capsys.readouterr().err
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".lock",
        "document_frequencies.parquet",
        "run.json",
    ]
    lock.release()
    assert train(run, store).is_finished
    assert not (run.path / ".lock").exists()


def test_a_split_without_clicks_validates_nothing_and_keeps_the_end(store, config, tmp_path, monkeypatch, caplog):
    valid = store.impressions("valid")
    nothing = replace(valid, labels=np.zeros_like(valid.labels))
    monkeypatch.setattr(type(store), "impressions", lambda self, split: nothing)
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4)), store)
    outcome = train(run, store)
    assert outcome.is_finished
    assert outcome.progress.best_auc == 0
    assert "no validation impression has both clicked and other articles" in caplog.text
    assert not run.best.exists()


def test_a_log_of_nothing_but_clicks_is_learned_from(tmp_path):
    folder = tmp_path / "logs" / "train"
    folder.mkdir(parents=True)
    news = [f"N{number}\tsport\t\ttitle of {number}\t\t\t[]\t[]" for number in range(1, 9)]
    (folder / "news.tsv").write_text("\n".join(news) + "\n")
    clicks = ["1\tU1\t11/11/2019 9:05:58 AM\tN1 N2\tN3-1", "2\tU2\t11/11/2019 9:06:58 AM\tN4\tN5-1"]
    (folder / "behaviors.tsv").write_text("\n".join(clicks) + "\n")
    store = prepare(tmp_path / "logs", tmp_path / "store", PrepareConfig()).store
    assert len(store.train.pools)
    assert not store.train.has_negatives
    chosen = recipe("nrms")
    config = replace(
        chosen,
        news=replace(chosen.news, dim=16),
        words=replace(chosen.words, width=16, heads=2, query_width=8),
        user=replace(chosen.user, heads=2, query_width=8),
        train=replace(chosen.train, epochs=1),
    )
    assert train(start_run(tmp_path / "run", config, store), store).progress.clicks == 5
    model = Recommender.from_pretrained(tmp_path / "run")
    known = model.catalogue
    assert known.adds_biases
    assert any(known.biases)
    scores = model.score(["N1"], known.news_ids)
    model.catalogue = replace(known, adds_biases=False)
    np.testing.assert_allclose(scores, model.score(["N1"], known.news_ids) + np.array(known.biases), atol=1e-6)


def test_a_store_that_changed_while_training_is_refused(store, config, tmp_path, monkeypatch):
    """Its fingerprint is looked at again before a checkpoint is written."""
    shutil.copytree(store.path, tmp_path / "store")
    copy = open_store(tmp_path / "store")
    run = start_run(tmp_path / "run", config, copy)
    step = Trainer.step

    def changing(self, batch, factor):
        if batch.step == 5:
            manifest = tmp_path / "store" / "manifest.json"
            manifest.write_text(manifest.read_text().replace('"store_version"', '"changed": 1, "store_version"'))
        return step(self, batch, factor)

    monkeypatch.setattr(Trainer, "step", changing)
    with pytest.raises(InputError, match="prepared anew"):
        train(run, copy)
    assert [path.name for path in checkpoints(run.checkpoints)] == ["step-00000004"]
