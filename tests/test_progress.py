"""Progress bars as a terminal of 80 columns shows them."""

import io
import itertools
import re

import pytest
from rich.console import Console

from speedyfeed import progress

NOTE = "loss 1.2345  1,234 clicks/s  567 news/s  hits 85%  valid tokens 97%"


@pytest.mark.parametrize(("width", "note"), [(80, "loss 1.2345"), (88, "clicks/s"), (200, "valid tokens 97%")])
def test_a_line_has_a_bar_a_count_and_the_time_left(monkeypatch, width, note):
    shown = io.StringIO()
    clock = itertools.count(step=10.0)
    console = Console(
        file=shown,
        force_terminal=True,
        width=width,
        color_system=None,
        legacy_windows=False,
        get_time=clock.__next__,
    )
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    with progress.progress_bars() as report:
        report("load", 0, 0)
        report("initialize", 512, 512)
        for done in range(0, 12_346, 823):
            report("train", done, 67_890, NOTE)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()).replace("\r", "\n").split("\n")
    line = [line.rstrip() for line in lines if "train" in line][-1]
    assert len(line) <= width
    assert re.search(r"train +[━╸╺]+ +12,345/67,890 +\d+:\d\d", line)
    assert note in line
    assert line.endswith(("loss 1.2345", "clicks/s", "hits 85%", "valid tokens 97%"))
