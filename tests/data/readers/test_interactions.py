"""A table of items and a table of clicks: columns, splits, and everything that can be wrong with such files."""

import gzip
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers import clicks, headed, interactions, parted
from speedyfeed.errors import InputError

ITEMS = "item_id,title,category\nN1,Snow,weather\nN2,Ice hockey,sport\nN3,Rain,weather\n"
DAYS = [datetime(2026, 1, day, 9) for day in range(1, 11)]
CLICKS = [
    ("U7", "N1", DAYS[0]),
    ("U8", "N2", DAYS[1]),
    ("U7", "N2", DAYS[2]),
    ("U7", "N3", DAYS[4]),
    ("U9", "N1", DAYS[6]),
    ("U7", "N4", DAYS[8]),
    ("U8", "N3", DAYS[9]),
]
TABLE = "user_id,item_id,timestamp\n" + "".join(
    f"{user},{item},{time.isoformat()}\n" for user, item, time in CLICKS
)


@pytest.fixture
def log(tmp_path):
    """Write the two files and open them; the files are text or bytes by name."""

    def write(items=ITEMS, table=TABLE, *, names=("items.csv", "interactions.csv"), **options):
        for name, text in zip(names, (items, table), strict=True):
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert interactions.recognises(tmp_path)
        return interactions.open_splits(tmp_path, ReaderOptions(**options))

    return write


def refused(splits):
    """Message of the error that reading the splits raises."""
    with pytest.raises(InputError) as error:
        for split in splits:
            for batches in (split.news(), split.impressions()):
                list(batches)
    message = str(error.value)
    assert "\n" not in message
    return message


def times(*values):
    rows = (f"U7,N{1 + row % 3},{value}\n" for row, value in enumerate(values))
    return "user_id,item_id,time\n" + "".join(rows)


def short(rows):
    """(user, clicked, history) of each row; an interaction has nothing skipped and no candidates."""
    assert all(row["skipped"] == [] and row["candidates"] is None for row in rows)
    return [(row["user_id"], *row["clicked"], " ".join(row["history"])) for row in rows]


def test_each_interaction_is_a_click_and_the_last_tenth_is_dev(log, news_rows, impression_rows):
    train, dev = log()
    assert (train.name, dev.name) == ("train", "dev")
    assert [file.name for file in train.files] == ["items.csv", "interactions.csv"]
    assert [list(row.values()) for row in news_rows(train)] == [
        ["N1", "weather", "", "Snow", "", ""],
        ["N2", "sport", "", "Ice hockey", "", ""],
        ["N3", "weather", "", "Rain", "", ""],
    ]
    assert news_rows(dev) == []  # the articles of all splits are read once
    assert [list(row.values()) for row in impression_rows(train)][:2] == [
        ["1", "U7", DAYS[0], ["N1"], [], [], None],
        ["2", "U7", DAYS[2], ["N2"], [], [], None],
    ]
    assert len(impression_rows(train)) == 6
    assert short(impression_rows(dev)) == [("U8", "N3", "N2")]
    assert train.notes() == (
        "split by time: dev begins at 2026-01-10 09:00:00, 14.3% of the interactions",
        "items.csv: columns item item_id, title, category",
        "interactions.csv: columns user user_id, item item_id, time timestamp",
    )


def test_dev_begins_when_asked_and_has_all_earlier_clicks_as_history(log, impression_rows):
    train, dev = log(dev_from="2026-01-05")
    assert short(impression_rows(train)) == [("U7", "N1", ""), ("U7", "N2", ""), ("U8", "N2", "")]
    assert short(impression_rows(dev)) == [
        ("U7", "N3", "N1 N2"),
        ("U7", "N4", "N1 N2 N3"),
        ("U8", "N3", "N2"),
        ("U9", "N1", ""),
    ]


def test_dev_from_may_have_a_zone(log, impression_rows):
    _, dev = log(dev_from="2026-01-10T10:00+01:00")
    assert short(impression_rows(dev)) == [("U8", "N3", "N2")]
    assert "dev begins at 2026-01-10 10:00:00" in refused(log(dev_from="2026-01-10T11:00+01:00"))


