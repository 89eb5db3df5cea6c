"""Logs as shops and newsrooms really export them: found and read, or answered with the option that helps."""

import gzip
import json

import pytest

from speedyfeed.data.reader_options import ReaderOptions
from speedyfeed.data.readers import open_logs
from speedyfeed.errors import InputError

ITEMS = "item_id,title\nN1,Snow\nN2,Ice\n"
CLICKS = "user_id,item_id,time\nU7,N1,2026-01-01\nU7,N2,2026-01-02\n"


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def read(tmp_path, news_rows, impression_rows):
    """Write the files of a folder and read it: (id, category, subcategory, texts), (user, item, time), notes."""

    def open_folder(files, **options):
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        logs = open_logs(tmp_path, options=ReaderOptions(**options))
        assert logs.format == "interactions"
        news = [
            (row["news_id"], row["category"], row["subcategory"], row["title"], row["abstract"], row["body"])
            for row in news_rows(logs.splits[0])
        ]
        clicks = [
            (row["user_id"], *row["clicked"], row["time"].isoformat())
            for split in logs.splits
            for row in impression_rows(split)
        ]
        return news, clicks, logs.splits[0].notes()

    return open_folder


def test_movies_and_ratings(read):
    news, clicks, notes = read(
        {
            "movies.csv": 'movieId,title,genres\n1,Toy Story (1995),Adventure|Comedy\n2,"Heat, The",Action\n',
            "ratings.csv": "userId,movieId,rating,timestamp\n7,1,4.0,964982703\n7,2,2.5,964982931\n",
            "tags.csv": "userId,movieId,tag,timestamp\n7,1,fun,964982703\n",
            "links.csv": "movieId,imdbId,tmdbId\n1,114709,862\n",
            "README.txt": "Terms of use",
            "package.json": '{\n  "name": "movies"\n}\n',
        }
    )
    assert news == [
        ("1", "Adventure", "Comedy", "Toy Story (1995)", "", ""),
        ("2", "Action", "", "Heat, The", "", ""),
    ]
    assert clicks == [("7", "1", "2000-07-30T18:45:03"), ("7", "2", "2000-07-30T18:48:51")]
    assert "ratings.csv: columns user userId, item movieId, time timestamp; not read (1): rating" in notes


def test_articles_and_transactions_of_a_shop(read):
    news, clicks, _ = read(
        {
            "articles.csv": "article_id,product_code,prod_name,product_type_name,product_group_name,detail_desc\n"
            '0108775015,0108775,Strap top,Vest top,Upper body,"Jersey top, narrow straps."\n',
            "customers.csv": "customer_id,age\n00a,49\n",
            "transactions_train.csv": "t_dat,customer_id,article_id,price\n2018-09-20,00a,0108775015,.05\n"
            "2018-09-21,00b,0108775015,.05\n",
        }
    )
    assert news == [("0108775015", "Upper body", "Vest top", "Strap top", "Jersey top, narrow straps.", "")]
    assert clicks == [("00a", "0108775015", "2018-09-20T00:00:00"), ("00b", "0108775015", "2018-09-21T00:00:00")]


