"""Parts of a store: cut where a key ends, written by workers, joined to what one process writes."""

import filecmp
import json
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.errors import InputError
from speedyfeed.preparation import parts
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.progress import silent
from speedyfeed.ragged import RaggedWriter, open_ragged
from tests import forked


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch):
    monkeypatch.setattr(parts.subprocess, "Popen", forked.Popen)


@pytest.mark.parametrize("keys", [[], [1], [1, 1, 1, 1, 1], [1, 1, 2, 3, 3, 3, 3, 4, 5, 6, 6], list(range(20))])
@pytest.mark.parametrize("is_folder", [False, True])
def test_no_key_is_in_two_parts_and_all_rows_are_in_one(tmp_path, monkeypatch, keys, is_folder):
    monkeypatch.setattr(parts, "PART_ROWS", 3)
    table = pa.table({"key": pa.array(keys, pa.int64()), "row": pa.array(range(len(keys)), pa.int64())})
    path = tmp_path / "rows.parquet"
    if is_folder:  # as Spark writes it
        path.mkdir()
        for number, first in enumerate(range(0, max(len(keys), 1), 4)):
            pq.write_table(table[first : first + 4], path / f"part-{number}", row_group_size=2)
    else:
        pq.write_table(table, path, row_group_size=2)
    ranges = parts.cut(path, "key")
    read = [[row for batch in one.read(batch_rows=2) for row in batch["row"].to_pylist()] for one in ranges]
    assert [row for one in read for row in one] == list(range(len(keys)))
    found = [{keys[row] for row in one} for one in read]
    assert sum(map(len, found)) == len(set(keys))
    if len(keys) > 3 * keys.count(max(keys, default=0)):
        assert len(ranges) > 1
    assert parts.first_keys(ranges[1:], "key") == [keys[one[0]] for one in read[1:]]


def test_joined_parts_are_what_one_writer_writes(tmp_path):
    rows = [[1, 2], [], [3], [4, 5, 6], []]
    for name, some in (("a", rows[:2]), ("b", []), ("c", rows[2:]), ("all", rows)):
        (tmp_path / name).mkdir()
        with RaggedWriter(tmp_path / name, "x", np.int32) as writer:
            values = np.array([value for row in some for value in row], np.int32)
            writer.append(values, np.array([len(row) for row in some], np.int64))
    folders = [tmp_path / name for name in "abc"]
    (tmp_path / "joined").mkdir()
    parts.join_values(folders, tmp_path / "joined", "x.values", np.int32)
    parts.join_offsets(folders, tmp_path / "joined", "x.offsets")
    for name in ("x.values.npy", "x.offsets.npy"):
        assert (tmp_path / "joined" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    assert [row.tolist() for row in open_ragged(tmp_path / "joined", "x")] == rows


def write_after_kills(folder, *, number, kills, tries):
    """A part whose worker is killed some times before it is done."""
    count = len(os.listdir(tries))
    (folder / "half").write_text("half")
    if number == 1 and count < kills:
        open(os.path.join(tries, str(count)), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": number, "pid": os.getpid()}


def test_the_part_of_a_killed_worker_is_made_again_and_no_other(tmp_path):
    (tmp_path / "tries").mkdir()
    jobs = [{"number": number, "kills": 2, "tries": str(tmp_path / "tries")} for number in range(4)]
    folders = parts.write_parts(write_after_kills, jobs, tmp_path / "parts", silent, "write", workers=2)
    assert [facts["number"] for facts in parts.load_facts(folders)] == [0, 1, 2, 3]
    assert len({facts["pid"] for facts in parts.load_facts(folders)} - {os.getpid()}) == 4
    assert len(os.listdir(tmp_path / "tries")) == 2
    with pytest.raises(InputError, match=r"part-00001: its worker was killed 3 times, the last time by signal 9"):
        parts.write_parts(
            write_after_kills,
            [job | {"kills": 99} for job in jobs],
            tmp_path / "again",
            silent,
            "write",
            workers=2,
        )


def write_badly(folder, *, kind):
    if kind == "input":
        raise InputError("logs/news.tsv: found nothing")
    raise RuntimeError("a mistake of ours")


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [("input", InputError, "logs/news.tsv: found nothing"), ("bug", RuntimeError, "failed with exit code 1")],
)
def test_errors_of_workers_are_raised(tmp_path, kind, error, message):
    with pytest.raises(error, match=message):
        parts.write_parts(write_badly, [{"kind": kind}] * 2, tmp_path / "parts", silent, "write", workers=2)


@pytest.mark.parametrize("refine", ["bm25", "long", "none"])
def test_a_store_has_the_same_bytes_whatever_the_number_of_parts_and_workers(
    mind_logs, tmp_path, monkeypatch, refine
):
    config = PrepareConfig(validation=0, refine=refine)
    one = prepare(mind_logs, tmp_path / "one", config).store
    monkeypatch.setattr(parts, "PART_ROWS", 2)
    monkeypatch.setattr("speedyfeed.preparation.news_parts.ROWS_PER_TEXT", 1)
    stages = {}
    for workers in (1, 3) if refine == "bm25" else (1,):
        many = prepare(
            mind_logs,
            tmp_path / f"many-{workers}",
            config,
            EngineConfig(workers=workers),
            lambda stage, done, total, note="": stages.__setitem__(stage, total),
        ).store
        assert min(stages[stage] for stage in ("tokenize", "join negatives", "join timelines")) > 1
        names = sorted(one.manifest.files)
        assert names == sorted(many.manifest.files)
        assert filecmp.cmpfiles(one.path, many.path, names, shallow=False) == (names, [], [])
        assert json.loads((many.path / "manifest.json").read_text()) == json.loads(
            (one.path / "manifest.json").read_text()
        )