def test_the_last_clicks_of_a_user_are_validation_and_test(log, impression_rows):
    train, valid, test = log(split="last")
    assert [split.name for split in (train, valid, test)] == ["train", "valid", "test"]
    assert short(impression_rows(train)) == [
        ("U7", "N1", ""),
        ("U7", "N2", ""),
        ("U8", "N2", ""),
        ("U8", "N3", ""),
        ("U9", "N1", ""),
    ]
    assert short(impression_rows(valid)) == [("U7", "N3", "N1 N2")]
    assert short(impression_rows(test)) == [("U7", "N4", "N1 N2 N3")]
    assert train.notes()[0].startswith(
        "split last: each user's last click on a new article is test, the one before it valid; 2 of 3 users have"
    )


def test_clicks_of_one_time_stay_in_the_order_of_the_file(log, impression_rows):
    rows = "".join(f"U7,{item},1769900000\n" for item in ("N3", "N1", "N2"))
    splits = log(table="user_id,item_id,ts\n" + rows, split="last")
    assert [row["clicked"] for split in splits for row in impression_rows(split)] == [["N3"], ["N1"], ["N2"]]


def test_a_long_history_has_its_newest_clicks(log, impression_rows, monkeypatch):
    monkeypatch.setattr(interactions, "HISTORY_CLICKS", 2)
    *_, test = log(split="last")
    assert short(impression_rows(test)) == [("U7", "N4", "N2 N3")]


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize(("items", "table"), [("articles", "clicks"), ("news", "events")])
def test_all_kinds_of_files_read_alike(log, news_rows, impression_rows, tmp_path, kind, items, table):
    expected = [[rows(split) for rows in (news_rows, impression_rows)] for split in log()]
    for name in ("items.csv", "interactions.csv"):
        (tmp_path / name).unlink()
    names = (f"{items}{kind}", f"{table}{kind}")
    header = ("id", "headline", "section")
    articles = [dict(zip(header, line.split(","), strict=True)) for line in ITEMS.splitlines()[1:]]
    seconds = [int(time.replace(tzinfo=UTC).timestamp()) for *_, time in CLICKS]
    rows = [
        {"userId": user, "asin": item, "unixReviewTime": time}
        for (user, item, _), time in zip(CLICKS, seconds, strict=True)
    ]
    if kind == ".parquet":
        for name, records in zip(names, (articles, rows), strict=True):
            pq.write_table(pa.Table.from_pylist(records), tmp_path / name)
        splits = interactions.open_splits(tmp_path)
    else:
        splits = log(*(as_text(records, kind) for records in (articles, rows)), names=names)
    assert [[read(split) for read in (news_rows, impression_rows)] for split in splits] == expected


def as_text(records, kind):
    if kind.startswith(".jsonl"):
        return "".join(json.dumps(record) + "\n" for record in records)
    separator = "\t" if kind.startswith(".tsv") else ","
    lines = [list(records[0]), *(map(str, record.values()) for record in records)]
    return "".join(separator.join(line) + "\n" for line in lines)


def test_quotes_newlines_a_byte_order_mark_and_crlf_are_read(log, news_rows):
    items = (
        '\ufeffitem_id,title,body\r\nN1,"Snow, ""at last""","One line\r\nand another"\r\n\r\nN2,Ice "hockey",\r\n'
    )
    train, _ = log(items)
    assert [(row["news_id"], row["title"], row["body"]) for row in news_rows(train)] == [
        ("N1", 'Snow, "at last"', "One line\r\nand another"),
        ("N2", 'Ice "hockey"', ""),
    ]


def test_columns_are_named(log, news_rows, impression_rows):
    items = "doc,kicker,text\nN1,Snow,Much of it.\n"
    table = "visitor,page,when\nU7,N1,2026-01-01\nU7,N2,2026-01-02\n"
    with pytest.raises(InputError, match=r"--columns title=COLUMN|no item column"):
        list(log(items.replace("text", "x"), table)[0].news())
    splits = log(items, table, columns="item=doc,title=kicker, body=text,time=when", split="time")
    assert "interactions.csv: found no item column (columns: visitor, page, when)" in refused(splits)
    train, dev = log(items, table.replace("page", "doc"), columns="item=doc,title=kicker,time=when")
    assert [(row["title"], row["body"]) for row in news_rows(train)] == [("Snow", "Much of it.")]
    assert short(impression_rows(dev)) == [("U7", "N2", "N1")]


def test_an_item_column_may_be_named_for_one_table_only(log, impression_rows):
    train, _ = log(table=TABLE.replace("item_id", "page"), columns="item=page")
    assert len(impression_rows(train)) == 6


