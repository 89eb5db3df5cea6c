"""The validation split: which train impressions it takes, and that nothing of them stays in train."""

import random
from datetime import UTC

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speedyfeed.cli.prepare import print_summary, summary
from speedyfeed.data.manifest import SetAside
from speedyfeed.data.tables import IMPRESSIONS
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.prepare import prepare
from speedyfeed.preparation.validation import num_to_set_aside, set_aside
from tests.conftest import DEV, NEWS, write_mind_split

TRAIN = [
    # The log gives U1 a new history every time: the last one has the click on N5, which validation is to predict.
    ("1", "U1", "11/11/2019 9:00:00 AM", "N1", "N2-1 N3-0"),
    ("2", "U2", "11/11/2019 9:30:00 AM", "N4", "N1-1 N5-0"),
    ("3", "U1", "11/12/2019 9:00:00 AM", "N1 N2", "N3-1 N4-0"),
    ("4", "U2", "11/12/2019 9:30:00 AM", "N4", "N2-1 N3-0"),
    ("5", "U1", "11/13/2019 9:00:00 AM", "N1 N2 N3", "N5-1 N4-0"),
    ("6", "U2", "11/13/2019 9:00:00 AM", "N4", "N3-1 N5-0"),
    ("7", "U1", "11/13/2019 9:30:00 AM", "N1 N2 N3 N5", "N4-1 N2-0"),
    ("8", "U3", "11/13/2019 9:45:00 AM", "N2 N5", "N4-1 N2-0"),
]


@pytest.fixture
def logs(tmp_path):
    write_mind_split(tmp_path / "logs" / "train", NEWS, TRAIN)
    write_mind_split(tmp_path / "logs" / "dev", NEWS, DEV)
    return tmp_path / "logs"


def make(logs, path, **settings):
    return prepare(logs, path, PrepareConfig(refine="none", fields=("title",), **settings)).store


def rows(ragged):
    return [row.tolist() for row in ragged]


@pytest.mark.parametrize(
    ("impressions", "share", "expected"),
    [
        (0, None, 0),
        (3, None, 0),
        (4, None, 1),
        (1000, None, 250),
        (2000, None, 500),
        (6000, None, 600),
        (10**6, None, 10_000),
        (10**6, 0.3, 300_000),
        (1000, 0.0, 0),
        (9, 0.5, 4),
    ],
)
def test_a_tenth_within_bounds_or_the_given_share(impressions, share, expected):
    assert num_to_set_aside(impressions, share) == expected


def test_the_end_of_train_is_validation_and_nothing_of_it_is_left(logs, tmp_path):
    store = make(logs, tmp_path / "store", validation=0.5)
    assert store.splits == ("train", "valid", "dev")
    assert store.load_users()["user_id"].to_pylist() == ["U1", "U2"]  # U3 comes after the cut
    assert rows(store.train.clicks) == [[1, 2, 3], [4, 1, 2]]
    assert sorted(rows(store.train.pools)) == [[3], [3], [4], [5]]
    assert store.load_impressions("valid")["impression_id"].to_pylist() == ["5", "6", "7", "8"]
    valid = store.impressions("valid")
    assert rows(valid.candidates) == [[5, 4], [3, 5], [4, 2], [4, 2]]
    assert valid.labels.tolist() == [1, 0] * 4
    # The longer of the history that came with the impression and the user's train timeline.
    assert [valid.histories[user].tolist() for user in valid.users] == [[1, 2, 3], [4, 1, 2], [1, 2, 3, 5], [2, 5]]
    assert store.manifest.counts.splits["train"].read["impressions"] == 4


def test_dev_knows_all_clicks_before_it_those_of_validation_included(logs, tmp_path):
    behaviors = logs / "dev" / "behaviors.tsv"
    behaviors.write_text(behaviors.read_text("utf-8").replace("N1 N4 N2", ""), encoding="utf-8")
    dev = make(logs, tmp_path / "store", validation=0.5).impressions("dev")
    assert dev.histories[dev.users[0]].tolist() == [1, 2, 3, 5, 4]


def test_the_summary_says_how_many_and_from_when_to_when(logs, tmp_path, capsys):
    store = make(logs, tmp_path / "store", validation=0.5)
    print_summary(store)
    line = "validation: the last 4 train impressions set aside, 2019-11-13 09:00:00 to 2019-11-13 09:45:00"
    assert line in capsys.readouterr().out.splitlines()
    assert summary(store)["set_aside"]["impressions"] == 4
    without = make(logs, tmp_path / "without", validation=0)
    assert without.splits == ("train", "dev")
    print_summary(without)
    assert "validation: none" in capsys.readouterr().out.splitlines()


