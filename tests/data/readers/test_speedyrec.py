import pytest

from speedyfeed.data.readers import speedyrec
from speedyfeed.errors import InputError


@pytest.fixture
def log(tmp_path):
    def write(files):
        for name, content in {"DocFeatures.tsv": "N1\tsports\tgolf\tTitle\tAbstract\tBody\n", **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return write


FILES = {
    "traindata/ProtoBuf_10.tsv": "U9\tN9&N8\n",
    "traindata/ProtoBuf_2.tsv": "U7\tN3;N5&N1;N2|N4&|&N6\nU8\tN1&N2\n",
    "testdata/impressions/ProtoBuf_0.tsv": "U7\tN3;N5;N4\tN1\tN2;N9\nU8\t\tN2\tN1\n",
}


def without_time(rows):
    return [[value for name, value in row.items() if name != "time"] for row in rows]


def test_train_and_labelled_test_files(log, news_rows, impression_rows):
    train, dev = speedyrec.open_splits(log(FILES))
    assert (train.name, dev.name) == ("train", "dev")
    assert [list(row.values()) for row in news_rows(dev)] == [
        ["N1", "sports", "golf", "Title", "Abstract", "Body"]
    ]
    assert without_time(impression_rows(train)) == [
        ["1", "U7", ["N3", "N5"], ["N1", "N2"], [], None],
        ["2", "U7", ["N4"], [], [], None],
        ["3", "U7", [], ["N6"], [], None],
        ["4", "U8", ["N1"], ["N2"], [], None],
        ["5", "U9", ["N9"], ["N8"], [], None],
    ]
    assert without_time(impression_rows(dev)) == [
        ["1", "U7", ["N1"], ["N2", "N9"], ["N3", "N5", "N4"], None],
        ["2", "U8", ["N2"], ["N1"], [], None],
    ]


def test_stand_in_times_keep_the_order_and_put_dev_after_train(log, impression_rows):
    train, dev = speedyrec.open_splits(log(FILES))
    times = [row["time"] for split in (train, dev) for row in impression_rows(split)]
    assert len(times) == 7
    assert times == sorted(set(times))


def test_files_beside_the_news_are_train(log, impression_rows):
    (train,) = speedyrec.open_splits(log({"ProtoBuf_0.tsv": "U7\tN3&N1\n"}))
    assert without_time(impression_rows(train)) == [["1", "U7", ["N3"], ["N1"], [], None]]


@pytest.mark.parametrize(
    ("split", "name", "line", "message"),
    [
        (
            0,
            "traindata/ProtoBuf_10.tsv",
            "U7",
            "found 1 column separated by tab, expected 2 (user_id, impressions); ",
        ),
        (
            0,
            "traindata/ProtoBuf_10.tsv",
            "U7\tN1&N2|N3",
            "found 1 column separated by &, expected 2 (clicked, skipped)",
        ),
        (1, "testdata/impressions/ProtoBuf_0.tsv", "U7\tN1\tN2", "found 3 columns separated by tab, expected 4 "),
    ],
)
def test_a_broken_line_names_its_file_and_number(log, impression_rows, split, name, line, message):
    splits = speedyrec.open_splits(log(FILES | {name: FILES[name] + line + "\n"}))
    with pytest.raises(InputError) as error:
        impression_rows(splits[split])
    number = FILES[name].count("\n") + 1
    assert f"{name}:{number}: {message}" in str(error.value)


def test_news_without_click_logs_are_an_error(log):
    with pytest.raises(InputError, match=r"found no ProtoBuf_\*\.tsv, expected "):
        speedyrec.open_splits(log({}))


DAYS = {
    "testdata/daily_recall/daily_news_10.tsv": "N1\tN2",
    "testdata/daily_recall/daily_news_2.tsv": "N1\tN3\tN9\n",
    "testdata/daily_recall/history_positive_10.tsv": "U7\tN3\tN2\n",
    "testdata/daily_recall/history_positive_2.tsv": "U7\tN3;N5\tN1;N9\nU8\t\tN3\n",
}


def test_daily_recall_is_a_test_split_whose_days_have_their_articles_as_pools(log, impression_rows):
    _, _, test = speedyrec.open_splits(log(FILES | DAYS))
    rows = impression_rows(test)
    assert without_time(rows) == [
        ["1", "daily_news_2", [], [], [], ["N1", "N3", "N9"]],
        ["2", "U7", ["N1", "N9"], [], ["N3", "N5"], None],
        ["3", "U8", ["N3"], [], [], None],
        ["4", "daily_news_10", [], [], [], ["N1", "N2"]],
        ["5", "U7", ["N2"], [], ["N3"], None],
    ]
    assert [str(row["time"].date()) for row in rows] == ["2030-01-01"] * 3 + ["2030-01-02"] * 2


def test_articles_are_found_in_the_folder_of_their_split(log, news_rows):
    folder = log(FILES | DAYS)
    (folder / "DocFeatures.tsv").rename(folder / "traindata" / "DocFeatures.tsv")
    assert speedyrec.recognises(folder)
    assert [news_rows(split)[0]["news_id"] for split in speedyrec.open_splits(folder)] == ["N1"] * 3
    (folder / "testdata" / "DocFeatures.tsv").write_text("N7\tsports\tgolf\tTitle\tAbstract\tBody\n")
    assert [news_rows(split)[0]["news_id"] for split in speedyrec.open_splits(folder)] == ["N1", "N7", "N7"]
    shown = [split.name for split in speedyrec.open_splits(folder / "testdata")]
    assert shown == ["dev", "test"]  # as evaluate takes it


def test_clicks_without_articles_are_an_error(log):
    folder = log(FILES)
    (folder / "DocFeatures.tsv").unlink()
    with pytest.raises(InputError, match=r"DocFeatures\.tsv: found no such file, expected DocFeatures\.tsv"):
        speedyrec.open_splits(folder)