def test_the_number_of_an_interaction_is_no_item(log, impression_rows):
    train, _ = log(table="id,user_id,item_id,time\n1,U7,N1,2026-01-01\n2,U7,N2,2026-01-02\n")
    assert [row["clicked"] for row in impression_rows(train)] == [["N1"]]
    assert "interactions.csv: columns user user_id, item item_id, time; not read (1): id" in train.notes()


@pytest.mark.parametrize(
    ("items", "table", "message"),
    [
        (
            "title\nSnow\n",
            TABLE,
            "items.csv: found no item column (columns: title), expected one of item_id, item, ",
        ),
        (
            "item_id,url\nN1,x\n",
            TABLE,
            "items.csv: found no column of text (columns: item_id, url), expected at least",
        ),
        (
            "item_id,title,headline\nN1,a,b\n",
            TABLE,
            "items.csv: found columns title and headline (columns: item_id, ",
        ),
        (
            "news_id,item_id,title\n1,N1,b\n",
            TABLE.replace("user_id", "news_id,user_id"),
            "found columns news_id and item_id (columns: news_id, item_id, title), expected one",
        ),
        ("item_id,title,title\n1,N1,b\n", TABLE, "items.csv: found column title twice, expected it once"),
        (
            ITEMS,
            "item_id,time\nN1,2026-01-01\n",
            "interactions.csv: found no user column (columns: item_id, time), ",
        ),
        (
            ITEMS,
            "user_id,item_id\nU7,N1\n",
            "found no time column (columns: user_id, item_id), expected one of timest",
        ),
        (
            ITEMS,
            "uid,item_id,date,time\nU7,N1,a,b\n",
            "found columns date and time (columns: uid, item_id, date, ",
        ),
        (ITEMS, "", "interactions.csv: found no item column (columns: none), expected"),
        (ITEMS, "user_id,item_id,time\n", "interactions.csv: found no rows, expected at least one; export"),
    ],
)
def test_a_column_that_is_missing_or_ambiguous_names_the_remedy(log, items, table, message):
    found = refused(log(items, table))
    assert message in found
    assert "--columns" in found or "no rows" in found or "twice" in found


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("user", "found 'user', expected MEANING=COLUMN"),
        (
            "reader=uid",
            "found 'reader=uid', expected MEANING=COLUMN, each once, with a meaning of user, item, clicked, time",
        ),
        ("user=a,user=b", "found 'user=b'"),
        ("title=a,body=a", "found 'body=a'"),
        ("time=", "found 'time='"),
    ],
)
def test_a_wrong_option_is_refused(columns, message):
    with pytest.raises(InputError, match="--columns") as error:
        ReaderOptions(columns=columns)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "user=visitor",
            "interactions.csv: found no column visitor (columns: user_id, item_id, timestamp), expected",
        ),
        (
            "body=text",
            "items.csv: found no column text (columns: item_id, title, category), expected the column of",
        ),
        ("item=doc", "items.csv: found no column doc"),
    ],
)
def test_a_named_column_must_exist(log, columns, message):
    assert message in refused(log(columns=columns))


@pytest.mark.parametrize(
    "values",
    [
        ("2026-01-31T12:00:00", "2026-02-01T12:00:00.5"),
        ("2026-01-31 12:00", "2026-02-01 12:00:00.500000"),
        ("2026-01-31T13:00:00+01:00", "2026-02-01T12:00:00.5Z"),
        ("1769860800", "1769947200.5"),
        ("1769860800000", "1769947200500"),
    ],
)
def test_times_have_five_formats(log, impression_rows, values):
    splits = log(table=times(*values))
    assert [row["time"] for split in splits for row in impression_rows(split)] == [
        datetime(2026, 1, 31, 12),
        datetime(2026, 2, 1, 12, 0, 0, 500_000),
    ]


@pytest.mark.parametrize("type_", [pa.timestamp("ns", "UTC"), pa.timestamp("s"), pa.date32()])
def test_times_of_parquet_are_taken_as_they_are(log, tmp_path, impression_rows, type_):
    log()
    (tmp_path / "interactions.csv").unlink()
    table = {"user_id": [7.0, 8.0], "item_id": [1, 2], "time": pa.array(DAYS[:2], pa.timestamp("s")).cast(type_)}
    pq.write_table(pa.table(table), tmp_path / "clicks.parquet")
    train, dev = interactions.open_splits(tmp_path)
    rows = impression_rows(train) + impression_rows(dev)
    assert [row["time"].date() for row in rows] == [day.date() for day in DAYS[:2]]
    assert [(row["user_id"], *row["clicked"]) for row in rows] == [("7", "1"), ("8", "2")]
    assert "clicks.parquet: user ids are all written as 12.0 and read as 12" in train.notes()


