import errno
import os
import shutil
import subprocess
import sys

import pytest

from speedyfeed.errors import InputError
from speedyfeed.files import FolderLock, new_file, new_folder, read_json, remove_folder


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


@pytest.mark.parametrize("target", ["nothing", "link"])
def test_a_link_to_nothing_is_refused_before_work(tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(InputError, match="link: is a link to nothing"), new_folder(tmp_path / "link"):
        raise AssertionError("work began")


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


def test_a_lock_names_its_process_and_ends_with_it(tmp_path):
    code = "import sys, time; from pathlib import Path; from speedyfeed.files import FolderLock\n"
    code += "lock = FolderLock(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match=f"process {owner.pid} is writing it"):
            FolderLock(tmp_path)
        owner.kill()
    lock = FolderLock(tmp_path)
    with pytest.raises(InputError, match=f"process {os.getpid()} is"):
        FolderLock(tmp_path)
    lock.release()
    assert not list(tmp_path.iterdir())
    FolderLock(tmp_path).release()


def test_a_folder_that_another_process_made_meanwhile_is_left_alone(tmp_path):
    with pytest.raises(InputError, match="made: another process made it"), new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("mine")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "file").write_text("theirs")
    assert (tmp_path / "made" / "file").read_text() == "theirs"


@pytest.mark.parametrize("new", [new_folder, new_file])
@pytest.mark.parametrize("named", [True, False])
def test_an_error_names_the_path_that_the_user_knows(tmp_path, new, named):
    with pytest.raises(InputError) as error, new(tmp_path / "made") as partial:
        raise OSError(errno.ENOSPC, "full", str(partial / "sub")) if named else OSError(errno.ENOSPC, "full")
    assert str(error.value).startswith(f"{tmp_path / 'made'}: cannot be written (No space left on device); ")
    assert "partial" not in str(error.value)


def test_an_error_with_another_file_stays_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"input\.csv"), new_folder(tmp_path / "made"):
        open(tmp_path / "input.csv")  # noqa: SIM115


def test_a_file_is_not_written_onto_a_folder(tmp_path):
    with pytest.raises(InputError, match="is a folder; give the name of a file"), new_file(tmp_path):
        pass


def test_a_device_or_pipe_is_never_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no regular file"), new_file(tmp_path / "pipe") as partial:
        partial.touch()
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, '{"a":' * 100_000, "9" * 10_000])
def test_a_file_that_holds_no_json_is_named(tmp_path, text):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(InputError, match=r"file\.json: found no JSON"):
        read_json(tmp_path / "file.json")
