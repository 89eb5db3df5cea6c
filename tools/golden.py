"""Golden record of behaviour: what the commands compute, as checksums that a refactoring must not change.

    python tools/golden.py record golden.json      before the change
    python tools/golden.py check golden.json       after it; exits 1, names what differs, writes golden.found.json

It runs the installed commands as a user would, in a temporary folder: the small newsroom is prepared, `tiny` is
trained for 60 steps with a kill in between, `nrms` for 60 steps, `tiny` on two ranks for 20; the first run is
evaluated, by exact search, since two builds of an HNSW graph differ in a few edges, and served. Names of files,
tensors and JSON keys may change, values may not: each part is compared as a sorted list of hashes of its values.
Floating-point results depend on the processor, so record and check on the same machine; every command runs on one
thread.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
VOLATILE = {"seconds", "time", "model", "version", "path", "fingerprint", "published", "detail"}
"""JSON keys whose values differ between two runs of the same code, or are messages."""


def record(folder: Path) -> dict[str, list[str]]:
    """Run everything below `folder`; part -> sorted hashes."""
    logs, store = folder / "logs", folder / "store"
    run("speedyfeed", "synth", logs, "--shape", "small", "--seed", "0")
    run("speedyfeed", "prepare", logs, store)
    tiny, nrms, ranks = folder / "tiny", folder / "nrms", folder / "ranks"
    options = ("--device", "cpu", "--precision", "fp32")
    train_with_a_kill(store, tiny, "--recipe", "tiny", "--steps", "60", "--checkpoint-every", "20", *options)
    run("speedyfeed", "train", store, nrms, "--recipe", "nrms", "--steps", "60", "--validations", "2", *options)
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "speedyfeed")
    run(*torchrun, "train", store, ranks, "--recipe", "tiny", "--steps", "20", "--validations", "1", *options)
    return {
        "store": sorted(hash_file(file) for file in store.rglob("*") if is_array(file)),
        "weights of tiny, killed once": sorted(hash_tensors(tiny)),
        "weights of nrms": sorted(hash_tensors(nrms)),
        "weights of two ranks": sorted(hash_tensors(ranks)),
        "evaluate": sorted(leaves(json.loads(run("speedyfeed", "evaluate", tiny, "--exact", "--json")))),
        "service": sorted(ask_service(tiny)),
    }


def run(program: str, *arguments: object) -> str:
    """What a command prints; a failure ends everything, with its own words."""
    command = [str(BIN / program), *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def train_with_a_kill(store: Path, folder: Path, *options: str) -> None:
    """Train, kill -9 once the second checkpoint is there, resume."""
    command = [str(BIN / "speedyfeed"), "train", str(store), str(folder), *options]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "checkpoints" / "step-00000040").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run("speedyfeed", "train", store, folder, "--resume", "--recipe", "tiny")


def is_array(file: Path) -> bool:
    """Whether a file of a store holds data, not names of data."""
    return file.is_file() and file.suffix == ".npy"


def hash_file(file: Path) -> str:
    """Checksum of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def hash_tensors(folder: Path) -> Iterator[str]:
    """Checksum of every tensor of a finished run's model and of its last checkpoint."""
    from safetensors.numpy import load_file

    files = [folder / "model" / "model.safetensors", folder / "model" / "news.safetensors"]
    files += sorted((folder / "checkpoints").glob("step-*"))[-1].rglob("*.safetensors")
    for file in files:
        for value in load_file(file).values():
            yield f"{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"


def leaves(value: Any, key: str = "") -> Iterator[str]:
    """Every number and text of a JSON value."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in VOLATILE:
                yield from leaves(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part, key)
    else:
        yield repr(value)


def ask_service(folder: Path) -> Iterator[str]:
    """Answers to twenty fixed requests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(BIN / "speedyfeed"), "serve", str(folder), "--port", str(port), "--precision", "fp32"]
    service = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        while ask(port, "GET", "/readyz")[0] != 200:
            assert service.poll() is None, "the service ended"
            time.sleep(0.2)
        for number, (method, path, body) in enumerate(REQUESTS):
            status, answer = ask(port, method, path, body)
            yield f"{number} {status}"
            yield from (f"{number} {leaf}" for leaf in leaves(answer))
    finally:
        service.terminate()
        service.wait()


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of one request; status 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


STORY = {
    "news_id": "X1",
    "title": "Late goal wins the cup",
    "abstract": "The cup goes north.",
    "category": "sports",
}
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/recommend", {"history": [], "k": 5}),
    ("POST", "/v1/recommend", {"history": ["N1"], "k": 5}),
    ("POST", "/v1/recommend", {"history": ["N1", "N2", "N3"], "k": 20}),
    ("POST", "/v1/recommend", {"history": ["N10", "N20", "N30", "N40"], "k": 3}),
    ("POST", "/v1/recommend", {"history": [{"title": "Late goal wins the cup"}], "k": 5}),
    ("POST", "/v1/recommend", {"history": ["N5", {"title": "Shares fall"}], "k": 5}),
    ("POST", "/v1/recommend", {"history": ["no such id"], "k": 5}),
    ("POST", "/v1/recommend", {"history": ["N7"], "k": 0}),
    ("GET", "/v1/news/N1", None),
    ("GET", "/v1/news/N2", None),
    ("GET", "/v1/news/nowhere", None),
    ("GET", "/v1/news/N1/similar?k=5", None),
    ("GET", "/v1/news/N9/similar?k=3", None),
    ("GET", "/v1/map?limit=20", None),
    ("GET", "/v1/about", None),
    ("POST", "/v1/news", {"news": [STORY]}),
    ("GET", "/v1/news/X1", None),
    ("POST", "/v1/recommend", {"history": ["X1"], "k": 5}),
    ("DELETE", "/v1/news/X1", None),
    ("GET", "/v1/news/X1", None),
]


def main(command: str, file: Path) -> None:
    """Record into a file, or check against one."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        found = record(Path(folder))
    if command == "record":
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    file.with_suffix(".found.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    expected = json.loads(file.read_text("utf-8"))
    for part, values in expected.items():
        missing = len(values) - len(set(values) & set(found[part]))
        same = "same" if values == found[part] else f"DIFFERS: {missing} of {len(values)} values are not there"
        print(f"{part:30} {same}")
    sys.exit(expected != found)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "check"):
        sys.exit("usage: python tools/golden.py record|check FILE.json")
    main(sys.argv[1], Path(sys.argv[2]))
