import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedyfeed.errors import InputError
from speedyfeed.evaluation import submission
from speedyfeed.evaluation.submission import Shown, check_submission, submission_name, write_submission
from speedyfeed.ragged import Ragged, offsets_of

NAME = "prediction.txt"
IDS = ["17", "9", "a-3"]


def shown(ids: list[str], sizes: list[int]) -> list[Shown]:
    return [Shown(impression_id=key, num_candidates=size) for key, size in zip(ids, sizes, strict=True)]


LOG = shown(IDS, [3, 2, 4])


def ragged(rows: list[list[float]]) -> Ragged:
    values = np.array([value for row in rows for value in row], np.float32)
    return Ragged(values=values, offsets=offsets_of(np.array([len(row) for row in rows], np.int64)))


def write_zip(path: Path, text: str | bytes, name: str = NAME) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, text)
    return path


def ranks_by_hand(path: Path, name: str = NAME) -> list[tuple[str, list[int]]]:
    """An independent user: what a scorer sees of a submission, each line a permutation."""
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.infolist()
        assert member.filename == name
        text = archive.read(name).decode("ascii")
    assert text == "" or text.endswith("\n")
    lines = []
    for line in text.split("\n")[:-1]:
        key, space, ranks = line.partition(" ")
        assert key
        assert space == " "
        assert " " not in ranks
        numbers = json.loads(ranks)
        assert set(numbers) == {i + 1 for i in range(len(numbers))}
        lines.append((key, numbers))
    return lines


def test_ranks_are_written_in_the_order_candidates_are_listed(tmp_path):
    scores = ragged([[0.1, 0.9, 0.5], [2.0, 2.0], [-np.inf, 0.0, -np.inf, 1.0]])
    write_submission(tmp_path / "out.zip", NAME, IDS, scores)
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.read(NAME) == b"17 [3,1,2]\n9 [1,2]\na-3 [3,2,4,1]\n"
    check_submission(tmp_path / "out.zip", LOG, NAME)


@given(rows=st.lists(st.lists(st.sampled_from([-np.inf, 0.0, 0.5, 1.0]), max_size=30), max_size=12))
@settings(max_examples=40, deadline=None)
def test_what_is_written_passes_both_checkers(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("submission") / "out.zip"
    ids = [str(len(rows) - row) for row in range(len(rows))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "_ROWS", 5)  # several pieces
        write_submission(path, NAME, ids, ragged(rows))
    check_submission(path, shown(ids, ragged(rows).lengths), NAME)
    found = ranks_by_hand(path)
    assert [key for key, _ in found] == ids
    for (_, ranks), scores in zip(found, rows, strict=True):
        by_rank = [score for _, score in sorted(zip(ranks, scores, strict=True))]
        assert by_rank == sorted(scores, reverse=True)


def test_impression_ids_may_repeat(tmp_path):
    write_submission(tmp_path / "out.zip", "predictions.txt", ["0", "0"], ragged([[1.0], [0.0, 1.0]]))
    check_submission(tmp_path / "out.zip", shown(["0", "0"], [1, 2]), "predictions.txt")
    assert ranks_by_hand(tmp_path / "out.zip", "predictions.txt") == [("0", [1]), ("0", [2, 1])]


def test_the_same_scores_give_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_submission(tmp_path / name, NAME, IDS[:2], ragged([[0.1, 0.9, 0.5], [1.0, 2.0]]))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_an_interrupted_write_leaves_nothing_and_keeps_what_was_there(tmp_path, monkeypatch):
    def stop(scores):
        raise KeyboardInterrupt

    write_submission(tmp_path / "out.zip", NAME, ["1"], ragged([[1.0]]))
    before = (tmp_path / "out.zip").read_bytes()
    monkeypatch.setattr(submission, "ranks_of", stop)
    with pytest.raises(KeyboardInterrupt):
        write_submission(tmp_path / "out.zip", NAME, ["1"], ragged([[0.0]]))
    assert [file.name for file in tmp_path.iterdir()] == ["out.zip"]
    assert (tmp_path / "out.zip").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("17 [1,2,3]\n9 [1,2]\n", "prediction.txt:3: found the end, expected impression a-3 (1 missing)"),
        ("17 [1,2,3]\na-3 [1,2,3,4]\n", "prediction.txt:2: found impression a-3, expected 9"),
        ("17 [1,2,3]\n9 [1,2,3]\n", "prediction.txt:2: found 3 ranks, expected 2"),
        ("17 [1,2,3]\n9 [1,1]\n", "prediction.txt:2: found ranks '9 [1,1]', expected each of 1 to 2 once"),
        ("17 [1,2,3]\n9 [0,1]\n", "prediction.txt:2: found '9 [0,1]', expected a line like '9 [1,2]'"),
        ("17 [1,2,3]\n9 [2,3]\n", "prediction.txt:2: found ranks '9 [2,3]'"),
        ("17 [1, 2, 3]\n", "prediction.txt:1: found '17 [1, 2, 3]', expected a line like '17 [1,2,3]'"),
        ("17 1,2,3\n", "prediction.txt:1: found '17 1,2,3'"),
        ("17 (1,2,3)\n", "prediction.txt:1: found"),
        ("17\t[1,2,3]\n", "prediction.txt:1: found"),
        ("17 [1,2,3] \n", "prediction.txt:1: found"),
        ("17 [1,2,3,]\n", "prediction.txt:1: found"),
        ("17 [1,02,3]\n", "prediction.txt:1: found"),
        ("17 [1,²,3]\n", "prediction.txt:1: found"),
        ("17 [1,2,3]\r\n", "prediction.txt:1: found"),
        ("\n17 [1,2,3]\n", "prediction.txt:1: found ''"),
        (
            "17 [1,2,3]\n9 [1,2]\na-3 [1,2,3,4]\n5 [1]\n",
            "prediction.txt:4: found '5 [1]' after the last impression",
        ),
        (b"17 [\xff]\n", "prediction.txt:1: found"),
        ("", "prediction.txt:1: found the end, expected impression 17 (3 missing)"),
    ],
)
def test_the_first_bad_line_is_named(text, complaint, tmp_path):
    path = write_zip(tmp_path / "out.zip", text)
    with pytest.raises(InputError) as caught:
        check_submission(path, LOG, NAME)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["predictions.txt", "out/prediction.txt", "Prediction.txt"])
