from datetime import datetime

import pytest

from speedyfeed.data.readers import msnews
from speedyfeed.errors import InputError

NEWS = "N1\tsports\tgolf\tTitle\tAbstract\tA long body.\nN2\t\t\tTwo\t\t\n"
USERS = "U7#17#2019-11-11 09:05:58#N3 N5#N1 N2\t18#2019-11-12 20:14:00##N6\nU8#19#2019-11-13 00:00:00#N1#\nU9#\n"


@pytest.fixture
def log(tmp_path):
    def write(users=USERS, news=NEWS):
        (tmp_path / "train").mkdir()
        (tmp_path / "news.tsv").write_text(news)
        (tmp_path / "train" / "users.tsv").write_text(users)
        return tmp_path

    return write


def test_news_have_bodies(log, news_rows):
    (split,) = msnews.open_splits(log())
    assert [list(row.values()) for row in news_rows(split)] == [
        ["N1", "sports", "golf", "Title", "Abstract", "A long body."],
        ["N2", "", "", "Two", "", ""],
    ]


def test_a_record_is_taken_apart_into_its_impressions(log, impression_rows):
    (split,) = msnews.open_splits(log())
    assert [list(row.values()) for row in impression_rows(split)] == [
        ["17", "U7", datetime(2019, 11, 11, 9, 5, 58), ["N3", "N5"], ["N1", "N2"], [], None],
        ["18", "U7", datetime(2019, 11, 12, 20, 14), [], ["N6"], [], None],
        ["19", "U8", datetime(2019, 11, 13), ["N1"], [], [], None],
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("U7", "found 1 column separated by #, expected 2 (user_id, impressions); "),
        (
            "U7#17#2019-11-11#N1",
            "found 3 columns separated by #, expected 4 (impression_id, time, clicked, impressed)",
        ),
        (
            "U7#1#2019-11-11#N1#N2\t2#2019-02-30 10:00:00#N1#N2",
            "found time '2019-02-30 10:00:00', expected year-month",
        ),
        ("U7#1#11/11/2019 9:05:58 AM#N1#N2", "found time '11/11/2019 9:05:58 AM', expected year-month-day"),
    ],
)
def test_a_broken_record_names_its_line(log, impression_rows, record, message):
    (split,) = msnews.open_splits(log(users=USERS + record + "\n" + USERS))
    with pytest.raises(InputError) as error:
        impression_rows(split)
    assert f"users.tsv:4: {message}" in str(error.value)


def test_users_without_impressions_are_left_out(log, impression_rows):
    (split,) = msnews.open_splits(log(users="U7#\nU8#\n"))
    assert impression_rows(split) == []


def test_missing_articles_are_an_error(log):
    folder = log()
    (folder / "news.tsv").unlink()
    with pytest.raises(InputError, match=r"news\.tsv: found no such file"):
        msnews.open_splits(folder)
