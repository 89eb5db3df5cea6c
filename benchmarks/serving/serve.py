"""Latency of the HTTP service at a steady rate of recommendations, alone and while articles are ingested.

The real service runs in a process of its own, with MiniLM and a catalogue whose embeddings are drawn around
topics; only ingested texts are encoded. Requests are sent on schedule, whether or not earlier ones were answered,
and latency counts from the scheduled moment, so that a stall of the service is not hidden.

Example: python -m benchmarks serve --rate 100 --json
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.config import RecommenderConfig
from speedyfeed.pretrained import Recommender
from speedyfeed.synthetic import SynthConfig, synthesize

TOPICS = 20
CONNECTIONS = 32
WRITERS = 2
INGEST_BATCH = 32
HISTORY = 20
TIMER_SECONDS = 1e-3
"""Allowance for a late timer of the event loop, so that a request is sent when it is due."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeBenchmarkConfig:
    """Size of the catalogue, and the load."""

    news: int = 100_000
    """Articles in the catalogue when the service starts."""
    rate: float = 100.0
    """Recommendation requests sent per second."""
    seconds: float = 20.0
    """Seconds of each part: alone, and while ingesting."""
    seed: int = 0
    """Seed of the embeddings and the histories."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Latencies of the requests of one part."""

    count: int
    errors: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeFigures:
    """Start-up, latencies and ingestion of the service."""

    news: int
    start_seconds: float
    """Seconds until the service was ready, with the index to build."""
    restart_seconds: float
    """Seconds until the service was ready again, with the index stored by the first start."""
    recommend: Times
    recommend_while_ingesting: Times
    ingested: int
    ingest_per_second: float
    """Articles acknowledged per second, while recommendations were requested."""