def test_the_share_is_part_of_the_identity_of_a_store(logs, tmp_path):
    make(logs, tmp_path / "store", validation=0.5)
    with pytest.raises(InputError, match=r"prepared with validation 0\.5, asked for None"):
        make(logs, tmp_path / "store")


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def test_clicks_that_are_set_aside_have_all_earlier_ones_as_history(tmp_path, engine):
    rng = random.Random(0)
    # A user's next article is never the same: clicks in a row on one are one click.
    places = {f"U{user}": user % 9 for user in range(12)}
    clicks = []
    for minute in range(80):
        user = f"U{rng.randrange(12)}"
        places[user] = (places[user] + rng.randrange(1, 9)) % 9
        clicks.append((user, f"N{places[user]}", 10 * minute))
    clicks += [("new", f"N{number}", 795) for number in range(3)]  # at one time, and all set aside
    (tmp_path / "items.csv").write_text("item_id,title\n" + "".join(f"N{n},Title of {n}\n" for n in range(9)))
    lines = [f"{user},{item},{1769900000 + time}\n" for user, item, time in rng.sample(clicks, len(clicks))]
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n" + "".join(lines))
    config = PrepareConfig(refine="none", fields=("title",), validation=0.3)
    store = prepare(tmp_path, tmp_path / "store", config, EngineConfig(engine=engine, memory=1)).store
    titles = store.load_titles()["news_id"].to_pylist()
    in_order = sorted((line.split(",") for line in lines), key=lambda row: int(row[2]))  # stable: rows of the file
    found = 0
    for name in ("valid", "dev"):
        shown, facts = store.impressions(name), store.load_impressions(name)
        for row, (user, time) in enumerate(
            zip(facts["user_id"].to_pylist(), facts["time"].to_pylist(), strict=True)
        ):
            history = [titles[number - 1] for number in shown.histories[shown.users[row]]]
            (clicked,) = (titles[number - 1] for number in shown.candidates[row])
            before = [
                item
                for who, item, at in in_order
                if who == user and int(at) <= time.replace(tzinfo=UTC).timestamp()
            ]
            assert [*history, clicked] == before[: len(history) + 1]
            assert len(history) + 1 == len(before) or user == "new"
            found += name == "valid" and bool(history)
    assert found > 10


@pytest.mark.parametrize("share", [-0.1, 0.6])
def test_a_wrong_share_is_refused(share):
    with pytest.raises(InputError, match=r"expected a number from 0 to 0\.5"):
        PrepareConfig(validation=share)


def test_a_validation_split_of_the_log_is_taken_as_it_is(logs, tmp_path):
    write_mind_split(logs / "valid", NEWS, DEV[:1])
    store = make(logs, tmp_path / "store")
    assert store.splits == ("train", "valid", "dev")
    assert len(store.impressions("valid").users) == 1
    assert store.manifest.counts.splits["train"].read["impressions"] == 8
    with pytest.raises(InputError, match=r"--validation 0\.2 for a log with a validation split of its own"):
        make(logs, tmp_path / "other", validation=0.2)


def impression(row, user, minute, *, has_click=True):
    return {
        "row": row,
        "impression_id": str(row),
        "user_id": user,
        "time": minute * 60_000_000,
        "clicked": ["1"] * has_click,
        "skipped": ["2"],
        "history": [],
        "candidates": None,
    }


LOG = [
    impression(0, "U1", 9),
    impression(1, "U2", 5),
    impression(2, "U1", 7),
    impression(3, "U3", 9),
    impression(4, "U2", 9),
    impression(5, "U1", 8),
    impression(6, "U2", 10, has_click=False),
    impression(7, "U1", 1),
]


def test_both_engines_take_the_latest_or_the_last_of_each_user(tmp_path, engine_name):
    source = tmp_path / "source.parquet"
    schema = pa.schema([("row", pa.int64()), *IMPRESSIONS])
    pq.write_table(pa.Table.from_pylist(LOG, schema=schema), source)
    with open_engine(EngineConfig(engine=engine_name, memory=1), tmp_path) as engine:

        def divide(share, *, has_times):
            paths = tmp_path / "train.parquet", tmp_path / "valid.parquet"
            facts = set_aside(engine, source, *paths, share, has_times=has_times)
            parts = [pq.read_table(path) for path in paths]
            for part in parts:
                assert part["row"].to_pylist() == list(range(len(part)))
            return facts, *(part["impression_id"].to_pylist() for part in parts)

        # Three impressions have the same time: the later rows of the log are the latest.
        first, last = "1970-01-01 00:09:00", "1970-01-01 00:10:00"
        facts = SetAside(impressions=3, first_time=first, last_time=last)
        assert divide(3 / 8, has_times=True) == (facts, list("01257"), list("346"))
        # U3 has one impression only, and the last one of U2 has no click.
        facts = SetAside(impressions=2, first_time=None, last_time=None)
        assert divide(0.5, has_times=False) == (facts, list("123567"), list("04"))
        facts = SetAside(impressions=1, first_time=None, last_time=None)
        assert divide(1 / 8, has_times=False) == (facts, list("1234567"), list("0"))


def test_equal_times_are_no_times(tmp_path):
    source, train, valid = (tmp_path / f"{name}.parquet" for name in ("source", "train", "valid"))
    same = [one | {"time": 0} for one in LOG]
    pq.write_table(pa.Table.from_pylist(same, schema=pa.schema([("row", pa.int64()), *IMPRESSIONS])), source)
    with open_engine(EngineConfig(memory=1), tmp_path) as engine:
        facts = set_aside(engine, source, train, valid, 0.5, has_times=True)
        assert facts == SetAside(impressions=2, first_time=None, last_time=None)
        assert pq.read_table(valid)["impression_id"].to_pylist() == ["4", "7"]
        assert set_aside(engine, source, train, valid, 0.0, has_times=True) is None