def test_a_zip_with_another_file_is_refused(name, tmp_path):
    path = write_zip(tmp_path / "out.zip", "17 [1,2,3]\n9 [1,2]\na-3 [1,2,3,4]\n", name)
    with pytest.raises(InputError, match=r"expected prediction\.txt alone, at its top"):
        check_submission(path, LOG, NAME)


def test_what_is_no_zip_is_refused(tmp_path):
    (tmp_path / "out.zip").write_text("17 [1,2,3]\n")
    for path in (tmp_path / "out.zip", tmp_path / "absent.zip"):
        with pytest.raises(InputError, match="not a whole zip file"):
            check_submission(path, LOG, NAME)


def test_a_damaged_zip_is_refused(tmp_path):
    write_submission(tmp_path / "out.zip", NAME, ["1"], ragged([[0.0] * 50]))
    whole = (tmp_path / "out.zip").read_bytes()
    (tmp_path / "out.zip").write_bytes(whole[:60] + b"damage" + whole[66:])
    with pytest.raises(InputError, match="not a whole zip file"):
        check_submission(tmp_path / "out.zip", shown(["1"], [50]), NAME)


def test_the_last_line_may_lack_its_end(tmp_path):
    assert check_submission(write_zip(tmp_path / "out.zip", "17 [1,2,3]\n9 [2,1]"), LOG[:2], NAME) == 2


def test_without_a_log_lines_are_checked_for_themselves(tmp_path):
    path = tmp_path / "out.zip"
    assert check_submission(write_zip(path, "17 [1,2,3]\n9 [2,1]\n")) == 2
    assert check_submission(write_zip(path, "17 [1]\n", "predictions.txt")) == 1
    for text, complaint in (
        ("17 [1,2,3]\n9 [1,3]\n", r"prediction\.txt:2: found ranks '9 \[1,3\]', expected each of 1 to 2 once"),
        ("17 [1,2,3]\n9 1,3\n", r"prediction\.txt:2: found '9 1,3', expected a line like '17 \[1,2,3\]'"),
        ("", "empty file"),
    ):
        with pytest.raises(InputError, match=complaint):
            check_submission(write_zip(path, text))
    with pytest.raises(InputError, match=r"expected prediction\.txt or predictions\.txt alone"):
        check_submission(write_zip(path, "17 [1]\n", "answers.txt"))


def test_each_leaderboard_has_its_file_name():
    assert submission_name("mind") == "prediction.txt"
    assert submission_name("ebnerd") == "predictions.txt"


def test_an_impression_that_is_ranked_twice_is_refused_unless_the_leaderboard_allows_it(tmp_path: Path) -> None:
    scores = ragged([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(InputError, match="impression 7: is 2 times in the log"):
        write_submission(tmp_path / "out.zip", NAME, ["7", "7"], scores)
    write_submission(tmp_path / "out.zip", "predictions.txt", ["7", "7"], scores)
    assert check_submission(tmp_path / "out.zip") == 2
    with pytest.raises(InputError, match="2: found impression 7 again"):
        check_submission(write_zip(tmp_path / "twice.zip", "7 [1,2]\n7 [2,1]\n"))
