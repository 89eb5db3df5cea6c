"""Trackers with their real packages, offline; what they wrote is read back."""

import json
import time
from pathlib import Path

import pytest

from speedyfeed.errors import InputError
from speedyfeed.training import trackers
from speedyfeed.training.metrics import MetricsFile
from speedyfeed.training.trackers import parse_trackers

SETTINGS = {"news": {"encoder": "minilm"}, "train": {"epochs": 3}}


def write(folder, name):
    """Three lines of metrics, the last of them by a resumed run."""
    with MetricsFile(folder, resume_step=-1, trackers=(name,), settings=SETTINGS) as metrics:
        metrics.write(1, {"loss": 0.5, "ndcg@10": 0.25})
        metrics.write(2, {"loss": 0.25})
    if name == "wandb":
        time.sleep(1.1)  # its offline folders are named by the second in which a run starts
    with MetricsFile(folder, resume_step=2, trackers=(name,), settings=SETTINGS) as metrics:
        metrics.write(3, {"loss": 0.125})


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {(name, event.step): event.value for name in events.Tags()["scalars"] for event in events.Scalars(name)}


def read_wandb(folder):
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # its service may write the last lines after a run has ended, and this waits for it
    found, ids = {}, set()
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        file = DataStore()
        file.open_for_scan(str(path))
        while (data := file.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            if record.run.run_id:
                ids.add(record.run.run_id)
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found |= {(name, values["_step"]): value for name, value in values.items() if name[0] != "_"}
    assert ids == {json.loads((folder / "trackers.json").read_text())["wandb"]}, "a resumed run is the same run"
    return found


def read_mlflow(folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("speedyfeed").experiment_id])
    assert run.data.params == {"news.encoder": "minilm", "train.epochs": "3"}
    assert run.info.status == "FINISHED"
    history = [metric for name in run.data.metrics for metric in client.get_metric_history(run.info.run_id, name)]
    return {(metric.key.replace("_", "@"), metric.step): metric.value for metric in history}


def read_trackio(folder):
    import sqlite3

    (path,) = (folder / "trackio").glob("speedyfeed.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    return {(name, step): value for step, values in rows for name, value in json.loads(values).items()}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("tensorboard", read_tensorboard),
        ("wandb", read_wandb),
        ("mlflow", read_mlflow),
        ("trackio", read_trackio),
    ],
)
def test_what_a_tracker_wrote_is_read_back(tmp_path, monkeypatch, name, read):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip(name)
    write(tmp_path, name)
    assert read(tmp_path) == {("loss", 1): 0.5, ("loss", 2): 0.25, ("loss", 3): 0.125, ("ndcg@10", 1): 0.25}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]


def test_names_are_parsed_and_packages_looked_for(monkeypatch):
    assert parse_trackers("tensorboard, tensorboard") == ("tensorboard",)
    assert parse_trackers("none") == parse_trackers("") == ()
    with pytest.raises(InputError, match="--track a,b: found 'a', expected some of tensorboard, wandb, "):
        parse_trackers("a,b")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"found no package wandb, .*; pip install 'speedyfeed\[wandb\]'"):
        parse_trackers("wandb")


def test_a_tracker_that_cannot_start_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with pytest.raises(InputError, match=r"--track mlflow: .* leave mlflow out"):
        MetricsFile(tmp_path, resume_step=-1, trackers=("mlflow",), settings=SETTINGS)
    wandb = pytest.importorskip("wandb")

    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match="--track wandb: No API key configured; correct it, or leave wandb out"):
        MetricsFile(tmp_path, resume_step=-1, trackers=("wandb",), settings=SETTINGS)


def test_no_tracker_is_imported_before_it_is_used():
    lines = Path(trackers.__file__).read_text("utf-8").splitlines()
    top = [line for line in lines if line.startswith(("import ", "from "))]
    assert len(top) > 5
    assert not [line for line in top if line.split()[1].split(".")[0] in {*trackers.TRACKERS, "torch"}]
