"""The README keeps its word: its Python runs as it stands, and it is short."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from speedyfeed import tokenizers
from tests import forked

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def short_minilm(tmp_path, monkeypatch):
    """MiniLM of one layer in place of six, with the weights it was trained to."""
    folder = tmp_path / "minilm"
    shutil.copytree(tokenizers._minilm_folder(), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}), "utf-8")
    monkeypatch.setattr(tokenizers, "_minilm_folder", lambda: folder)


@pytest.mark.slow
@pytest.mark.usefixtures("short_minilm")
def test_the_snippet_runs_as_it_stands(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    done = forked.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    auc, *titles = done.stdout.splitlines()
    assert 0.5 < float(auc) < 1
    assert len(titles) == 5


def test_it_fits_one_screen_and_a_scroll():
    assert len(README.read_text("utf-8").splitlines()) <= 140
