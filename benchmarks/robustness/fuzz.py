"""Fuzzing of all log readers: files of small logs are mutated at random and read.

A reader must read a mutated log or refuse it with an `InputError`; anything else is a fault of ours.

Example: python -m benchmarks fuzz --files 10000 --json
"""

import json
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.robustness.sandbox import run_forked
from speedyfeed.data.readers import open_logs
from speedyfeed.data.tables import IMPRESSIONS, NEWS
from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges

log = logging.getLogger(__name__)

READ, REFUSED, FAULT = "read", "refused", "fault"
FILES_PER_PROCESS = 250
TIME = datetime(2026, 1, 31, 12)
_BEHAVIORS = "1\tU1\t11/11/2019 9:05:58 AM\tN1\tN2-1 N1-0\n2\tU2\t11/12/2019 1:00:00 PM\t\tN1-1 N2-0\n"
_NEWS = "N1\tsports\tgolf\tOne\tFirst.\t\t[]\t[]\nN2\tnews\tworld\tZwei\tÜber.\t\t[]\t[]\n"
_USERS = "U7#17#2019-11-11 09:05:58#N2#N1 N2\t18#2019-11-12 20:14:00##N1\nU8#19#2019-11-13 00:00:00#N1#\n"
_EVENT = {"userId": "cx:7", "time": 1483225200, "id": "a1", "title": "Snø", "category1": "nyheter|vær"}
_EVENTS = "".join(json.dumps(_EVENT | {"id": one}) + "\n" for one in ("a1", "a2", "a3"))
_CLICKS = "user_id,item_id,timestamp\n" + "".join(f"U{n % 3},N{n % 4},2026-01-{n + 1:02}\n" for n in range(20))
_ITEMS = 'item_id,title,category\nN1,"Snow, ice",weather\nN2,Cup,sport\nN3,Rain,weather\n'
_ROWS = {"impression_id": ["1"], "user_id": ["U1"], "time": [TIME], "clicked": [["N1"]], "skipped": [["N2"]]}
_SEEN = {"impression_id": [1], "user_id": [7], "impression_time": [TIME], "article_ids_inview": [[101, 102]]}
_ARTICLES = {"article_id": [101, 102], "title": ["A", "B"], "subtitle": ["", ""], "body": ["", "c"]}
_KINDS = {"category_str": ["sport", "news"], "subcategory": [[1], [2]]}

Sample = Mapping[str, str | Mapping[str, Any]]
"""Files of a log by name: text, or the columns of a Parquet file."""

SAMPLES: Mapping[str, Sample] = {
    "mind": {
        "train/news.tsv": _NEWS,
        "train/behaviors.tsv": _BEHAVIORS,
        "dev/news.tsv": _NEWS,
        "dev/behaviors.tsv": _BEHAVIORS,
    },
    "msnews": {
        "news.tsv": "N1\tsports\tgolf\tTitle\tAbstract\tA long body.\nN2\t\t\tTwo\t\t\n",
        "train/users.tsv": _USERS,
    },
    "speedyrec": {
        "DocFeatures.tsv": "N1\tsports\tgolf\tTitle\tAbstract\tBody\n",
        "traindata/ProtoBuf_1.tsv": "U7\tN3;N5&N1;N2|N4&|&N6\nU8\tN1&N2\n",
        "testdata/impressions/ProtoBuf_0.tsv": "U7\tN3;N5;N4\tN1\tN2;N9\nU8\t\tN2\tN1\n",
        "testdata/daily_recall/daily_news_1.tsv": "N1\tN2\n",
    },
    "adressa": {"20170101": _EVENTS, "20170102": _EVENTS},
    "interactions": {"items.csv": _ITEMS, "interactions.csv": _CLICKS},
    "parquet": {
        "train/news.parquet": {"news_id": ["N1", "N2"], "title": ["One", "Two"], "category": ["a", "b"]},
        "train/impressions.parquet": _ROWS | {"history": [["N2"]], "candidates": [["N2", "N1"]]},
    },
    "ebnerd": {
        "articles.parquet": _ARTICLES | _KINDS,
        "train/behaviors.parquet": _SEEN | {"article_ids_clicked": [[101]]},
        "train/history.parquet": {"user_id": [7], "article_id_fixed": [[102, 101]]},
    },
}

