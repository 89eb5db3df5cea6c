"""The small form of fault injection: some damaged files and some kills; the long form is run by hand."""

import pytest

from benchmarks.robustness import faults
from benchmarks.robustness.faults import COMMANDS, REFUSED, SAME, FaultsConfig, inject, summarize, tables
from benchmarks.robustness.fuzz import FAULT, SAMPLES, read_all, try_file, write_sample
from benchmarks.robustness.sandbox import Answer, make_world
from benchmarks.robustness.sudden import SuddenConfig, kill_in_turn


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def test_damage_is_refused_in_one_line_or_has_no_effect(world, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(faults, "CASES_PER_REPORT", 30)
    caplog.set_level("INFO", faults.log.name)
    quick = ("check store", "check run", "recommend", "export")
    cases = inject(world, tmp_path / "case", FaultsConfig(cases=32, seed=5, commands=quick))
    assert [case for case in cases if case.verdict not in (SAME, REFUSED)] == []
    assert {case.verdict for case in cases} == {SAME, REFUSED}
    assert set(quick) < set(COMMANDS)
    [report] = caplog.messages  # what a run that is stopped leaves
    assert report.startswith("30 of 32 cases")
    assert tables(summarize(cases[:30])) in report


def test_killed_commands_leave_nothing_half_made(world, tmp_path):
    rounds = kill_in_turn(world, tmp_path / "out", SuddenConfig(rounds=2, seed=1))  # synth and prepare
    assert [one.command for one in rounds] == ["synth", "prepare"]
    assert all(one.is_whole and one.is_same for one in rounds), rounds


def test_a_traceback_is_no_refusal():
    assert Answer(code=2, out="", errors="reading ...\nspeedyfeed: no such store\n", seconds=0).is_refusal
    assert not Answer(code=1, out="", errors="Traceback (most recent call last):\n", seconds=0).is_refusal
    assert not Answer(code=2, out="", errors="", seconds=0).is_refusal


@pytest.mark.parametrize("name", SAMPLES)
def test_the_logs_to_mutate_are_well_formed(name, tmp_path):
    write_sample(tmp_path, SAMPLES[name])
    assert read_all(tmp_path, name) > 2


def test_mutated_logs_are_read_or_refused():
    verdicts = [try_file(number, seed=3) for number in range(210)]
    assert [message for verdict, message in verdicts if verdict == FAULT] == []
    assert len({verdict for verdict, _ in verdicts}) == 2