REVIEW = {
    "reviewerID": "A1",
    "asin": "B1",
    "overall": 5.0,
    "reviewText": "Good",
    "summary": "Yes",
    "helpful": [0, 1],
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "meta_Beauty.jsonl.gz": lines(
                    {
                        "asin": "B1",
                        "title": "Soap",
                        "categories": [["Beauty", "Bath"]],
                        "related": {"bought": ["B2"]},
                    }
                ),
                "Beauty_5.jsonl.gz": lines(REVIEW | {"unixReviewTime": 1369699200, "reviewTime": "05 28, 2013"})
                * 2
                + lines(REVIEW | {"reviewerID": "A2", "unixReviewTime": 1369799200}),
            },
            ("B1", "Beauty", "Bath", "Soap", "", ""),
        ),
        (
            {
                "meta_Beauty.json.gz": "{'asin': 'B1', 'title': \"Soap\", 'description': ['Mild.', 'Red.']}\n",
                "Beauty.json.gz": "".join(
                    lines(REVIEW | {"reviewerID": f"A{day}", "unixReviewTime": 1369699199 + day}) for day in (1, 2)
                ),
            },
            ("B1", "", "", "Soap", "Mild. Red.", ""),
        ),
        (
            {
                "meta_All_Beauty.jsonl": lines(
                    {
                        "main_category": "All Beauty",
                        "title": "Soap",
                        "parent_asin": "B1",
                        "categories": [],
                        "features": [],
                    }
                ),
                "All_Beauty.jsonl": "".join(
                    lines(
                        {"user_id": f"A{day}", "asin": "X", "parent_asin": "B1", "title": "Fine", "text": "Good"}
                        | {"timestamp": 1369699199999 + day, "images": [{"small": "x"}]}
                    )
                    for day in (1, 2)
                ),
            },
            ("B1", "All Beauty", "", "Soap", "", ""),
        ),
    ],
)
def test_reviews_with_metadata(read, files, expected):
    news, clicks, _ = read(files)
    assert news == [expected]
    assert [(user, item) for user, item, _ in clicks] == [("A1", "B1"), ("A2", "B1")]
    assert clicks[0][2][:10] == "2013-05-28"


def test_an_index_column_and_a_column_without_a_name_are_not_read(read):
    files = {
        "articles.csv": ",article_id,title,content\n0,1,Snow,Much\n",
        "clicks.csv": "Unnamed: 0,user_id,article_id,timestamp\n"
        "0,7,1,2020-01-01 10:00:00+00\n1,8,1,2020-01-02 10:00:00+00\n",
    }
    news, clicks, notes = read(files)
    assert news == [("1", "", "", "Snow", "", "Much")]
    assert clicks == [("7", "1", "2020-01-01T10:00:00"), ("8", "1", "2020-01-02T10:00:00")]
    assert 'articles.csv: columns item article_id, title, body content; not read (1): ""' in notes


def test_events_of_visitors(read):
    header = "timestamp,visitorid,event,itemid,transactionid\n"
    events = header + "1433221332117,257,view,1,\n1433224214164,258,addtocart,1,\n"
    _, clicks, notes = read({"events.csv": events, "items.csv": "itemid,title\n1,Snow\n"})
    assert clicks == [("257", "1", "2015-06-02T05:02:12.117000"), ("258", "1", "2015-06-02T05:50:14.164000")]
    assert "events.csv: events view 1, addtocart 1; all are clicks, --events chooses some of them" in notes


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_the_separator_is_that_of_the_header(read, separator):
    items = '\nitem_id,title,category\nN1,"Snow; much\t| of it",weather\n'.replace(",", separator)
    news, *_ = read({"items.csv": items, "clicks.csv": CLICKS.replace(",", separator)})
    assert news == [("N1", "weather", "", "Snow; much\t| of it", "", "")]


def test_a_header_in_latin_1_needs_its_name_too(read):
    with pytest.raises(InputError, match=r"items.csv: found bytes that are no UTF-8, .* as --charset latin-1"):
        read({"items.csv": "item\xe9id,title\n1,x\n".encode("latin-1"), "interactions.csv": CLICKS})


def test_latin_1_needs_its_name_and_utf_16_does_not(read):
    items = "item_id,title\nN1,Schnee für alle\n"
    expected = [("N1", "", "", "Schnee für alle", "", "")]
    with pytest.raises(InputError, match=r"items.csv:2: found bytes that are no UTF-8, .* as --charset latin-1"):
        read({"items.csv": items.encode("latin-1"), "clicks.csv": CLICKS})
    assert read({"items.csv": items.encode("latin-1")}, charset="latin-1")[0] == expected
    assert read({"items.csv": items.encode("utf-16")})[0] == expected
    with pytest.raises(InputError, match="--charset latin-99: found no such encoding"):
        ReaderOptions(charset="latin-99")