FUTURE = "2199-01-31T09:00:00"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ("2026-01-31", "1769860800"),
            ":3: found time '1769860800' in another format (seconds since 1970), expected ISO",
        ),
        (
            ("1769860800", "1769860800000"),
            ":3: found time '1769860800000' in another format (milliseconds since 1970)",
        ),
        (
            ("2026-01-31T12:00", "2026-01-31T12:00Z"),
            ":3: found time '2026-01-31T12:00Z' in another format (ISO with a",
        ),
        (
            ("31 of January",),
            ":2: found time '31 of January' of no known format, expected ISO as 2026-01-31T12:00:00, a date",
        ),
        (("31/01/2026", "32/01/2026"), ":3: found time '32/01/2026' that the calendar does not have"),
        (("31/01/2026", "31/01/2026 noon"), ":3: found time '31/01/2026 noon' of no known format"),
        (("31/01/2026", "31.01.2026"), ":3: found time '31.01.2026' in another format (a date with dots)"),
        (("2026-01-31", ""), ":3: found time '' of no known format"),
        (("2026-01-31", "2026-02-30"), ":3: found time '2026-02-30' that the calendar does not have"),
        (("1989-12-31",), ":2: found time '1989-12-31' before 1990, expected a time from 1990 to now"),
        (("-5",), ":2: found time '-5' before 1990"),
        (("0",), ":2: found time '0' before 1990"),
        (("1970-01-01T00:00:00Z",), ":2: found time '1970-01-01T00:00:00Z' before 1990"),
        (("20260131", "1769860800"), ":3: found time '1769860800' in another format (seconds since 1970)"),
        (("7", "8"), ":2: found time '7' before 1990"),
        ((FUTURE,), f":2: found time '{FUTURE}' in the future"),
        (("7769860800000000",), ":2: found time '7769860800000000' in the future"),
        (("9" * 30,), ":2: found time '9999"),
    ],
)
def test_a_wrong_time_names_its_line(log, values, message):
    found = refused(log(table=times(*values)))
    assert f"interactions.csv{message}" in found
    assert "--columns time=COLUMN" in found


def test_ids_written_as_floats_are_whole_numbers(log, news_rows, impression_rows):
    items, table = (
        "id,title\n12,Snow\n13,Ice\n",
        "user_id,item_id,time\n1.0,12.0,2026-01-01\n1.0,13.0,2026-01-02\n",
    )
    train, dev = log(items, table)
    assert [row["news_id"] for row in news_rows(train)] == ["12", "13"]
    assert short(impression_rows(train) + impression_rows(dev)) == [("1", "12", ""), ("1", "13", "12")]
    assert train.notes()[3:] == (
        "interactions.csv: item ids are all written as 12.0 and read as 12",
        "interactions.csv: user ids are all written as 12.0 and read as 12",
    )
    train, dev = log(items, table.replace("13.0", "13.5"))
    assert [row["clicked"] for row in impression_rows(train)] == [["12.0"]]  # a version, not a number


@pytest.mark.parametrize(
    ("items", "table", "message"),
    [
        (
            'item_id,title\nN1,"a\nb"\n,Snow\n',
            TABLE,
            "items.csv:4: found an empty item_id, expected an id; fill it",
        ),
        (ITEMS, TABLE + ",N1,2026-01-01\n", "interactions.csv:9: found an empty user_id"),
        (ITEMS, TABLE + "\nU7,,2026-01-01\n", "interactions.csv:10: found an empty item_id"),
        (
            'item_id,title\nN1,"a\nb"\nN2,Snow,at last\n',
            TABLE,
            "items.csv:4: found 3 fields, expected 2 (item_id, tit",
        ),
        (
            ITEMS,
            TABLE + "U7,N1\n",
            "interactions.csv:9: found 2 fields, expected 3 (user_id, item_id, timestamp); add",
        ),
        (
            b"item_id,title\nN1,Snow\nN2,\xff\n",
            TABLE,
            "items.csv:3: found bytes that are no UTF-8, expected UTF-8",
        ),
        (
            'item_id,title\nN1,"Snow\nN2,Ice\n',
            TABLE,
            "items.csv:2: found a quote that is not closed, or text behind it",
        ),
        ('item_id,title\nN1,"Snow\nN2,"Ice\nN3,a\n', TABLE, "items.csv:2: found a quote that is not closed"),
        ('item_id,title,url\nN1,Snow,"x\nN2,Ice,y\n', TABLE, "items.csv:2: found a quote that is not closed"),
    ],
)
def test_a_broken_row_names_its_line(log, items, table, message):
    assert message in refused(log(items, table))


