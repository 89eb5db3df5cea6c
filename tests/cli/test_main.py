"""The command line as a user meets it: help, JSON, and one clear line with exit code 2 for each mistake."""

import contextlib
import errno
import itertools
import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from speedyfeed.cli import main as main_module
from speedyfeed.cli.help_texts import describe_command
from speedyfeed.cli.main import COMMANDS, main
from speedyfeed.cli.parser_messages import explain
from tests.conftest import NEWS as LOGGED
from tests.conftest import TRAIN, write_mind_split


def fails(capsys, *arguments):
    """The one line a mistake is answered with."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if not line.endswith(" ...")]  # stages already reported
    assert len(lines) == 1
    assert lines[0].startswith("speedyfeed: ")
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command, capsys):
    with contextlib.suppress(SystemExit):  # the parser leaves that way after its help
        main([command, "--help"])
    assert f"Example: speedyfeed {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_narrow_terminal_and_shows_only_defaults_that_can_be_typed(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    page = capsys.readouterr().out
    assert stop.value.code == 0
    assert max(map(len, page.splitlines())) <= 80
    assert not re.findall(r"^│ +│$", page, re.MULTILINE)
    assert not re.findall(r"default: (?:None|True|False)|\{None", page)
    text = " ".join(page.replace("│", " ").split())
    assert text.count("(this flag turns it off)") == len(re.findall(r"^│ --[\w.]*\bno-", page, re.MULTILINE))


def test_help_is_readable_whatever_the_width_of_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1")
    with contextlib.suppress(SystemExit):
        main(["recommend", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) >= 40


def test_help_texts_are_running_text_whose_lines_are_full(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main(["train", "--help"])
    page = capsys.readouterr().out
    assert "│ --workflow {fast,conventional} " in page
    text = page.partition("--news.no-segments")[2].partition("--news.no-categories")[0]
    lines = [line.strip("│ ") for line in text.splitlines()[:-1]]
    assert lines[0] == "Encoding of title, abstract and body as separate"
    assert lines[-1].endswith("turns it off)")
    room = 80 - len("│ --news.no-segments   ") - len("│ ")
    assert all(len(line) + 1 + len(after.split()[0]) > room for line, after in itertools.pairwise(lines))


def test_a_list_in_the_description_of_a_command_keeps_its_lines():
    page = describe_command("First line.\n\n    one  1\n    two  2\n\nTwo lines\nof text.")
    assert page.split("\n\n") == ["First line.", "    one  1\n    two  2", "Two lines of text."]


def test_no_library_is_pinned_to_one_version():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(library for extra in extras for library in extra)]
    assert len(wanted) > 10
    assert not [library for library in wanted if "==" in library.split(";")[0]]


def test_an_unknown_option_is_named_once(capsys):
    told = fails(capsys, "train", "store", "run", "--no-such-option", "3")
    assert told == "speedyfeed: unknown option --no-such-option; see speedyfeed train --help"


WRONG_WORDS = {
    "train": "STORE and RUN are missing",
    "train s": "RUN is missing",
    "train s r more": "found more, expected no further argument",
    "train s r --steps many": "--steps many: expected a whole number",
    "train s r --steps=many": "--steps many: expected a whole number",
    "train s r --lr x --json": "--lr x: expected a number",
    "train s r --init foo": "--init foo: expected means or random",
    "train s r --schedule": "--schedule: found no value, expected one",
    "train s r --stepz 3": "unknown option --stepz, perhaps --steps is meant",
    "train --lrr 3 s r": "unknown option --lrr, perhaps --lr is meant",
    "train s r --news.dim -1": "--news.dim -1: expected a number from 0 to 65536",
    "train s r --news.frozen-gigabytes=-1": "--news.frozen-gigabytes -1.0: expected a number from 0 to 1000000000",
    "recommend r --k 0": "--k 0: expected a number from 1 to 1000000000",
    "recommend r -k 3": "unknown option -k, perhaps --k is meant",
    "train s r --cache.gradients": "unknown option --cache.gradients, perhaps --cache.no-gradients is meant",
    "sweep s o --seeds 1 x": "--seeds 1 x: expected a whole number, one or more",
    "train s r --lr -1": "--lr -1.0: expected a number from 0 to 10",
    "train s r --words.glove g --words.vectors minilm": (
        "--words.glove and --words.vectors: words start from one of both; leave one out"
    ),
    "completion fish": "SHELL fish: expected bash or zsh",
    "doctor extra": "found extra, expected no further argument",
}


@pytest.mark.parametrize("typed", WRONG_WORDS)
def test_wrong_words_are_answered_with_option_value_and_what_is_expected(typed, capsys):
    command = typed.split()[0]
    line = fails(capsys, *typed.split())
    assert line == f"speedyfeed: {WRONG_WORDS[typed]}; see speedyfeed {command} --help"


@pytest.mark.parametrize("columns", [20, 250])
def test_options_are_known_on_narrow_and_wide_terminals(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert "--seed x: expected a whole number" in fails(capsys, "train", "s", "r", "--seed", "x")
    assert "unknown option --stepz, perhaps --steps" in fails(capsys, "train", "s", "r", "--stepz", "3")


def test_a_message_of_the_parser_that_is_not_known_is_shown_as_it_is():
    assert explain("╭─ New ─╮\n│ something else │", [], "speedyfeed train") == "New something else"


def test_seconds_of_the_doctor_are_checked(capsys):
    assert "seconds nan: expected a number from 0 to 3600" in fails(capsys, "doctor", "--seconds", "nan")


WRONG_PATHS = {
    "check {nope}": "neither a store nor a run nor a saved recommender; check the path",
    "export {nope} {out} --embeddings": "no such folder, and no such model on the Hub",
    "export {nope} {logs}/train/news.tsv --embeddings": "already exists",
    "export {nope} {logs}/train/news.tsv/below/out --embeddings": "news.tsv: is a file, expected a folder",
    "evaluate {nope} --per-impression {logs}/train/news.tsv/out": "news.tsv: is a file, expected a folder",
    "train {store} {logs}/train/news.tsv/out": "news.tsv: is a file, expected a folder",
    "train {store} {out} --precision fp64": "no precision 'fp64': choose auto, fp32, bf16, fp16",
    "export {nope} {out}": "found nothing to export, expected --embeddings",
    "prepare {logs} {out} --like {nope}": "not a store",
    "prepare {logs} {out} --validation 0.9": "validation 0.9: expected a number from 0 to 0.5",
    "train {nope} {out}": "not a store",
    "train {store} {out} --from {nope}": "no such folder, and no such model on the Hub",
    "train {store} {out} --from {logs}": "holds no recommender (recommender.json)",
    "train {store} {out} --resume": "no run here",
    "profile {nope}": "not a store",
    "sweep {nope} {out}": "not a store",
    "evaluate {nope}": "no such folder, and no such model on the Hub",
    "compare {nope} {nope}": "no such folder, and no such model on the Hub",
    "recommend {nope}": "no such folder, and no such model on the Hub",
    "rank {nope} {logs} {out}": "no such folder, and no such model on the Hub",
    "rank --check {nope}": "nope",
    "serve {nope}": "no such folder",
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    write_mind_split(folder / "logs" / "train", LOGGED, TRAIN)
    main(["prepare", str(folder / "logs"), str(folder / "store"), "--validation", "0"])
    return {"logs": folder / "logs", "store": folder / "store", "nope": folder / "nope" / "nope" / "nope"}


@pytest.mark.parametrize("typed", WRONG_PATHS)
def test_wrong_paths_are_one_line_and_nothing_is_written(typed, paths, tmp_path, capsys):
    words = typed.format(**paths, out=tmp_path / "out").split()
    assert WRONG_PATHS[typed] in fails(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_a_folder_is_said_to_be_one(tmp_path):
    (tmp_path / "file").touch()
    for make in ((tmp_path / "file").mkdir, (tmp_path / "file" / "below").mkdir):
        with pytest.raises(OSError, match="file") as error:
            make()
        assert main_module._system_message(error.value).endswith("expected a folder; give another path")


def test_a_full_disk_is_named_by_what_the_command_writes(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    told = main_module._system_message(full, SimpleNamespace(out=tmp_path))
    assert told.startswith(f"{tmp_path}: cannot be written (No space left on device); make room")


def test_commands_to_copy_quote_their_paths(tmp_path, capsys):
    missing = tmp_path / "my store"
    assert f"speedyfeed prepare LOGS '{missing}'" in fails(capsys, "train", missing, tmp_path / "run")


def test_help_lists_every_command(capsys):
    main([])
    told = capsys.readouterr().out
    assert all(command in told for command in COMMANDS)


def test_json_is_all_that_is_printed(mind_logs, tmp_path, capsys):
    main(["prepare", str(mind_logs), str(tmp_path / "store"), "--json"])
    assert set(json.loads(capsys.readouterr().out)) >= {"read", "kept", "dropped"}


def test_the_summary_names_the_format_and_what_was_dropped(mind_logs, tmp_path, capsys):
    command = ["prepare", str(mind_logs), str(tmp_path / "store"), "--validation", "0"]
    main(command)
    told = capsys.readouterr().out
    assert "format mind" in told
    assert "2 without text (40.0%)" in told
    main(command)
    assert "is up to date" in capsys.readouterr().out


def test_unknown_words_on_the_command_line(capsys, tmp_path):
    assert "unknown command 'prepair'" in fails(capsys, "prepair")
    assert "--colour" in fails(capsys, "prepare", tmp_path, tmp_path / "store", "--colour")
    assert "logs" in fails(capsys, "prepare").lower()
    assert "--segment-tokens" in fails(capsys, "prepare", tmp_path, tmp_path / "store", "--segment-tokens", "many")


BEHAVIORS, NEWS = "train/behaviors.tsv", "train/news.tsv"
MISTAKES = {
    "wrong number of columns": (
        BEHAVIORS,
        lambda text: text.replace("\tU3\t", " U3\t"),
        "behaviors.tsv:4: found 4 columns",
    ),
    "unreadable date": (
        BEHAVIORS,
        lambda text: text.replace("11/12/2019 12", "2019-13-40 12"),
        "behaviors.tsv:3: ",
    ),
    "label other than 0 or 1": (BEHAVIORS, lambda text: text.replace("N3-0", "N3-2"), "behaviors.tsv:1: "),
    "empty file": (BEHAVIORS, lambda text: "", "behaviors.tsv"),
    "empty news file": (NEWS, lambda text: "", "news.tsv"),
    "no user left": (BEHAVIORS, lambda text: text.replace("N", "Z"), "no user left"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_log_is_one_line_and_nothing_written(mistake, mind_logs, tmp_path, capsys):
    name, edit, expected = MISTAKES[mistake]
    file = mind_logs / name
    before = file.read_text("utf-8")
    file.write_text(edit(before), encoding="utf-8")
    assert file.read_text("utf-8") != before
    line = fails(capsys, "prepare", mind_logs, tmp_path / "out" / "store")
    assert expected in line
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_text_that_is_not_utf8(mind_logs, tmp_path, capsys):
    file = mind_logs / NEWS
    file.write_bytes(file.read_bytes().replace("Ærlig".encode(), b"\xc6rlig"))
    assert "news.tsv:3: " in fails(capsys, "prepare", mind_logs, tmp_path / "store")


def test_a_missing_folder_and_an_unknown_format(mind_logs, tmp_path, capsys):
    assert "no such folder" in fails(capsys, "prepare", tmp_path / "nowhere", tmp_path / "store")
    assert "'xml'" in fails(capsys, "prepare", mind_logs, tmp_path / "store", "--format", "xml")
    assert "no known format" in fails(capsys, "prepare", tmp_path, tmp_path / "store")


def test_a_log_without_train_cannot_be_prepared(mind_logs, tmp_path, capsys):
    assert "expected a train split" in fails(capsys, "prepare", mind_logs / "dev", tmp_path / "store")


def test_a_reader_that_has_seen_enough_ends_the_command_quietly():
    code = "import sys; from speedyfeed.cli.main import main; sys.stdout.reconfigure(write_through=True); main()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_an_interrupt_while_modules_are_imported_is_one_line(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("speedyfeed.cli.main.importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["prepare"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "speedyfeed: stopped\n"


def test_a_sweep_that_was_asked_to_end_exits_with_143(monkeypatch, capsys, tmp_path):
    def stopped(*_, **__):
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr("speedyfeed.cli.sweep.run", stopped)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(tmp_path), str(tmp_path)])
    assert stop.value.code == 143
    assert capsys.readouterr().err == "speedyfeed: stopped\n"


def test_help_and_wrong_options_load_no_heavy_library():
    code = """
import contextlib, io, sys
from speedyfeed.cli.help_texts import describe_command
from speedyfeed.cli.main import COMMANDS, main
for command in COMMANDS:
    for option in ("--help", "--no-such-option"):
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main([command, option])
print([name for name in ("torch", "transformers", "ibis", "duckdb", "usearch", "fastapi") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
