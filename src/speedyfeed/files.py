"""Files that can be relied on: written atomically, removed atomically, owned by one process at a time."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from speedyfeed.errors import InputError, UnwritableError

if sys.platform != "win32":
    import fcntl


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `path` when the block succeeds.

    After an exception or a kill, `path` does not exist; leftovers of a killed process are removed by the next one
    that makes the same folder.
    """
    require_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.partial-*"):
        if not _is_running(leftover.name.rpartition("-")[2]):
            shutil.rmtree(leftover, ignore_errors=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        yield partial
        for file in partial.rglob("*"):
            _sync(file)
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except SafetensorError as error:  # how its writer reports a full disk
        raise UnwritableError(path, error) from error
    except OSError as error:
        raise _explain(error, partial, path) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: it is hidden by a rename first, so that no reader finds half of it.

    What a killed process left hidden is removed by the next call in the same parent folder.
    """
    for leftover in path.parent.glob(".removed-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    hidden = path.with_name(f".removed-{path.name}")
    path.replace(hidden)
    shutil.rmtree(hidden)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block succeeds."""
    require_new_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except SafetensorError as error:
        raise UnwritableError(path, error) from error
    except OSError as error:
        raise _explain(error, partial, path) from error
    finally:
        partial.unlink(missing_ok=True)


class FolderLock:
    """Exclusive ownership of a folder by one process, as long as that lives; Windows has no such locks.

    The system releases the lock when the process ends, however it ends. The file `.lock` holds the process id.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock; an error names the process that holds it."""
        self._path = folder / ".lock"
        if sys.platform == "win32":
            return
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.read(self._file, 20).decode("ascii", "replace").strip() or "unknown"
                os.close(self._file)
                raise InputError(
                    f"{folder}: process {owner} is writing it; wait until it ends, or stop it first"
                ) from error
            if self._is_current():
                break
            os.close(self._file)  # its owner removed the file meanwhile: take the lock of the new one
        os.truncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode("ascii"))

    def release(self) -> None:
        """Give the folder free, and remove the file unless the folder is gone."""
        if sys.platform != "win32":
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False


def read_json(path: Path) -> Any:
    """The value in a JSON file; an error names a file that holds none."""
    try:
        return parse_json(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: found no JSON ({error}), expected a value; put it back from a copy") from error


def parse_json(text: str) -> Any:
    """The value of a JSON text; ValueError also for one that is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON; equal values give equal bytes."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def require_new_folder(path: Path) -> None:
    """Refuse a path where no folder can be made: because of what is there, or of what is above it."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: already exists; give another path or remove it first")
    if path.is_symlink() and not path.exists():
        raise InputError(f"{path}: is a link to nothing; remove it, or give another path")
    _require_writable_above(path)


def require_new_file(path: Path) -> None:
    """Refuse a path where no file can be written: a folder, or a path below what is no folder."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file in it, such as {path / 'result'}")
    if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced by a file
        raise InputError(f"{path}: is no regular file; give the name of a new one")
    _require_writable_above(path)


def _require_writable_above(path: Path) -> None:
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir():
        raise InputError(f"{above}: is a file, expected a folder; give another path than {path}")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UnwritableError(path, os.strerror(errno.EACCES))


def _explain(error: OSError, partial: Path, path: Path) -> Exception:
    """The error for the path that the user knows, where it concerns the temporary one."""
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path.exists():
        return InputError(f"{path}: another process made it meanwhile; run the command again to use it")
    is_ours = partial.name in f"{error.filename} {error.filename2} {error}"
    if is_ours or (error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)):
        reason = os.strerror(error.errno) if error.errno else str(error).replace(partial.name, path.name)
        return UnwritableError(path, reason)
    return error


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    """Make a file or folder survive a power cut; folders cannot be opened for that on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
