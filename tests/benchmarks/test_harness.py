import contextlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import tyro

from benchmarks.__main__ import main
from benchmarks.harness import Machine, as_command, find_commit
from benchmarks.names import BENCHMARKS
from speedyfeed.markdown import table


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A benchmark that needs a store."""

    store: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    ratio: float


def toy_benchmark():
    module = ModuleType("toy", "Toys.\n\nExample: python -m benchmarks toy")

    def measure(config: Config) -> Figures:
        return Figures(ratio=2.0)

    module.measure = measure
    module.tables = lambda figures: f"twice {figures.ratio}"
    return as_command(module, "toy")


def test_a_table_reads_as_text_and_as_markdown():
    assert table(["part", "share"], [["a", "1%"], ["longer", "99.5%"]]).splitlines() == [
        "| part   | share |",
        "| ------ | ----: |",
        "| a      |    1% |",
        "| longer | 99.5% |",
    ]


def test_a_benchmark_is_a_command_made_from_its_config(tmp_path, capsys):
    command = toy_benchmark()
    arguments = tyro.cli(command.Arguments, args=["--store", "here", "--out", str(tmp_path / "out"), "--json"])
    command.run(arguments)
    facts = json.loads(capsys.readouterr().out)
    assert facts["ratio"] == 2.0
    assert facts["config"] == {"store": "here"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["date"])
    assert facts["machine"]["torch"]
    assert json.loads((tmp_path / "out" / "toy.json").read_text()) == facts
    assert (tmp_path / "out" / "toy.md").read_text() == "twice 2.0\n"


def test_a_commit_is_named_and_changes_are_marked(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    assert find_commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    assert find_commit(tmp_path) == ""  # a checkout, but not of these files
    git("add", "file")
    git("commit", "-qm", "first")
    clean = find_commit(tmp_path)
    assert clean
    assert not clean.endswith("+")
    (tmp_path / "file").write_text("2")
    assert find_commit(tmp_path) == f"{clean}+"


@pytest.mark.parametrize("commit", ["", "abc"])
def test_a_machine_says_what_it_is(commit):
    told = str(Machine(cores=2, gigabytes=24, gpu="none", commit=commit))
    assert told.startswith("2 cores, 24 GB, GPU none")
    assert ("(abc)" in told) == bool(commit)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_explains_itself_with_an_example(name, capsys):
    with contextlib.suppress(SystemExit):  # the parser leaves that way after its help
        main([name, "--help"])
    assert f"Example: python -m benchmarks {name}" in capsys.readouterr().out
