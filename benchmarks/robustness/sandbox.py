"""A small world to break things in: logs, a store and a finished run, and commands that run in forked processes.

A forked process has all libraries imported already, so that a command takes a fraction of a second.
"""

import ctypes
import gc
import importlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from speedyfeed.cli.main import COMMANDS, main
from speedyfeed.errors import InputError
from speedyfeed.serving import opening
from speedyfeed.serving.live_catalogue import GraphConfig

RIGHTS_OF_ROOT = 0b110
"""Capabilities CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root's right to read and write any file."""
CAPABILITIES_VERSION = 0x20080522
PROCESS_CLOCK = 2
"""Kind of clock that counts the processor time of a process; together with its id, the clock of that process."""
IMPORTED = (
    "ibis.backends.duckdb",
    "pandas",
    "speedyfeed.preparation.prepare",
    "speedyfeed.profile",
    "speedyfeed.run_evaluation",
    "speedyfeed.serving.app",
    "speedyfeed.serving.service",
    "speedyfeed.sweep.table",
    "speedyfeed.training.loop",
    "tensorboard.summary.writer.event_file_writer",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "usearch.index",
    "uvicorn",
    *(f"speedyfeed.cli.{name}" for name in COMMANDS),
)
"""Modules that commands import when they need them."""
LINKED_BYTES = 1 << 16
"""Size from which a file of a copy is a link to the original: nothing changes such files in place."""
ARTICLES = tuple(
    {"news_id": f"added-{number}", "title": f"Added article number {number}", "category": "added"}
    for number in range(20)
)
"""Articles that are added to a service."""
WRITES = (
    *(("/v1/news", {"news": [article]}) for article in ARTICLES),
    ("/v1/feedback", {"user": "U1", "actions": {"added-3": "click", "added-5": "click"}}),
    ("/v1/rules", {"kind": "boost", "category": "added", "weight": 2, "hours": 1000}),
)
"""Paths and bodies of requests that change what a service recommends."""
ACKNOWLEDGED = "acknowledged.txt"
"""File beside the data folder of a service: numbers of the writes it has acknowledged, one on each line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command printed, and how it ended."""

    code: int
    """Exit code; negative for a signal."""
    out: str
    errors: str
    seconds: float
    """Seconds of processor time."""

    @property
    def is_refusal(self) -> bool:
        """Whether it ended with exit code 2 and one line that says why, after whatever was reported before."""
        lines = self.errors.strip().splitlines()
        return self.code == 2 and bool(lines) and lines[-1].startswith("speedyfeed: ") and "Traceback" not in lines


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Folders of a small log, its store, an encoder, a finished run and what was added to it."""

    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def feed(self) -> Path:
        return self.folder / "feed"

    @property
    def encoder(self) -> Path:
        return self.folder / "encoder"

    @property
    def training(self) -> tuple[str, ...]:
        """Options of the smallest training run."""
        encoder = ("--encoder", str(self.encoder), "--news.dim", "16")
        return (
            "--recipe",
            "tiny",
            *encoder,
            "--precision",
            "fp32",
            "--checkpoint-every",
            "2",
            "--validations",
            "1",
        )


def make_world(folder: Path) -> World:
    """Make a log, a store, a run with two checkpoints, the index of its evaluation, and a feed with its graphs."""
    import_all()
    world = World(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    _require(run_forked(lambda: _make_encoder(world.encoder)))
    size = ("--users", "60", "--news", "80", "--days", "4")
    for arguments in (
        ("synth", world.logs, *size),
        ("prepare", world.logs, world.store),
        ("train", world.store, world.run, *world.training, "--steps", "4", "--lr", "0.01"),
        ("evaluate", world.run),
    ):
        _require(run_command(arguments))
    served = ["serve", str(world.run), "--data", str(world.feed), "--precision", "fp32"]
    _require(run_forked(lambda: ask_service(served, writes=WRITES, has_graphs=True)))
    (world.folder / ACKNOWLEDGED).unlink()
    return world


def import_all() -> None:
    """Import what commands need, so that forked processes need not."""
    for name in IMPORTED:
        importlib.import_module(name)


def run_command(arguments: Sequence[object]) -> Answer:
    """Run a `speedyfeed` command in a forked process."""
    return run_forked(lambda: main([str(part) for part in arguments]))


def ask_service(arguments: list[str], *, writes: Sequence[tuple[str, Any]] = (), has_graphs: bool = False) -> None:
    """Run a `serve` command on a free port, write, print what it recommends and its rules, and stop it.

    With `has_graphs`, its catalogue is taken for a large one, which is searched with graphs.
    """
    if has_graphs:
        vars(opening)["GraphConfig"] = partial(GraphConfig, graphs_from=1)
    port = free_port()
    acknowledged = Path(arguments[arguments.index("--data") + 1]).with_name(ACKNOWLEDGED)
    asking = threading.Thread(
        target=_ask_and_stop, args=(f"http://127.0.0.1:{port}", writes, acknowledged), daemon=True
    )
    asking.start()
    try:
        main([*arguments, "--port", str(port)])
    except SystemExit as stop:
        if stop.code != 128 + signal.SIGINT:  # stopped, as it was asked to
            raise


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _ask_and_stop(address: str, writes: Sequence[tuple[str, Any]], acknowledged: Path) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{address}/readyz", timeout=10).close()
            break
        except OSError:  # not yet
            time.sleep(0.02)
    for number, (path, body) in enumerate(writes):
        _request(address + path, body)
        with acknowledged.open("a") as file:
            file.write(f"{number}\n")
    print(json.dumps(_request(f"{address}/v1/recommend", {"history": [], "k": 100})["news"]))
    print(json.dumps(_request(f"{address}/v1/rules")))
    os.kill(os.getpid(), signal.SIGINT)


def _request(url: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def run_forked(
    work: Callable[[], None], *, obeys_permissions: bool = False, kill_after: float | None = None
) -> Answer:
    """Do some work in a forked process; with `obeys_permissions`, root too may not read what is forbidden.

    With `kill_after`, SIGKILL ends the process after so many seconds of processor time, its own and that of the
    processes it has started, so that a busy machine moves no moment.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _work(work, out.fileno(), errors.fileno(), obeys_permissions=obeys_permissions)
        code, seconds = _wait(pid, kill_after)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Answer(code=code, out=texts[0], errors=texts[1], seconds=seconds)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder; large files are linked."""

    def copy(old: str, new: str) -> None:
        (os.link if os.path.getsize(old) >= LINKED_BYTES else shutil.copyfile)(old, new)

    shutil.copytree(source, target, copy_function=copy)


def _wait(pid: int, kill_after: float | None) -> tuple[int, float]:
    """Exit code of a process, and its processor time in seconds."""
    while kill_after is not None:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if _processor_time(pid) >= kill_after:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _processor_time(pid: int) -> float:
    """Seconds of processor time of a process and of those it has started; 0 once it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return time.clock_gettime((~pid << 3) | PROCESS_CLOCK) + sum(map(_processor_time, map(int, children)))
    except OSError:
        return 0.0


def _work(work: Callable[[], None], out: int, errors: int, *, obeys_permissions: bool) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # what the parent holds is not this process's to close
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(out, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
        logging.root.handlers.clear()
        if obeys_permissions and os.geteuid() == 0:
            _give_up_rights()
        code = _exit_code(work)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _give_up_rights() -> None:
    """Let the permissions of files hold for this process, even if root runs it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities, twice 32 of them
    for call in (libc.capget, libc.capset):
        if call(header, sets):
            raise OSError(ctypes.get_errno(), "capabilities cannot be changed")
        sets[0] &= ~RIGHTS_OF_ROOT
        sets[1] &= ~RIGHTS_OF_ROOT


def _exit_code(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _require(answer: Answer) -> None:
    if answer.code:
        raise InputError(f"the world could not be made: {answer.errors.strip()}")


def _make_encoder(folder: Path) -> None:
    """Write an encoder of two narrow layers with the tokenizer of MiniLM, untrained."""
    import torch
    from transformers import BertConfig, BertModel

    from speedyfeed.tokenizers import load_tokenizer

    tokenizer = load_tokenizer("minilm")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