def test_latin_1_lines_of_json(read):
    items = json.dumps({"id": "N1", "title": "Käse"}, ensure_ascii=False).encode("latin-1")
    files = {"items.jsonl": items, "clicks.csv": CLICKS}
    with pytest.raises(InputError, match=r"items.jsonl:1: found the byte 0xe4, expected UTF-8"):
        read(files)
    assert read(files, charset="latin-1")[0] == [("N1", "", "", "Käse", "", "")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\"['A', 'B', 'C']\"", ("A", "B")),
        ('"[""A"", ""B""]"', ("A", "B")),
        ("\"[['A', 'B'], ['C']]\"", ("A", "B")),
        ("A|B|C", ("A", "B")),
        ("A > B", ("A", "B")),
        ("[]", ("", "")),
        ("[Live]", ("[Live]", "")),
        ("[1]", ("[1]", "")),
        ('"Food, Coffee"', ("Food, Coffee", "")),
        ("", ("", "")),
    ],
)
def test_of_a_list_of_categories_the_first_two_are_read(read, value, expected):
    news, *_ = read({"items.csv": f"item_id,title,categories\nN1,[Live] Snow,{value}\n", "clicks.csv": CLICKS})
    assert news == [("N1", *expected, "[Live] Snow", "", "")]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("31/01/2020", "01/02/2020", ("2020-01-31T00:00:00", "2020-02-01T00:00:00")),
        ("01/31/2020 9:05", "02/01/2020 10:00", ("2020-01-31T09:05:00", "2020-02-01T10:00:00")),
        ("1/31/2020 12:00:01 AM", "1/31/2020 12:00:01 PM", ("2020-01-31T00:00:01", "2020-01-31T12:00:01")),
        ("01.02.2020", "02.02.2020 10:00", ("2020-02-01T00:00:00", "2020-02-02T10:00:00")),
        ("2020/1/5", "2020/01/06 10:00:00", ("2020-01-05T00:00:00", "2020-01-06T10:00:00")),
        ("20200101", "20200102", ("2020-01-01T00:00:00", "2020-01-02T00:00:00")),
        (
            "2020-01-01 10:00:00 UTC",
            "2020-01-02 10:00:00.5 UTC",
            ("2020-01-01T10:00:00", "2020-01-02T10:00:00.500000"),
        ),
        ("1577872800000000", "1577872800000001", ("2020-01-01T10:00:00", "2020-01-01T10:00:00.000001")),
        ("1577872800000000000", "1577872800000002000", ("2020-01-01T10:00:00", "2020-01-01T10:00:00.000002")),
        ("1577872800.", "1577872800.25", ("2020-01-01T10:00:00", "2020-01-01T10:00:00.250000")),
        ("1.5778728e+09", "1.57787281e9", ("2020-01-01T10:00:00", "2020-01-01T10:00:10")),
        (
            "Sun Jul 30 07:44:10 -0700 2017",
            "Sun Jul 30 07:44:11 -0700 2017",
            ("2017-07-30T14:44:10", "2017-07-30T14:44:11"),
        ),
        ("Jul 30, 2017", "August 1st, 2017, 7:44 PM", ("2017-07-30T00:00:00", "2017-08-01T19:44:00")),
        (
            "30/Jul/2017:07:44:10 +0000",
            "31/Jul/2017:07:44:10 +0000",
            ("2017-07-30T07:44:10", "2017-07-31T07:44:10"),
        ),
        (
            "Sun, 30 Jul 2017 07:44:10 GMT",
            "Mon, 31 Jul 2017 07:44:10 GMT",
            ("2017-07-30T07:44:10", "2017-07-31T07:44:10"),
        ),
        ("01-Jan-2000", "02-Feb-2000", ("2000-01-01T00:00:00", "2000-02-02T00:00:00")),
        ("05 28, 2013", "06 1, 2013", ("2013-05-28T00:00:00", "2013-06-01T00:00:00")),
        ("12/1/10 8:26", "12/31/10 18:26", ("2010-12-01T08:26:00", "2010-12-31T18:26:00")),
        ("31-01-2020 10:00", "01-02-2020", ("2020-01-31T10:00:00", "2020-02-01T00:00:00")),
        ("202001011005", "20200102", ("2020-01-01T10:05:00", "2020-01-02T00:00:00")),
        ("20200101100507", "20200102100508", ("2020-01-01T10:05:07", "2020-01-02T10:05:08")),
        (" 2020-01-01", "2020-01-02 ", ("2020-01-01T00:00:00", "2020-01-02T00:00:00")),
    ],
)
def test_times_of_other_forms(read, first, second, expected):
    _, clicks, _ = read(
        {"items.csv": ITEMS, "clicks.csv": f'user_id,item_id,time\nU7,N1,"{first}"\nU7,N2,"{second}"\n'}
    )
    assert tuple(time for *_, time in clicks) == expected


