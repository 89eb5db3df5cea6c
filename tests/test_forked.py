"""Forked processes are as started ones: their output, exit codes, signals, folders and environments."""

import os
import signal
import sys

import pytest

from tests import forked


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("import sys; sys.exit(2)", 2), ("raise SystemExit('said')", 1), ("1 / 0", 1)],
)
def test_exit_codes_are_those_of_python(code, expected):
    done = forked.run([sys.executable, "-c", code])
    assert done.returncode == expected
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in code)


def test_output_arguments_folder_and_environment(tmp_path):
    code = "import os, sys; print(sys.argv, os.getcwd(), os.environ['A']); print('x' * 200_000, file=sys.stderr)"
    done = forked.run([sys.executable, "-c", code, "b"], cwd=tmp_path, env=os.environ | {"A": "1"})
    assert done.stdout == f"['-c', 'b'] {tmp_path} 1\n"
    assert len(done.stderr) == 200_001
    assert "A" not in os.environ


def test_a_script_and_a_module_run_as_main(tmp_path):
    (tmp_path / "script.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert forked.run([sys.executable, tmp_path / "script.py", 3]).stdout == "__main__ ['3']\n"
    assert forked.run([sys.executable, "-m", "calendar", 2026, 2]).stdout.split()[:2] == ["February", "2026"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(number):
    with forked.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert process.poll() is None
        process.send_signal(number)
    assert process.returncode == -number


def test_patches_of_the_test_hold_and_nothing_comes_back(monkeypatch):
    monkeypatch.setattr(sys, "patched", "here", raising=False)
    assert forked.run([sys.executable, "-c", "import sys; print(sys.patched); sys.patched = 1"]).stdout == "here\n"
    assert sys.patched == "here"