WORDS: tuple[bytes, ...] = (
    b"\t",
    b"\n",
    b"\r\n",
    b"\0",
    b'"',
    b"'",
    b",",
    b"#",
    b";",
    b"&",
    b"|",
    b"-",
    b"-1",
    b"-2",
    b"nan",
    b"null",
)
WORDS += (
    b"\t",
    b"1e999",
    b"9" * 40,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"{}",
    b"[]",
    b"\\",
    b"  ",
    "Ж".encode(),
    b"x" * 5000,
)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Change some bytes: flip, remove, repeat, insert, cut, or exchange lines."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 8, 64)))
        change = rng.randrange(6)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[at:end]
        elif change == 2:
            data[at:at] = data[at:end] * rng.choice((1, 2, 100))
        elif change == 3:
            data[at:end] = rng.choice(WORDS)
        elif change == 4 and rng.random() < 0.3:
            del data[at:]
        else:
            lines = bytes(data).split(b"\n")
            rng.shuffle(lines)
            data = bytearray(b"\n".join(lines))
    return bytes(data)


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzConfig:
    """How many files are mutated."""

    files: int = 10_000
    """Number of mutated files, over all formats in turn."""
    seed: int = 0
    """Seed of the mutations."""

    RANGES: ClassVar[Ranges] = {"files": (1, MANY), "seed": (0, MAX_SEED)}
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class FuzzFigures:
    counts: dict[str, dict[str, int]]
    """Number of files of each verdict, by format."""
    faults: list[str] = field(default_factory=list)
    """Format, number and error of each fault."""


def measure(config: FuzzConfig) -> FuzzFigures:
    """Read all mutated files, some hundreds per process, so that a crash loses no others."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in SAMPLES}
    faults = []
    for start in range(0, config.files, FILES_PER_PROCESS):
        numbers = range(start, min(config.files, start + FILES_PER_PROCESS))
        answer = run_forked(_printer(numbers, config.seed))
        lines = [json.loads(line) for line in answer.out.splitlines()]
        if answer.code:
            lines.append([_format(start + len(lines)), FAULT, f"{start + len(lines)}: exit {answer.code}"])
        for name, verdict, message in lines:
            counts[name][verdict] += 1
            if verdict == FAULT:
                faults.append(f"{name} {message}")
        figures = FuzzFigures(counts={name: dict(found) for name, found in counts.items()}, faults=faults)
        log.info("%d of %d files\n%s", numbers.stop, config.files, tables(figures))
    return figures


def _printer(numbers: range, seed: int) -> Callable[[], None]:
    def work() -> None:
        for number in numbers:
            print(json.dumps([_format(number), *try_file(number, seed)]), flush=True)

    return work


def _format(number: int) -> str:
    return list(SAMPLES)[number % len(SAMPLES)]


def try_file(number: int, seed: int) -> tuple[str, str]:
    """Verdict on one mutated file, and the message of its error."""
    name, rng = _format(number), random.Random(f"{seed}-{number}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch)
        write_sample(folder, SAMPLES[name])
        file = folder / rng.choice(sorted(SAMPLES[name]))
        file.write_bytes(mutate(file.read_bytes(), rng))
        try:
            read_all(folder, name)
        except InputError as error:
            return REFUSED, str(error)
        except Exception as error:
            return FAULT, f"{number}: {type(error).__name__}: {error}"
    return READ, ""


def write_sample(folder: Path, sample: Sample) -> None:
    """Write the files of a log."""
    for name, content in sample.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            pq.write_table(pa.table(dict(content)), path)


def read_all(folder: Path, format: str) -> int:
    """Read all articles and impressions of a log; return their number."""
    total = 0
    for split in open_logs(folder, format).splits:
        total += pa.Table.from_batches(split.news(), schema=NEWS).num_rows
        total += pa.Table.from_batches(split.impressions(), schema=IMPRESSIONS).num_rows
    return total


def tables(figures: FuzzFigures) -> str:
    """A row per format, then every fault."""
    verdicts = (READ, REFUSED, FAULT)
    counts = figures.counts.items()
    rows = [[name, *(str(found.get(verdict, 0)) for verdict in verdicts)] for name, found in counts]
    return "\n".join([table(["format", *verdicts], rows), *figures.faults])