def measure(config: ServeBenchmarkConfig) -> ServeFigures:
    """Start the service, load it, restart it."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        _save_run(run, config)
        texts = _texts(Path(scratch) / "newsroom")
        with _Served(run) as served:
            start_seconds = served.seconds
            alone, busy, ingested, seconds = asyncio.run(_load(served.port, texts, config))
        with _Served(run) as served:
            restart_seconds = served.seconds
    return ServeFigures(
        news=config.news,
        start_seconds=start_seconds,
        restart_seconds=restart_seconds,
        recommend=alone,
        recommend_while_ingesting=busy,
        ingested=ingested,
        ingest_per_second=ingested / seconds,
    )


async def _load(
    port: int, texts: list[dict[str, str]], config: ServeBenchmarkConfig
) -> tuple[Times, Times, int, float]:
    """Latencies alone and while ingesting; the number of ingested articles, and the seconds that took."""
    clients = asyncio.Queue[_Client]()
    for _ in range(CONNECTIONS):
        clients.put_nowait(await _Client.connect(port))
    draws = np.random.default_rng(config.seed)

    async def recommend() -> bool:
        history = [f"N{number}" for number in draws.integers(config.news, size=HISTORY)]
        client = await clients.get()
        try:
            return await client.post("/v1/recommend", {"history": history, "k": 20}) == 200
        finally:
            clients.put_nowait(client)

    for _ in range(50):  # warm up
        await recommend()
    alone = await _at_rate(recommend, config)
    done = asyncio.Event()
    ingesting = asyncio.gather(*(_ingest(port, f"writer-{number}", texts, done) for number in range(WRITERS)))
    start = time.perf_counter()
    busy = await _at_rate(recommend, config)
    done.set()
    ingested = sum(await ingesting)
    return alone, busy, ingested, time.perf_counter() - start


async def _at_rate(request: Callable[[], Awaitable[bool]], config: ServeBenchmarkConfig) -> Times:
    """Send requests on schedule and wait for all answers."""
    count = int(config.rate * config.seconds)
    begin = time.perf_counter() + 0.1

    async def one(number: int) -> tuple[bool, float]:
        due = begin + number / config.rate
        await asyncio.sleep(due - time.perf_counter() - TIMER_SECONDS)
        while time.perf_counter() < due:
            await asyncio.sleep(0)
        try:
            is_right = await request()
        except (OSError, ValueError, asyncio.IncompleteReadError):
            is_right = False
        return is_right, time.perf_counter() - due

    results = await asyncio.gather(*(one(number) for number in range(count)))
    milliseconds = 1e3 * np.array([seconds for _, seconds in results])
    return Times(
        count=count,
        errors=sum(not is_right for is_right, _ in results),
        p50_ms=float(np.quantile(milliseconds, 0.5)),
        p99_ms=float(np.quantile(milliseconds, 0.99)),
        max_ms=float(milliseconds.max()),
    )


async def _ingest(port: int, name: str, texts: list[dict[str, str]], done: asyncio.Event) -> int:
    """Add articles in batches as one of several writers, and return how many were acknowledged."""
    client = await _Client.connect(port)
    added = 0
    while not done.is_set():
        batch = [texts[(added + number) % len(texts)] for number in range(INGEST_BATCH)]
        named = [one | {"news_id": f"{name}-{added + number}"} for number, one in enumerate(batch)]
        status = await client.post("/v1/news", {"news": named})
        if status == 503:  # too busy, as on a machine that others use as well: try again
            client = await _Client.connect(port)
            continue
        if status != 201:
            raise InputError(f"the service answered {status} to new articles, expected 201; see above")
        added += len(named)
    return added


class _Client:
    """A persistent connection with a minimal HTTP client, which costs little beside the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> "_Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: object) -> int:
        """Send a request and return the status once the whole answer has arrived."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        headers = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in headers if line.startswith("content-length:"))
        await self._reader.readexactly(length)
        return int(headers[0].split()[1])


class _Served:
    """The service in a process of its own; entering the block waits until it is ready."""

    def __init__(self, run: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._run = run
        self.seconds = 0.0

    def __enter__(self) -> "_Served":
        start = time.perf_counter()
        environment = {name: value for name, value in os.environ.items() if name != "SPEEDYFEED_TOKEN"}
        command = [sys.executable, "-m", "speedyfeed", "serve", str(self._run), "--port", str(self.port)]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while not self._is_ready():
            if self._process.poll() is not None:
                raise InputError("the service ended before it was ready; see its messages above")
            time.sleep(0.1)
        self.seconds = time.perf_counter() - start
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except OSError:
            return False


def _save_run(folder: Path, config: ServeBenchmarkConfig) -> None:
    """Save an untrained MiniLM recommender with embeddings of unit norm drawn around topics."""
    model = Recommender(RecommenderConfig()).eval()
    generator = torch.Generator().manual_seed(config.seed)
    topics = torch.randn(TOPICS, model.news.dim, generator=generator)
    topic_V = torch.randint(TOPICS, (config.news,), generator=generator)
    noise_VD = torch.randn(config.news, model.news.dim, generator=generator)
    names = [f"topic {topic}" for topic in range(TOPICS)]
    model.catalogue = Catalogue(
        news_ids=[f"N{number}" for number in range(config.news)],
        titles=[f"News number {number} of the morning edition" for number in range(config.news)],
        categories=[names[topic] for topic in topic_V.tolist()],
        embeddings_VD=torch.nn.functional.normalize(topics[topic_V] + noise_VD, dim=1),
    )
    model.save_pretrained(folder / "model")


def _texts(folder: Path) -> list[dict[str, str]]:
    """Titles and abstracts of a synthetic newsroom, to be ingested."""
    synthesize(folder, SynthConfig(users=50, news=2000, days=3))
    rows = [line.split("\t") for line in (folder / "train" / "news.tsv").read_text("utf-8").splitlines()]
    return [{"category": row[1], "title": row[3], "abstract": row[4]} for row in rows]


def tables(figures: ServeFigures) -> str:
    """Start-up and ingestion in a sentence, and a row of latencies per part."""
    parts = {"alone": figures.recommend, "while ingesting": figures.recommend_while_ingesting}
    return "\n\n".join(
        [
            f"{figures.news:,} articles; ready after {figures.start_seconds:.1f} s, restarted after "
            f"{figures.restart_seconds:.1f} s; {figures.ingested:,} articles ingested, "
            f"{figures.ingest_per_second:.0f} per second.",
            table(
                ["recommend", "requests", "errors", "p50 ms", "p99 ms", "max ms"],
                [
                    [
                        name,
                        f"{times.count:,}",
                        str(times.errors),
                        f"{times.p50_ms:.1f}",
                        f"{times.p99_ms:.1f}",
                        f"{times.max_ms:.0f}",
                    ]
                    for name, times in parts.items()
                ],
            ),
        ]
    )