def test_a_line_is_found_beyond_the_first_block(log, monkeypatch):
    monkeypatch.setattr(headed, "BLOCK_BYTES", 100)
    assert "interactions.csv:19: found 2 fields" in refused(log(table=TABLE + "\n\n" + TABLE[26:] + "\nU7,N1\n"))
    assert "interactions.csv:18: found an empty" in refused(
        log(table=TABLE + "\n\n" + TABLE[26:] + ",N1,2026-01-01\n")
    )


def test_a_line_longer_than_a_block_is_refused(log, monkeypatch):
    monkeypatch.setattr(headed, "BLOCK_BYTES", 100)
    for text in ("x" * 1000, '"' + "x\n" * 500 + '"'):
        found = refused(log(items=f"item_id,title\nN1,Snow\nN2,{text}\nN3,Rain\n"))
        assert "items.csv:3: found a row of more than 100 bytes, expected a shorter one" in found


def test_a_line_of_json_longer_than_a_record_can_be_is_refused(log, monkeypatch):
    monkeypatch.setattr("speedyfeed.data.readers.text.MAX_LINE_BYTES", 1000)
    rows = [
        json.dumps({"id": f"N{number}", "title": "x" * size}) for number, size in ((1, 9), (2, 950), (3, 1000))
    ]
    files = {"names": ("items.jsonl", "interactions.csv")}
    log("\n".join(rows[:2]), **files)[0].notes()  # 1,000 bytes in two lines are none too many
    found = refused(log("\n".join(rows), **files))
    assert "items.jsonl:3: found a line of more than 1,000 bytes, expected a shorter one" in found


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_long_line_is_read(log, news_rows, kind):
    text = "snow " * 100_000
    items = {"csv": f"item_id,title\nN1,{text}\n", "jsonl": json.dumps({"id": "N1", "title": text}) + "\n"}
    train, _ = log(items=items[kind], names=(f"items.{kind}", "interactions.csv"))
    assert [row["title"] for row in news_rows(train)] == [text]


def test_a_file_that_is_one_endless_header_is_refused(log):
    found = refused(log(items="x" * 200_000))
    assert "items.csv:1: found no header (field larger than field limit" in found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", ":2: found no JSON ("),
        ("[1]", ":2: found a JSON list, expected one JSON object"),
        ('{"id": ["a"], "title": "Snow"}', ":2: found a list or an object as id, expected a string or a number"),
        ('{"title": "Snow"}', ":2: found an empty id"),
    ],
)
def test_a_broken_json_line_names_its_line(log, line, message):
    items = '{"id": 1, "title": "Ice"}\n' + line + "\n"
    assert f"items.jsonl{message}" in refused(log(items, names=("items.jsonl", "interactions.csv")))


@pytest.mark.parametrize("kind", [".csv.gz", ".jsonl.gz"])
def test_a_gzip_file_cut_short_is_refused(log, tmp_path, kind):
    path = tmp_path / f"items{kind}"
    path.write_bytes(
        gzip.compress(b"item_id,title\nN1,Snow\n" if "csv" in kind else b'{"id": 1, "title": "a"}\n')[:-12]
    )
    (tmp_path / "clicks.csv").write_text(TABLE)
    assert f"items{kind}: found" in refused(interactions.open_splits(tmp_path))
    path.write_bytes(b"item_id,title\n")
    assert f"items{kind}: found" in refused(interactions.open_splits(tmp_path))


