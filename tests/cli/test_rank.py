"""Leaderboard files written and checked through the command line."""

import json
import re
import shutil
import zipfile
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.test_run_evaluation import figures, mistake, said, scratch

__all__ = ["scratch"]  # a fixture that watches every test

IDS = pa.list_(pa.int32())


@pytest.fixture
def unlabelled(newsroom, tmp_path):
    """A folder as test sets come: a bare split, no labels, an id without text."""
    logs = tmp_path / "MINDtiny_test"
    shutil.copytree(newsroom.logs / "dev", logs)
    behaviors = logs / "behaviors.tsv"
    behaviors.write_text(re.sub(r"-[01](?=[ \n])", "", behaviors.read_text("utf-8")), encoding="utf-8")
    return logs


def check_by_hand(path, name, rows):
    """What the leaderboard demands, from its description alone; `rows` are (impression id, candidates)."""
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [name]
        lines = archive.read(name).decode("ascii").split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(rows)
    ranks = []
    for line, (impression_id, candidates) in zip(lines, rows, strict=True):
        found = re.fullmatch(r"(\S+) (\[\d+(,\d+)*\])", line)
        assert found is not None, line
        assert found[1] == impression_id
        ranks.append(json.loads(found[2]))
        assert sorted(ranks[-1]) == [1 + position for position in range(len(candidates))]
    return ranks


def mind_rows(logs):
    with (logs / "behaviors.tsv").open(encoding="utf-8") as file:
        columns = [line.rstrip("\n").split("\t") for line in file]
    return [(row[0], row[4].split()) for row in columns]


def test_an_unlabelled_log_is_ranked(newsroom, unlabelled, tmp_path, capsys):
    out = tmp_path / "out.zip"
    rows = mind_rows(unlabelled)
    told = figures(capsys, "rank", newsroom.trained, unlabelled, out)
    assert told == {
        "file": "prediction.txt",
        "split": "test",
        "impressions": len(rows),
        "candidates": sum(len(candidates) for _, candidates in rows),
        "candidates_without_text": 1,
    }
    ranks = check_by_hand(out, "prediction.txt", rows)
    assert ranks[0][-1] == len(ranks[0])  # the id without text
    assert any(row != sorted(row) for row in ranks)
    assert f"{len(rows):,} lines, all well formed" in said(capsys, "rank", "--check", out)
    assert "match" in said(capsys, "rank", "--check", out, "--against", unlabelled)
    assert figures(capsys, "rank", "--check", out, "--against", unlabelled) == {"impressions": len(rows)}


def test_ranks_are_those_that_evaluation_scores(newsroom, unlabelled, tmp_path, capsys):
    """MRR from the ranks of the file and the labels of the log is the MRR that evaluate reports."""
    said(capsys, "rank", newsroom.trained, unlabelled, tmp_path / "out.zip")
    ranks = check_by_hand(tmp_path / "out.zip", "prediction.txt", mind_rows(unlabelled))
    values = []
    for row, (_, shown) in zip(ranks, mind_rows(newsroom.logs / "dev"), strict=True):
        clicked = [rank for rank, candidate in zip(row, shown, strict=True) if candidate.endswith("-1")]
        if 0 < len(clicked) < len(shown):
            values.append(sum(1 / rank for rank in clicked) / len(clicked))
    found = figures(capsys, "evaluate", newsroom.trained, "--exact")
    assert len(values) == found["impressions"]
    assert sum(values) / len(values) == pytest.approx(found["mrr"], abs=2e-3)  # ties are broken in the file


def test_a_bad_file_is_named_by_its_first_bad_line(newsroom, unlabelled, tmp_path, capsys):
    out = tmp_path / "out.zip"
    said(capsys, "rank", newsroom.zero, unlabelled, out)
    with zipfile.ZipFile(out) as archive:
        lines = archive.read("prediction.txt").decode().splitlines(keepends=True)

    def check(changed, *words):
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("prediction.txt", "".join(changed))
        return mistake(capsys, "rank", "--check", out, *words)

    bad = next(position for position, line in enumerate(lines) if position > 3 and "," in line)
    assert f"prediction.txt:{bad + 1}: " in check([*lines[:bad], lines[bad].replace(",", ", "), "nonsense"])
    assert "prediction.txt:4: found impression" in check([*lines[:3], *lines[4:]], "--against", unlabelled)
    assert "found the end" in check(lines[:-1], "--against", unlabelled)
    assert "not a whole zip" in mistake(capsys, "rank", "--check", unlabelled / "news.tsv")


def test_a_danish_log_gets_the_file_of_its_leaderboard(newsroom, tmp_path, capsys):
    logs = tmp_path / "ebnerd"
    (logs / "test").mkdir(parents=True)
    articles = {
        "article_id": pa.array([101, 102, 103], pa.int32()),
        "title": ["Ishockey", "Vejret i dag", "Valget"],
        "subtitle": ["Danmark vandt.", None, "Hvem vandt?"],
        "body": ["En lang tekst.", "Regn.", "Ingen ved det."],
        "category_str": ["sport", "nyheder", "nyheder"],
    }
    shown = [[103, 101, 999], [101, 102], [102]]
    behaviors = {
        "impression_id": pa.array([5, 0, 0], pa.uint32()),  # ids may repeat
        "user_id": pa.array([7, 9, 7], pa.uint32()),
        "impression_time": [datetime(2023, 6, 1)] * 3,
        "article_ids_inview": pa.array(shown, IDS),
    }
    history = {"user_id": pa.array([7], pa.uint32()), "article_id_fixed": pa.array([[102, 101]], IDS)}
    pq.write_table(pa.table(articles), logs / "articles.parquet")
    pq.write_table(pa.table(behaviors), logs / "test" / "behaviors.parquet")
    pq.write_table(pa.table(history), logs / "test" / "history.parquet")
    said(capsys, "rank", newsroom.zero, logs, tmp_path / "out.zip")
    rows = list(zip(["5", "0", "0"], shown, strict=True))
    ranks = check_by_hand(tmp_path / "out.zip", "predictions.txt", rows)
    assert ranks[0][2] == 3  # no text
    assert ranks[2] == [1]
    assert "match" in said(capsys, "rank", "--check", tmp_path / "out.zip", "--against", logs)


def test_what_is_missing_on_the_command_line_is_said(newsroom, unlabelled, tmp_path, capsys):
    assert "expected RUN LOGS OUT.zip, or --check" in mistake(capsys, "rank", newsroom.zero, unlabelled)
    out = tmp_path / "out.zip"
    assert "goes with --check" in mistake(capsys, "rank", newsroom.zero, unlabelled, out, "--against", unlabelled)
    assert "takes no RUN" in mistake(capsys, "rank", newsroom.zero, "--check", out)
    assert not out.exists()
