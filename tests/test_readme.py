"""The README keeps its word: its Python runs as it stands, and it is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_snippet_runs_as_it_stands(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    auc, *titles = done.stdout.splitlines()
    assert 0.5 < float(auc) < 1
    assert len(titles) == 5


def test_it_fits_one_screen_and_a_scroll():
    assert len(README.read_text("utf-8").splitlines()) <= 160