def test_repeated_rows_are_counted_and_the_newest_text_is_used(log, news_rows, impression_rows):
    items = ITEMS + "N1,Snow again,weather\nN1,Snow at last,weather\n"
    train, dev = log(items, TABLE + TABLE.split("\n", 1)[1])
    assert [(row["news_id"], row["title"]) for row in news_rows(train)] == [
        ("N2", "Ice hockey"),
        ("N3", "Rain"),
        ("N1", "Snow at last"),
    ]
    assert len(impression_rows(train) + impression_rows(dev)) == 7
    assert train.notes()[3:] == (
        "items.csv: 2 rows with the id of another row; of each id the last with a text is used",
        "interactions.csv: 7 rows with user, item and time of an earlier row, left out",
    )


EVENTS = "user_id,item_id,time,event,weight,page\n" + "".join(
    f"U7,N{day},2026-01-0{day},{event},{weight},x\n"
    for day, event, weight in ((1, "view", 1), (2, "click", 2.5), (3, "view", 4), (4, "buy", -1))
)


def test_columns_that_are_not_read_are_stated(log):
    train, _ = log(table=EVENTS)
    assert (
        "interactions.csv: columns user user_id, item item_id, time, event; not read (2): weight, page"
        in train.notes()
    )
    assert (
        "interactions.csv: events view 2, click 1, buy 1; all are clicks, --events chooses some of them"
        in train.notes()
    )


@pytest.mark.parametrize(
    ("options", "days", "note"),
    [
        (
            {"events": "click, buy"},
            [2, 4],
            "interactions.csv: events view 2, click 1, buy 1; 2 rows of other events than --events left out",
        ),
        ({"min_weight": 2}, [2, 3], "interactions.csv: 2 rows with a weight below 2 left out"),
        ({"min_weight": 1, "events": "view"}, [1, 3], "interactions.csv: 1 rows with a weight below 1 left out"),
    ],
)
def test_events_and_weights_choose_the_clicks(log, impression_rows, options, days, note):
    splits = log(table=EVENTS, **options)
    assert [row["time"].day for split in splits for row in impression_rows(split)] == days
    assert note in splits[0].notes()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (EVENTS, {"events": "like"}, "--events like: found events view 2, click 1, buy 1 in"),
        (EVENTS, {"min_weight": 9}, "interactions.csv: found no row that is a click"),
        (EVENTS.replace("2.5", "much"), {"min_weight": 1}, "interactions.csv:3: found a weight that is no number"),
        (
            TABLE,
            {"events": "view"},
            "interactions.csv: found no event column (columns: user_id, item_id, timestamp)",
        ),
        (
            TABLE,
            {"min_weight": 1},
            "expected one for --min-weight; say which is meant with --columns weight=COLUMN",
        ),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(log, table, options, message):
    assert message in refused(log(table=table, **options))


def test_a_split_that_leaves_a_part_empty_is_refused(log):
    assert (
        "found no user with 3 clicks on different items, expected some for --split last; use --split time"
        in refused(log(table=times("2026-01-01", "2026-01-02"), split="last"))
    )
    message = "found times from 2026-01-01 09:00:00 to 2026-01-10 09:00:00, expected some before dev begins at"
    assert message in refused(log(dev_from="2027-01-01"))
    assert message in refused(log(dev_from="2025-01-01"))
    assert "or --split last" in refused(log(table=times("2026-01-01")))


@pytest.mark.parametrize("options", [{"dev_from": "soon"}, {"dev_from": "2026-01-01", "split": "last"}])
def test_a_wrong_begin_of_dev_is_refused(options):
    with pytest.raises(InputError, match="--dev-from"):
        ReaderOptions(**options)


def test_two_tables_of_one_kind_are_refused(log):
    log()
    with pytest.raises(
        InputError, match=r"found items\.csv and news\.tsv, expected one table of items; remove one"
    ):
        log(names=("news.tsv", "interactions.csv"))


def test_a_missing_table_is_refused(tmp_path):
    (tmp_path / "items.csv").write_text(ITEMS)
    assert interactions.recognises(tmp_path)
    with pytest.raises(
        InputError, match=r"found no table of interactions among items.csv .item_id, title, category"
    ):
        interactions.open_splits(tmp_path)


def test_a_later_row_without_a_text_does_not_replace_one_that_has_it(log, news_rows):
    items = ITEMS + "N1,Snow again,\nN1,  ,\nN4,,\nN4,,sport\n"
    train, _ = log(items)
    assert [(row["news_id"], row["title"], row["category"]) for row in news_rows(train)] == [
        ("N2", "Ice hockey", "sport"),
        ("N3", "Rain", "weather"),
        ("N1", "Snow again", ""),
        ("N4", "", "sport"),
    ]
    assert "items.csv: 3 rows with the id of another row; of each id the last with a text is used" in train.notes()