@pytest.mark.parametrize("name", ["time_ms", "opened_at_utc", "readTimestampMs", "viewedAt"])
def test_the_only_column_that_ends_like_a_time_is_the_time(read, name):
    rows = "U7,N1,1769860800000,4\nU7,N2,1769947200500,5\n"
    _, clicks, _ = read({"items.csv": ITEMS, "clicks.csv": f"user_id,item_id,{name},items_ms\n{rows}"})
    assert [time[:10] for *_, time in clicks] == ["2026-01-31", "2026-02-01"]


def test_dates_that_do_not_tell_day_from_month_need_an_option(read):
    files = {"items.csv": ITEMS, "clicks.csv": "user_id,item_id,time\nU7,N1,01/02/2020\nU7,N2,03/04/2020\n"}
    with pytest.raises(
        InputError, match=r"clicks.csv:2: found time '01/02/2020' .* --dates day-first or --dates month"
    ):
        read(files)
    assert [time[:10] for *_, time in read(files, dates="day-first")[1]] == ["2020-02-01", "2020-04-03"]
    assert [time[:10] for *_, time in read(files, dates="month-first")[1]] == ["2020-01-02", "2020-03-04"]


def test_without_times_the_order_of_the_rows_stands_in(read):
    files = {
        "books.csv": "book_id,authors,original_title,title\n1,Ann,The Snow,Snow\n2,Bob,Ice,Ice\n",
        "ratings.csv": "user_id,book_id,rating\n7,2,5\n8,1,3\n7,3,4\n7,1,4\n",
        "to_read.csv": "user_id,book_id\n7,2\n",
    }
    with pytest.raises(
        InputError, match=r"ratings.csv: found no time column .* --columns time=none for the order"
    ):
        read(files)
    news, clicks, notes = read(files, columns="time=none")
    assert [title for *_, title, _, _ in news] == ["Snow", "Ice"]
    assert [(user, item) for user, item, _ in clicks] == [("7", "2"), ("8", "1"), ("7", "3"), ("7", "1")]
    assert notes[0].startswith(
        "split last, because the order of the rows tells it without times: each user's last"
    )
    _, clicks, notes = read(files, columns="time=none", split="time")
    assert [(user, item) for user, item, _ in clicks] == [("7", "2"), ("7", "3"), ("8", "1"), ("7", "1")]
    assert notes[0] == "split by the order of the rows, without times: dev has the last 25.0% of the interactions"
    with pytest.raises(InputError, match="--dev-from: found with --columns time=none"):
        read(files, columns="time=none", dev_from="2026-01-01")


