"""Python processes that start in no time: forked from the one that tests, so that nothing is imported again."""

import gc
import io
import logging
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


class Popen:
    """A Python command like `[sys.executable, "-m", "speedyfeed", ...]`, called as `subprocess.Popen` is.

    Patches of the test hold in it. Standard output and error can be pipes, as text.
    """

    def __init__(
        self,
        command: Sequence[object],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        text: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        interpreter, *words = map(str, command)
        assert interpreter == sys.executable
        assert text
        self.returncode: int | None = None
        self.stdout, theirs_out = _stream(stdout)
        self.stderr, theirs_err = _stream(stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            for end, number in ((theirs_out, 1), (theirs_err, 2)):
                if end is not None:
                    os.dup2(end, number)
            _become(words, cwd, env, preexec_fn)
        for end in (theirs_out, theirs_err):
            if end is not None:
                os.close(end)

    def poll(self) -> int | None:
        """The exit code, or none while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """The exit code, once it has ended."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """All it said on its pipes, once it has ended."""
        with ThreadPoolExecutor(2) as pool:  # a full pipe would stop it
            said, errors = pool.map(lambda pipe: pipe.read() if pipe else "", (self.stdout, self.stderr))
        self.wait()
        return said, errors

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Popen":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def run(command: Sequence[object], **options: object) -> subprocess.CompletedProcess[str]:
    """What a command said, once it has ended; called as `subprocess.run` is."""
    with Popen(command, stdout=PIPE, stderr=PIPE, **options) as process:
        said, errors = process.communicate()
    return subprocess.CompletedProcess(list(command), process.wait(), said, errors)


def _stream(kind: int | None) -> tuple[IO[str] | None, int | None]:
    """Our end of what it writes, and its end."""
    if kind is None:
        return None, None
    if kind == DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    ours, theirs = os.pipe()
    return os.fdopen(ours, encoding="utf-8"), theirs


def _become(
    words: list[str], cwd: Path | None, env: Mapping[str, str] | None, preexec_fn: Callable[[], None] | None
) -> None:
    """Run what Python is told to, and end this process."""
    code = 1
    try:
        gc.freeze()  # what the test holds is not this process's to close
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding="utf-8", line_buffering=True)
            for number in (1, 2)
        )
        logging.root.handlers.clear()  # those of pytest
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if preexec_fn is not None:
            preexec_fn()
        code = _python(words)
    finally:
        os._exit(code)


def _python(words: list[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