@pytest.mark.parametrize("missing", ["NA", "NULL", "None", "nan", "\\N"])
def test_what_stands_for_no_id_is_none(log, missing):
    table = TABLE + f"{missing},N1,2026-01-11T09:00:00\n"
    assert "interactions.csv:9: found an empty user_id" in refused(log(table=table))
    train, _ = log(table=table, skip_broken=True)
    assert any("interactions.csv: 1 row left out as broken" in note for note in train.notes())


def test_ids_of_many_batches_have_one_numbering(log, monkeypatch):
    monkeypatch.setattr(headed, "BLOCK_BYTES", 64)
    train, _ = log()
    table = parted.PartedTable((headed.HeadedTable(train.files[1]),), train.files[1].parent)
    assert sum(1 for _ in table.read(["user_id"])) > 2
    ids = clicks.load_ids(table, "user_id")
    assert [ids.distinct[code].as_py() for code in ids.codes] == [user for user, _, _ in CLICKS]


LABELS = "user_id,item_id,time,clicked\nU7,N1,2026-01-01,1\nU7,N2,2026-01-01,0\nU8,N1,2026-01-02,0\n"
LABELS += "U7,N3,2026-01-03,1\nU8,N3,2026-01-04,0\nU8,N2,2026-01-04,1\n"


@pytest.mark.parametrize("name", ["is_click", "label", "Clicked"])
@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("True", "False")])
def test_what_was_shown_but_not_clicked_is_no_click(log, impression_rows, name, yes, no):
    table = LABELS.replace("clicked", name).replace(",1\n", f",{yes}\n").replace(",0\n", f",{no}\n")
    train, dev = log(table=table)
    assert short(impression_rows(train)) == [("U7", "N1", ""), ("U7", "N3", "")]
    assert short(impression_rows(dev)) == [("U8", "N2", "")]
    assert train.notes()[-1] == (
        "interactions.csv: shown, not clicked: 3 rows left out; they would be negatives with a column of "
        "impressions, --columns impression=COLUMN"
    )


def with_impressions(table, numbers):
    header, *rows = table.splitlines()
    numbered = (f"{row},{number}" for row, number in zip(rows, numbers, strict=True))
    return "\n".join([f"{header},impression_id", *numbered]) + "\n"


@pytest.mark.parametrize("split", ["time", "last"])
def test_labels_with_impressions_give_negatives(log, impression_rows, split):
    rows = "U7,N2,2026-01-05,1\nU7,N1,2026-01-05,1\nU7,N3,2026-01-05,0\nU7,N9,2026-01-06,1\n"
    table = with_impressions(LABELS + rows, [1, 1, 2, 3, 4, 4, 5, 5, 5, 6])
    found = [row for one in log(table=table, split=split) for row in impression_rows(one)]
    assert [(row["user_id"], row["clicked"], row["skipped"]) for row in found] == [
        ("U7", ["N1"], ["N2"]),
        *([("U7", ["N3"], []), ("U7", ["N2", "N1"], ["N3"])] if split == "time" else [("U7", ["N3"], [])]),
        ("U8", ["N2"], ["N3"]),
        *([("U7", ["N2", "N1"], ["N3"])] if split == "last" else []),
        ("U7", ["N9"], []),
    ]
    assert found[-1]["history"] == ["N1", "N3", "N2", "N1"]
    notes = log(table=table, split=split)[0].notes()
    assert any(
        "shown, not clicked: 4 rows, of which 3 are negatives of clicks of their imp" in one for one in notes
    )


def test_impressions_of_one_row_each_are_none(log, impression_rows):
    train, dev = log(table=with_impressions(LABELS, range(6)))
    assert [row["skipped"] for split in (train, dev) for row in impression_rows(split)] == [[], [], []]
    assert any("shown, not clicked: 3 rows left out" in note for note in train.notes())


def test_a_label_is_0_or_1(log, impression_rows):
    table = LABELS.replace(",0\nU8,N1", ",2\nU8,N1")
    found = refused(log(table=table))
    assert "interactions.csv:3: found clicked '2', expected 1 for clicked or 0 for only shown" in found
    assert "--columns label=none" in found
    train, dev = log(table=table, columns="label=none")
    assert len(impression_rows(train) + impression_rows(dev)) == 6
    assert "found no row that is a click" in refused(log(table=LABELS.replace(",1\n", ",0\n")))