def test_a_table_named_with_its_columns(read):
    log = "session_id,page,when,kicker\nS1,P1,2026-01-01,Snow\nS1,P2,2026-01-02,Ice\nS2,P1,2026-01-03,Snow again\n"
    tables = "items=log.csv,interactions=log.csv"
    with pytest.raises(
        InputError, match=r"found no table of items and interactions among log.csv .session_id, page"
    ):
        read({"log.csv": log})
    with pytest.raises(InputError, match="found no item column"):
        read({"log.csv": log}, tables=tables)
    news, clicks, notes = read({"log.csv": log}, tables=tables, columns="item=page,time=when,title=kicker")
    assert [(row[0], row[3]) for row in news] == [("P2", "Ice"), ("P1", "Snow again")]
    assert [(user, item) for user, item, _ in clicks] == [("S1", "P1"), ("S1", "P2"), ("S2", "P1")]
    assert "log.csv: columns user session_id, item page, time when; not read (1): kicker" in notes


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("items=nothing.csv", "--tables items=nothing.csv: found no such table in"),
        ("items=notes.txt", "--tables items=notes.txt: found no such table in"),
        ("books=items.csv", "found 'books=items.csv', expected TABLE=FILE"),
    ],
)
def test_a_table_that_is_none_is_refused(read, tables, message):
    with pytest.raises(InputError, match=message):
        read({"items.csv": ITEMS, "clicks.csv": CLICKS, "notes.txt": "x"}, tables=tables)


def test_several_files_that_could_be_meant_need_an_option(read):
    files = {"a.csv": CLICKS, "b.csv": CLICKS.replace("U7", "U8"), "catalogue.csv": ITEMS}
    with pytest.raises(InputError, match=r"found a.csv and b.csv, expected one .* --tables interactions=a.csv"):
        read(files)
    assert {user for user, *_ in read(files, tables="interactions=b.csv")[1]} == {"U8"}


def test_tables_without_a_text_say_what_is_missing(read):
    files = {
        "events.csv": "timestamp,visitorid,event,itemid\n1433221332117,257,view,1\n",
        "item_properties.csv": "timestamp,itemid,property,value\n1435460400000,1,categoryid,13\n",
    }
    with pytest.raises(
        InputError, match=r"no table of items among .* expected one with item and title, .* --columns"
    ):
        read(files)


def test_ids_of_an_unknown_name_are_those_that_both_tables_have(read):
    files = {
        "shared.csv": "timestamp,eventType,pageId,authorId,title\n1,a,-5,9,Snow\n",
        "views.csv": "timestamp,eventType,pageId,personId\n1465413032,VIEW,-5,-8\n1465413033,LIKE,-5,-9\n",
    }
    news, clicks, _ = read(files)
    assert news[0][0] == "-5"
    assert [(user, item) for user, item, _ in clicks] == [("-8", "-5"), ("-9", "-5")]


BROKEN = (
    "user_id,item_id,time\nU7,N1,2026-01-01\n,N1,2026-01-02\nU7,,2026-01-03\nU7,N1\nU7,N2,soon\nU7,N2,1969-01-01\n"
    "U7,N2,2026-02-30\nU7,N2,2026-01-04\n"
)


def test_broken_rows_are_left_out_and_counted_when_asked(read):
    files = {"items.csv": "item_id,title\nN1,Snow\n,Nothing\nN2,Ice,cream\n", "clicks.csv": BROKEN}
    for text, found in (
        (BROKEN, "clicks.csv:5: found 2 fields"),
        (BROKEN.replace("N1\n", "N1,\n"), ":3: found an empty"),
    ):
        with pytest.raises(InputError, match=rf"{found}.* with --skip-broken"):
            read(files | {"items.csv": ITEMS, "clicks.csv": text})
    news, clicks, notes = read({**files, "clicks.csv": BROKEN}, skip_broken=True)
    assert [row[0] for row in news] == ["N1"]
    assert clicks == [("U7", "N1", "2026-01-01T00:00:00"), ("U7", "N2", "2026-01-04T00:00:00")]
    assert any("items.csv: 2 rows left out as broken, the first: " in note for note in notes)
    assert any(note.startswith("clicks.csv: 6 rows left out as broken, the first: ") for note in notes)


def test_broken_lines_of_json_are_left_out_and_counted_when_asked(read):
    first, last = (lines({"user": 1, "item": f"N{day}", "time": f"2026-01-0{day}"}) for day in (1, 2))
    rows = f"{first}nothing\n[1]\n{last}"
    _, clicks, notes = read({"items.csv": ITEMS, "clicks.jsonl": rows}, skip_broken=True)
    assert [item for _, item, _ in clicks] == ["N1", "N2"]
    assert any("clicks.jsonl: 2 rows left out as broken, the first: " in note for note in notes)
    assert any("clicks.jsonl:2: an empty user" in note for note in notes)


