import os
import shutil
import subprocess
import sys

import pytest

from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, remove_folder


def test_a_folder_appears_whole(tmp_path):
    with new_folder(tmp_path / "deep" / "made") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("text")
        assert not (tmp_path / "deep" / "made").exists()
    assert (tmp_path / "deep" / "made" / "sub" / "file").read_text() == "text"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["made"]


def test_nothing_is_left_after_an_error(tmp_path):
    with pytest.raises(RuntimeError), new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="already exists"), new_folder(tmp_path):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_killed_process_left_is_removed_but_not_what_a_running_one_writes(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f".made.partial-{gone.pid}").mkdir()
    alive = tmp_path / f".made.partial-{os.getppid()}"
    alive.mkdir()
    with new_folder(tmp_path / "made"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"made", alive.name}


def test_a_folder_is_never_half_removed(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before anything is gone
        remove_folder(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".removed-one", "two"]
    remove_folder(tmp_path / "two")
    assert list(tmp_path.iterdir()) == []
