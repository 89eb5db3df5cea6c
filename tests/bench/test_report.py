import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.names import BENCHMARKS
from benchmarks.newsroom import USERS
from benchmarks.speed import step
from speedyfeed.errors import InputError


def bench_all(capsys, *words):
    """Exit code, what was printed, and what was told on the way."""
    code = 0
    try:
        main(["all", *map(str, words)])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_report_names_what_failed_and_goes_on_from_there(store, tiny_encoder, tmp_path, capsys, monkeypatch):
    words = ["--store", store.path, "--out", tmp_path, "--only", "data-efficiency", "step"]
    monkeypatch.setattr(report, "OPTIONS", {"step": ("--precision", "fp8", "--encoder", str(tiny_encoder))})
    code, out, _ = bench_all(capsys, *words)
    assert code == 1
    assert "failed: step" in out
    told = (tmp_path / "report.md").read_text()
    assert "no precision 'fp8'" in told
    assert "no precision 'fp8'" in json.loads((tmp_path / "report.json").read_text())["step"]["failed"]
    assert re.search(r"encoded tokens that are text *\| *100.0%", told)

    quick = ("--encoder", str(tiny_encoder), "--skip", "0", "--warmup", "0", "--steps", "1")
    monkeypatch.setattr(report, "OPTIONS", {"step": quick})
    code, out, err = bench_all(capsys, *words, "--json")
    assert code == 0
    assert "data-efficiency (2 of 2): measured before" in err
    assert list(json.loads(out)) == ["step", "data-efficiency"]
    told = (tmp_path / "report.md").read_text()
    assert "fp8" not in told
    figures = re.findall(r"!\[.*\]\((.*)\)", told)
    assert figures == ["step/step.png", "data-efficiency/data-efficiency.png"]
    assert all((tmp_path / figure).exists() for figure in figures)


def test_figures_of_other_data_are_measured_again(tmp_path):
    file = tmp_path / "step.json"
    assert not report._is_measured(file, {})
    file.write_text(json.dumps({"config": {"store": "here"}}))
    assert report._is_measured(file, {"store": Path("here")})
    assert not report._is_measured(file, {"store": Path("there")})


def test_benches_that_train_get_a_newsroom_that_can_be_judged_in_minutes(tmp_path, monkeypatch):
    @dataclass
    class Training:
        store: Path
        logs: Path
        seeds: tuple[int, ...]

    def measure(config: Training) -> None: ...

    def made(config, folder):
        store = SimpleNamespace(path=folder / f"store of {config.users}")
        return SimpleNamespace(logs=folder / f"logs of {config.users}", store=store)

    monkeypatch.setattr(report, "make_newsroom", made)
    monkeypatch.setattr(
        report, "load_benchmark", lambda name: SimpleNamespace(measure=measure) if name == "toy" else step
    )
    places = report._places(report.Arguments(out=tmp_path), ["toy", "step"])
    small, large = tmp_path / "store of None", tmp_path / f"store of {USERS}"
    assert places == {"toy": {"store": small, "logs": tmp_path / "logs of None"}, "step": {"store": large}}
    places = report._places(report.Arguments(out=tmp_path, store=tmp_path), ["toy", "step"])
    assert places == {"toy": {"store": tmp_path}, "step": {"store": tmp_path}}


def test_every_bench_is_in_the_report_and_claims_name_benches():
    assert report._choose(()) == [name for name in BENCHMARKS if name not in ("all", "ranks", "kills")]
    assert {claim.bench for claim in report.CLAIMS} <= set(BENCHMARKS)
    with pytest.raises(InputError, match="--only sped: no such bench"):
        report._choose(["sped"])