ROWS = ["A1,B1,2020-01-01", "A2,B1,2020-01-02", "A1,B2,2020-01-03"]
HEADER = "user_id,product_id,viewed_at\n"
PRODUCTS = "product_id,name\nB1,Soap\nB2,Cream\n"


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("events-000.csv", "events-001.csv.gz", "events-002.csv"), {"tables": "interactions=events-*"}),
        (("events-000.csv", "events-001.csv", "events-002.csv"), {}),
        (("log.train.csv", "log.valid.csv", "log.test.csv"), {"tables": "interactions=log.*.csv"}),
        (("clicks/a.csv", "clicks/b.csv", "clicks/c.csv"), {}),
    ],
)
def test_parts_are_one_table(read, names, options):
    parts = {name: HEADER + row + "\n" for name, row in zip(names, ROWS, strict=True)}
    _, clicks, notes = read(parts | {"products.csv": PRODUCTS}, **options)
    assert sorted((user, item) for user, item, _ in clicks) == [("A1", "B1"), ("A1", "B2"), ("A2", "B1")]
    first = sorted(names)[0]
    assert f"{first} and 2 more parts: columns user user_id, item product_id, time viewed_at" in notes
    assert not any("files not read" in note for note in notes)


def test_a_broken_row_of_a_part_names_its_line_and_an_empty_part_is_none(read):
    files = {"products.csv": PRODUCTS, "events-0.csv": HEADER + ROWS[0] + "\n", "events-1.csv": HEADER}
    files["events-2.csv"] = HEADER + ROWS[1] + "\n,B1,2020-01-03\n"
    with pytest.raises(InputError, match=r"events-2.csv:3: found an empty user_id"):
        read(files)
    _, clicks, notes = read(files, skip_broken=True)
    assert len(clicks) == 2
    assert any("1 row left out as broken, the first: " in note and "events-2.csv:3" in note for note in notes)


def test_parts_with_other_columns_are_refused(read):
    files = {"products.csv": PRODUCTS, "a.csv": HEADER + ROWS[0] + "\n", "b.csv": "user_id,product_id\nA1,B1\n"}
    with pytest.raises(
        InputError, match=r"b.csv: found no column viewed_at, expected the columns of the other parts"
    ):
        read(files, tables="items=products.csv,interactions=?.csv*")


def test_posts_and_views_of_a_weblog(read):
    posts = "ID,post_date,post_title,post_content,post_status\n7,2013-01-01,Snow,<p>Much</p>,publish\n"
    views = "id,post_id,user_id,viewed_at\n1,7,U1,2013-01-02\n2,7,U2,2013-01-03\n"
    news, clicks, _ = read({"posts.csv": posts, "views.csv": views})
    assert news == [("7", "", "", "Snow", "", "<p>Much</p>")]
    assert [(user, item) for user, item, _ in clicks] == [("U1", "7"), ("U2", "7")]


def test_files_beside_the_tables_are_named(read):
    files = {
        "products.csv": PRODUCTS,
        "views.csv": HEADER + "\n".join(ROWS),
        "prices.csv": "product_id,price\nB1,3\n",
    }
    assert "files not read (1): prices.csv" in read(files)[2]


def test_of_two_tables_of_items_the_one_with_titles_is_meant(read):
    files = {
        "meta.csv": "product_id,description\nB1,Mild\n",
        "goods.csv": PRODUCTS,
        "views.csv": HEADER + "\n".join(ROWS),
    }
    news, _, notes = read(files)
    assert [row[3] for row in news] == ["Soap", "Cream"]
    assert "files not read (1): meta.csv" in notes


