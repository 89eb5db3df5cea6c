"""The examples run as they are, on tiny data; each fits on a screen."""

import json
import sys
from pathlib import Path

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
    told = run_example("closed_loop.py", tmp_path, "--encoder", tiny_encoder).splitlines()
    assert [line.partition(":")[0] for line in told] == ["before", "after"]
    before, after = (int(line.split()[1]) for line in told)
    assert after > before  # readers of travel opened sports


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
