"""The examples run as they are, on tiny data; each fits on a screen."""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from urllib.request import Request, urlopen

import pytest

from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from tests import forked

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: object) -> str:
    done = forked.run([sys.executable, EXAMPLES / name, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_sixty_lines(example):
    assert len(example.read_text("utf-8").splitlines()) <= 60


def test_quickstart(tiny_encoder, tmp_path):
    told = run_example("quickstart.py", tmp_path, "--encoder", tiny_encoder, "--users", 150, "--steps", 3)
    assert "AUC" in told
    assert len(told.splitlines()) == 2 + 5


def test_train_on_mind(mind_logs, tiny_encoder, tmp_path):
    told = run_example("train_on_mind.py", mind_logs, tmp_path, "--encoder", tiny_encoder, "--minutes", 0.02)
    assert "ndcg@10" in told
    assert (tmp_path / "prediction.zip").exists()


def test_own_user_encoder(mind_logs, tiny_encoder, tmp_path):
    prepare(mind_logs, tmp_path / "store", PrepareConfig(encoder=str(tiny_encoder)))
    words = (tmp_path / "store", tmp_path / "run", "--encoder", tiny_encoder, "--steps", 2)
    assert "AUC" in run_example("own_user_encoder.py", *words)


@pytest.mark.slow
def test_closed_loop(tiny_encoder, tmp_path):
    told = run_example("closed_loop.py", tmp_path, "--encoder", tiny_encoder)
    before, after = (float(number) for number in re.findall(r"(\d+\.\d) (?:before|after)", told))
    assert after > before  # users who read travel clicked sports


def test_own_reader(tmp_path):
    for split in ("train", "dev"):
        folder = tmp_path / "logs" / split
        folder.mkdir(parents=True)
        articles = [{"id": f"a{number}", "headline": f"Story number {number}"} for number in range(4)]
        view = {
            "visitor": "v1",
            "at": "2026-11-16T08:00:00",
            "opened": ["a1"],
            "ignored": ["a2"],
            "before": ["a0"],
        }
        (folder / "articles.jsonl").write_text("\n".join(map(json.dumps, articles)))
        (folder / "views.jsonl").write_text(json.dumps(view))
    assert run_example("own_reader.py", tmp_path / "logs", tmp_path / "store") == "4 articles, splits train, dev\n"


def ask(port: int, is_over: Event, answers: list[str | None]) -> None:
    """Ask for recommendations until it is over, and note the model of each answer, None where there is none."""
    asked = Request(f"http://127.0.0.1:{port}/v1/recommend", b"{}", {"content-type": "application/json"})
    while not is_over.is_set():
        try:
            with urlopen(asked) as answer:
                answers.append(json.load(answer)["model"])
        except OSError:
            answers.append(None)
        time.sleep(0.02)


def test_nightly(tiny_encoder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    is_over, answers = Event(), []
    asking = Thread(target=ask, args=(port, is_over, answers))
    asking.start()
    words = map(str, ("--encoder", tiny_encoder, "--users", 200, "--days", 2, "--port", port))
    try:  # a process of its own, which stops the service when it ends
        done = subprocess.run(
            [sys.executable, EXAMPLES / "nightly.py", tmp_path / "week", *words], capture_output=True, text=True
        )
    finally:
        is_over.set()
        asking.join()
    assert done.returncode == 0, done.stderr
    first, second = re.findall(r"AUC (\S+), trained once (\S+), \S+ minutes", done.stdout)
    assert first[0] == first[1]
    assert second[0] != second[1]
    first_answer = next(number for number, model in enumerate(answers) if model)
    last_answer = max(number for number, model in enumerate(answers) if model)
    models = answers[first_answer : last_answer + 1]
    assert None not in models, "from the first answer to the last, none is missing"
    assert len(set(models)) == 2, "both nights' models have answered"


def test_the_notebook_runs_and_is_saved_with_its_outputs():
    pytest.importorskip("nbclient")
    from tools.run_notebook import NOTEBOOK, run_notebook

    saved = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    cells = run_notebook(NOTEBOOK).cells
    for before, now in zip(saved, cells, strict=True):
        if before["cell_type"] == "code":
            assert before["execution_count"] == now.execution_count
            kinds = [[set(output.get("data", {})) for output in cell["outputs"]] for cell in (before, now)]
            assert kinds[0] == kinds[1], "".join(before["source"])
    shown = json.dumps([cell["outputs"] for cell in saved if cell["cell_type"] == "code"])
    assert shown.count("100%") == 4, "progress is shown by synthesize, prepare, train and evaluate"
    assert not re.search(r"/(home|root|tmp|work|Users|usr)/|[A-Z]:\\\\", shown), "no paths of a machine"