def test_one_table_of_orders_is_both_tables(read):
    orders = "InvoiceNo,StockCode,Description,InvoiceDate,CustomerID\n"
    orders += "1,S1,SOAP £,12/1/2010 8:26,17850.0\n1,S2,,12/2/2010 8:26,17850.0\n2,S1,,12/31/2010 8:34,\n"
    news, clicks, notes = read({"Retail.csv": orders.encode("latin-1")}, charset="latin-1", skip_broken=True)
    assert [(row[0], row[3]) for row in news] == [("S1", "SOAP £"), ("S2", "")]  # shown by its description
    assert clicks == [("17850", "S1", "2010-12-01T08:26:00"), ("17850", "S2", "2010-12-02T08:26:00")]
    assert sum("1 row left out as broken, the first: " in note for note in notes) == 1


def test_reviews_alone_are_no_items(read):
    with pytest.raises(
        InputError, match=r"found no table of items and interactions among Beauty.jsonl .reviewerID"
    ):
        read({"Beauty.jsonl": lines(REVIEW | {"title": "Fine", "unixReviewTime": 1369699200})})


def test_the_item_may_have_another_name_in_each_table(read):
    products = "Handle,Title,Body (HTML),Variant SKU\nsoap,Soap,Mild.,S-1\nsoap,,,S-2\n"
    orders = "Name,Email,Created at,Lineitem sku\n#1,a@x.com,2021-01-05 12:33:04 -0500,S-1\n"
    orders += "#2,b@x.com,2021-01-06 12:33:04 -0500,S-1\n"
    files = {"products.csv": products, "orders.csv": orders}
    news, clicks, _ = read(files, columns="item=Variant SKU,clicked=Lineitem sku")
    assert news == [("S-1", "", "", "Soap", "", "Mild."), ("S-2", "", "", "", "", "")]
    assert [(user, item) for user, item, _ in clicks] == [("a@x.com", "S-1"), ("b@x.com", "S-1")]
    with pytest.raises(InputError, match="found no table of items"):
        read(files, columns="item=Variant SKU,clicked=nothing")


def test_a_named_item_column_is_found_in_any_spelling(read):
    views = HEADER.replace("product_id", "handle") + "A1,soap,2020-01-01\nA2,soap,2020-01-02\n"
    _, clicks, _ = read({"products.csv": "Handle,Title\nsoap,Soap\n", "views.csv": views}, columns="item=Handle")
    assert [item for _, item, _ in clicks] == ["soap", "soap"]


def test_lists_of_json_are_read_and_broken_ones_name_the_line(read):
    items = json.dumps([{"item_id": 1, "title": "Soap"}, {"item_id": 2, "title": "Cream"}], indent=1)
    rows = json.dumps([{"user_id": 1, "item_id": 1 + day, "time": 1577872800 + day} for day in (0, 1)])
    news, clicks, _ = read({"items.json": items, "clicks.json": rows})
    assert [row[3] for row in news] == ["Soap", "Cream"]
    assert [item for _, item, _ in clicks] == ["1", "2"]
    for broken in (items[:-1], items.replace("},", "}"), items.replace('"Soap"', "Soap")):
        with pytest.raises(InputError, match=r"items.json:\d+: found a JSON list with .* correct it, or export"):
            read({"items.json": broken, "clicks.json": rows})


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("clicks.csv", {"items.csv": ITEMS, "clicks.csv": "U7,N1,2026-01-01\nU7,N2,2026-01-02\n"}),
        ("items.csv", {"items.csv": "N1,Snow\nN2,Ice\n", "clicks.csv": CLICKS}),
    ],
)
def test_a_table_of_a_usual_name_without_a_header_is_named(read, name, files):
    with pytest.raises(
        InputError, match=rf"{name}: found no item column .* if the first line is no header, put one"
    ):
        read(files)


def test_a_first_row_in_place_of_a_header_is_named(read):
    files = {"meta.csv": PRODUCTS.replace("product_id", "asin"), "ratings_Beauty.csv": "A3,B1,5.0,1369699200\n"}
    with pytest.raises(
        InputError, match=r"if the first line of ratings_Beauty.csv is no header, put one before it"
    ):
        read(files)
