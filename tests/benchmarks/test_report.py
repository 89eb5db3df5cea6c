import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.names import BENCHMARKS, load_benchmark
from benchmarks.newsroom import USERS
from benchmarks.speed import step
from speedyfeed.errors import InputError
from tests import forked


def run_all(capsys, *arguments):
    """Exit code, standard output and standard error."""
    code = 0
    try:
        main(["all", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_report_names_what_failed_and_goes_on_from_there(store, tiny_encoder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "subprocess", forked)
    arguments = ["--store", store.path, "--out", tmp_path, "--only", "data-efficiency", "step"]
    monkeypatch.setattr(report, "OPTIONS", {"step": ("--precision", "fp8", "--encoder", str(tiny_encoder))})
    code, out, _ = run_all(capsys, *arguments)
    assert code == 1
    assert "failed: step" in out
    text = (tmp_path / "report.md").read_text()
    assert "no precision 'fp8'" in text
    assert re.search(r"encoded tokens that are text *\| *100.0%", text)

    quick = ("--encoder", str(tiny_encoder), "--skip", "0", "--warmup", "0", "--steps", "1")
    monkeypatch.setattr(report, "OPTIONS", {"step": quick})
    code, out, err = run_all(capsys, *arguments, "--json")
    assert code == 0
    assert "data-efficiency (2 of 2): measured before" in err
    assert list(json.loads(out)) == ["step", "data-efficiency"]
    text = (tmp_path / "report.md").read_text()
    assert "fp8" not in text
    figures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert figures == ["step.png", "data-efficiency.png"]
    assert all((tmp_path / figure).exists() for figure in figures)


def test_figures_of_other_data_are_measured_again(tmp_path):
    file = tmp_path / "step.json"
    assert not report._is_measured(file, {})
    file.write_text(json.dumps({"config": {"store": "here"}}))
    assert report._is_measured(file, {"store": Path("here")})
    assert not report._is_measured(file, {"store": Path("there")})


def test_benchmarks_that_train_get_a_newsroom_that_is_evaluated_in_minutes(tmp_path, monkeypatch):
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
    inputs = report._inputs(report.Arguments(work=tmp_path), ["toy", "step"])
    small, large = tmp_path / "store of None", tmp_path / f"store of {USERS}"
    assert inputs == {"toy": {"store": small, "logs": tmp_path / "logs of None"}, "step": {"store": large}}
    inputs = report._inputs(report.Arguments(work=tmp_path, store=tmp_path), ["toy", "step"])
    assert inputs == {"toy": {"store": tmp_path}, "step": {"store": tmp_path}}


def test_every_benchmark_is_in_the_report_and_claims_name_benchmarks():
    assert report._choose(()) == [name for name in BENCHMARKS if name not in ("all", *report.APART)]
    assert {claim.benchmark for claim in report.CLAIMS} <= set(BENCHMARKS)
    with pytest.raises(InputError, match="--only sped: no such benchmark"):
        report._choose(["sped"])


def test_quick_settings_are_options_of_their_benchmarks(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        report,
        "make_newsroom",
        lambda config, _: (
            seen.append(config) or SimpleNamespace(logs=tmp_path, store=SimpleNamespace(path=tmp_path))
        ),
    )
    report._inputs(report.Arguments(work=tmp_path, quick=True), report._choose(()))
    assert set(seen) == {report.QUICK_NEWSROOM}
    for name, arguments in report.QUICK.items():
        options = {field.name for field in fields(report.config_type(load_benchmark(name)))}
        assert {part[2:].replace("-", "_") for part in arguments if part.startswith("--")} <= options, name


def test_results_are_named_by_date_and_commit():
    assert report.results_name("2026-11-17", "abc1234") == "2026-11-17-abc1234"
    assert report.results_name("2026-11-17", "abc1234+") == "2026-11-17-abc1234-changed"
    assert report.results_name("2026-11-17", "") == "2026-11-17-no-commit"


def test_measuring_again_forgets_figures_and_runs_of_that_benchmark_only(tmp_path):
    out, work = tmp_path / "out", tmp_path / "work"
    for path in (out / "cache.json", out / "cache.png", out / "step.json", work / "cache" / "run", work / "store"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    report._forget("cache", out, work)
    assert [path.name for path in out.iterdir()] == ["step.json"]
    assert [path.name for path in work.iterdir()] == ["store"]