@pytest.mark.parametrize(
    "wrong", ["impression", "view_item_list", "product.shown", "remove_from_cart", "Exposure"]
)
def test_events_that_are_no_clicks_need_an_option(log, wrong, impression_rows):
    found = refused(log(table=EVENTS.replace("buy", wrong)))
    assert f"found events view 2, click 1, {wrong} 1, expected clicks alone, which {wrong} are not" in found
    assert "--events view,click" in found
    train, dev = log(table=EVENTS.replace("buy", wrong), events="view,click")
    assert len(impression_rows(train) + impression_rows(dev)) == 3


def test_a_log_of_one_event_is_fine_whatever_its_name(log, impression_rows):
    table = EVENTS.replace("view", "impression").replace("click", "impression").replace("buy", "impression")
    assert [len(impression_rows(split)) for split in log(table=table)] == [3, 1]


@pytest.mark.parametrize(
    ("ratings", "warns"), [("12345", True), ("45554", False), ("15555", True), ("a1111", False)]
)
def test_low_ratings_are_warned_of(log, ratings, warns):
    rows = (f"U7,N{day % 3},2026-01-0{1 + day},{rating}\n" for day, rating in enumerate(ratings))
    notes = log(table="user_id,item_id,time,rating\n" + "".join(rows))[0].notes()
    assert (
        any(note.startswith("warning: interactions.csv: ") and " rating below 3" in note for note in notes)
        == warns
    )


NUMBERED = "id,user_id,product,created_at\n" + "".join(f"{n},U7,{1 + n % 3},2026-01-0{n}\n" for n in range(1, 7))
NUMBERED_ITEMS = "id,title\n1,Snow\n2,Ice\n3,Rain\n"


def test_the_number_of_a_row_alone_is_no_item(log, impression_rows):
    found = refused(log(NUMBERED_ITEMS, NUMBERED))
    assert "found another id in every row (columns: id, user_id, product, created_at), expected the item" in found
    assert "--columns clicked=COLUMN" in found
    splits = log(NUMBERED_ITEMS, NUMBERED, columns="clicked=product")
    assert [row["clicked"] for split in splits for row in impression_rows(split)][:3] == [["2"], ["3"], ["1"]]
    train, _ = log(NUMBERED_ITEMS, NUMBERED, columns="clicked=id")
    assert any(note.startswith("warning: interactions.csv: every click has another id") for note in train.notes())


def test_clicks_in_a_row_on_one_item_are_one(log, impression_rows):
    rows = [("view", 1), ("addtocart", 1), ("buy", 1), ("view", 2), ("view", 1)]
    table = "user_id,item_id,time,event\n"
    table += "".join(f"U7,N{item},2026-01-0{1 + day},{event}\n" for day, (event, item) in enumerate(rows))
    splits = log(table=table)
    found = [(row["time"].day, *row["clicked"]) for split in splits for row in impression_rows(split)]
    assert found == [(1, "N1"), (4, "N2"), (5, "N1")]
    same = "interactions.csv: 2 rows on the item of the user's click before, left out: both are one click"
    assert same in splits[0].notes()


def test_the_last_clicks_on_new_articles_are_held_out(log, impression_rows):
    items = ["N1", "N2", "N1", "N3", "N1", "N4", "N2", "N1"]
    table = "user_id,item_id,time\n" + "".join(f"U7,{item},2026-01-0{1 + n}\n" for n, item in enumerate(items))
    train, valid, test = log(table=table, split="last")
    assert [row["clicked"] for row in impression_rows(train)] == [["N1"], ["N2"], ["N1"]]
    assert short(impression_rows(valid)) == [("U7", "N3", "N1 N2 N1")]
    assert short(impression_rows(test)) == [("U7", "N4", "N1 N2 N1 N3 N1")]
    assert "split last: 3 later clicks on articles clicked before are in no split" in train.notes()


def test_users_of_dev_whom_train_does_not_know_are_warned_of(log):
    assert not any("users of dev" in note for note in log()[0].notes())
    train, _ = log(table=TABLE.replace("U8,N3", "U1,N3"))
    assert "warning: 0 of 1 users of dev have a click in train; with --split last all have" in train.notes()
