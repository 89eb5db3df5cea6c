"""Raw logs to a store: what is in it, that engines agree, and that nothing half-made is ever left."""

import filecmp
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import ibis
import numpy as np
import pytest

from speedyfeed.checksums import SEAL, seal
from speedyfeed.cli.prepare import print_summary
from speedyfeed.data.manifest import MANIFEST
from speedyfeed.data.store import DOCUMENT_FREQUENCIES, open_store
from speedyfeed.errors import InputError
from speedyfeed.files import write_json
from speedyfeed.preparation import text
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.preparation.engine import open_engine
from speedyfeed.preparation.prepare import prepare, prepare_split
from speedyfeed.preparation.text import TextRules
from speedyfeed.tokenizers import load_tokenizer
from tests import forked


def make(logs, path, *, validation=0, **settings):
    return prepare(logs, path, PrepareConfig(validation=validation, **settings)).store


def test_a_log_becomes_a_store(mind_logs, tmp_path):
    store = make(mind_logs, tmp_path / "store")
    assert store.num_news == 5
    assert store.load_titles()["news_id"].to_pylist() == ["N1", "N2", "N3", "N4", "N5"]
    assert len(store.load_abstracts()) == 5
    assert any(store.load_abstracts())
    assert store.bodies is None  # MIND has none

    words = load_tokenizer("minilm").convert_ids_to_tokens
    news = store.news
    assert news.segments.tolist() == [0, 0, 2, 3, 5, 7, 8]
    assert words(news.tokens[0].tolist()) == ["[CLS]", "cat", "saw", "run", "[SEP]"]
    assert news.frequencies[:5].tolist() == [0, 2, 1, 1, 0]
    assert news.fields.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]

    users = store.load_users()["user_id"].to_pylist()
    assert users == ["U1", "U3"]  # the only click of U2 has no text
    assert [clicks.tolist() for clicks in store.train.clicks] == [[1, 4, 2], [5, 2, 4]]
    pools = [[] if pool < 0 else store.train.pools[pool].tolist() for pool in store.train.click_pools]
    assert pools == [[], [5], [3], [], [1], [1]]
    assert [store.train.pools[pool].tolist() for pool in store.train.user_pools] == [[5], [1]]

    dev = store.impressions("dev")
    assert [shown.tolist() for shown in dev.candidates] == [[3, 5, 0], [3, 1], [1, 3]]
    assert dev.labels.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert [dev.histories[user].tolist() for user in dev.users] == [[1, 4, 2], [1, 4, 2], []]
    assert len(dev.histories.values) == 3  # a history told twice is kept once
    assert store.load_impressions("dev")["impression_id"].to_pylist() == ["5", "6", "7"]
    store.verify()


def test_everything_read_is_kept_or_counted_as_dropped(mind_logs, tmp_path):
    counts = make(mind_logs, tmp_path / "store").manifest.counts
    assert counts.splits["train"].read == {
        "impressions": 4,
        "users": 3,
        "history_clicks": 5,
        "clicks": 5,
        "candidates": 10,
    }
    assert counts.splits["train"].kept == {
        "users": 2,
        "clicks": 6,
        "clicks_with_negatives": 4,
        "clicks_whose_negatives_lack_text": 0,
    }
    assert counts.splits["train"].dropped == {
        "history_clicks_without_text": 2,
        "clicks_without_text": 1,
        "candidates_without_text": 2,
        "impressions_without_click": 0,
        "impressions_without_label": 0,
        "users_without_click": 1,
    }
    assert counts.splits["dev"].dropped["candidates_without_text"] == 1
    assert (counts.news.read, counts.news.kept, counts.news.repeated) == (8, 5, 3)


def test_clicks_that_lose_all_negatives_for_lack_of_text_are_counted(mind_logs, tmp_path, capsys):
    with (mind_logs / "train" / "behaviors.tsv").open("a") as file:
        file.write("8\tU1\t11/12/2019 3:00:00 PM\t\tN3-1 N5-1 X1-1 X1-0 X2-0\n")  # two clicks
        file.write("9\tU3\t11/12/2019 4:00:00 PM\t\tN3-1\n")  # nothing else was shown
    store = make(mind_logs, tmp_path / "store")
    kept = store.manifest.counts.splits["train"].kept
    assert kept["clicks_whose_negatives_lack_text"] == 2
    assert kept["clicks"] - kept["clicks_with_negatives"] == 2 + 3  # two of histories, and the last one
    print_summary(store)
    assert ", 2 clicks whose negatives lack text\n" in capsys.readouterr().out


def test_unlabelled_impressions_are_kept_to_be_ranked(mind_logs, tmp_path):
    (mind_logs / "dev").rename(mind_logs / "test")
    behaviors = mind_logs / "test" / "behaviors.tsv"
    behaviors.write_text(behaviors.read_text("utf-8").replace("-0", "").replace("-1", ""), encoding="utf-8")
    store = make(mind_logs, tmp_path / "store")
    assert store.splits == ("train", "test")
    assert set(store.impressions("test").labels.tolist()) == {-1}


def test_without_refinement_stop_words_stay(mind_logs, tmp_path):
    news = make(mind_logs, tmp_path / "store", refine="none", fields=("title",), segment_tokens=6).news
    words = load_tokenizer("minilm").convert_ids_to_tokens
    assert words(news.tokens[0].tolist()) == ["[CLS]", "the", "cat", "saw", "the", "[SEP]"]
    assert news.segments.tolist() == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("engine_name", ["spark"], indirect=True)
def test_every_engine_writes_the_bytes_that_duckdb_writes(mind_logs, tmp_path, engine_name):
    for folder, engine in (("one", "duckdb"), ("other", engine_name)):
        prepare(mind_logs, tmp_path / folder, PrepareConfig(), EngineConfig(engine=engine, memory=1))
    compare_folders(tmp_path / "one", tmp_path / "other")


def compare_folders(one, other):
    files = sorted(file.relative_to(one) for file in one.rglob("*") if file.is_file())
    assert len(files) > 15
    assert files == sorted(file.relative_to(other) for file in other.rglob("*") if file.is_file())
    assert filecmp.cmpfiles(one, other, files, shallow=False)[1:] == ([], [])


def test_threads_and_memory_do_not_change_a_store(mind_logs, tmp_path):
    prepare(mind_logs, tmp_path / "one", PrepareConfig(), EngineConfig(threads=1, memory=1))
    prepare(mind_logs, tmp_path / "two", PrepareConfig(), EngineConfig(threads=2, memory=2))
    compare_folders(tmp_path / "one", tmp_path / "two")


def test_a_second_run_finds_the_store_up_to_date(mind_logs, tmp_path):
    assert prepare(mind_logs, tmp_path / "store", PrepareConfig()).is_new
    before = (tmp_path / "store" / MANIFEST).stat().st_mtime_ns
    assert not prepare(mind_logs, tmp_path / "store", PrepareConfig()).is_new
    assert (tmp_path / "store" / MANIFEST).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_tokens": 16}, "segment_tokens 32, asked for 16"),
        ({"refine": "none"}, "refine 'bm25', asked for 'none'"),
    ],
)
def test_a_store_of_other_settings_is_refused(mind_logs, tmp_path, settings, message):
    make(mind_logs, tmp_path / "store")
    with pytest.raises(InputError, match=f"{message}.*remove this one"):
        make(mind_logs, tmp_path / "store", **settings)


def test_a_store_of_other_logs_is_refused(mind_logs, tmp_path):
    make(mind_logs, tmp_path / "store")
    with (mind_logs / "train" / "behaviors.tsv").open("a") as file:
        file.write("9\tU9\t11/12/2019 1:00:00 PM\t\tN1-0 N2-1\n")
    with pytest.raises(InputError, match="other logs"):
        make(mind_logs, tmp_path / "store")


def test_a_store_of_another_version_is_refused(mind_logs, tmp_path):
    manifest = make(mind_logs, tmp_path / "store").manifest
    (tmp_path / "store" / MANIFEST).write_text(json.dumps(manifest.to_json() | {"store_version": 2}))
    with pytest.raises(InputError, match="version 2, expected 4; remove the store and prepare the log again"):
        open_store(tmp_path / "store")


def test_a_folder_that_is_no_store_is_refused(mind_logs, tmp_path):
    with pytest.raises(InputError, match="not a store"):
        open_store(mind_logs)
    with pytest.raises(InputError, match="not a store"):
        make(mind_logs, mind_logs)


def test_a_damaged_store_is_refused(mind_logs, tmp_path):
    store = make(mind_logs, tmp_path / "store")
    labels = store.path / "dev" / "labels.npy"
    data = labels.read_bytes()
    labels.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match="contents changed"):
        open_store(store.path).verify()
    labels.write_bytes(data[:-1])
    with pytest.raises(InputError, match="prepare the log again"):
        open_store(store.path)
    labels.unlink()
    with pytest.raises(InputError, match="no bytes"):
        open_store(store.path)


def test_opening_maps_and_does_not_read(mind_logs, tmp_path):
    store = open_store(make(mind_logs, tmp_path / "store").path)
    dev = store.impressions("dev")
    arrays = [store.news.tokens.values, store.train.clicks.values, dev.candidates.values, dev.histories.values]
    assert all(isinstance(array, np.memmap) for array in arrays)
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][0] = 1


def rules_of(store):
    return TextRules.of(store.text_facts, document_frequencies=store.path / DOCUMENT_FREQUENCIES, encoder="minilm")


def segments(store, news_id):
    """Tokens and frequencies of an article, segment by segment."""
    news = 1 + store.load_titles()["news_id"].to_pylist().index(news_id)
    first, end = store.news.segments[news : news + 2]
    offsets = store.news.tokens.offsets
    return [
        (
            store.news.tokens[segment].tolist(),
            store.news.frequencies[offsets[segment] : offsets[segment + 1]].tolist(),
        )
        for segment in range(first, end)
    ]


def test_later_logs_are_treated_by_the_rules_of_an_earlier_store(mind_logs, tmp_path):
    """Six words of room: which of a longer title stay depends on the statistics."""
    title = "budget budget cup goal storm over northern coast"
    with (mind_logs / "train" / "news.tsv").open("a") as file:
        file.writelines(f"E{n}\tworld\t\tbudget storm coast\t\t\t[]\t[]\n" for n in range(20))
        file.write(f"L1\tworld\t\t{title}\t\t\t[]\t[]\n")
    with (mind_logs / "train" / "behaviors.tsv").open("a") as file:
        shown = " ".join(f"E{n}-0" for n in range(20))
        file.write(f"9\tU9\t11/12/2019 1:00:00 PM\t\tL1-1 {shown}\n")
    before = make(mind_logs, tmp_path / "store", segment_tokens=7)
    later_news = [f"L{n}\tworld\t\t{title if n == 1 else 'cup goal north'}\t\t\t[]\t[]\n" for n in range(1, 9)]
    (tmp_path / "later" / "test").mkdir(parents=True)
    (tmp_path / "later" / "test" / "news.tsv").write_text("".join(later_news))
    behaviors = tmp_path / "later" / "test" / "behaviors.tsv"
    behaviors.write_text("1\tU1\t11/18/2019 8:00:00 AM\tN1 L2\tL1 X9 L3\n")
    later = prepare_split(tmp_path / "later", tmp_path / "likewise", rules_of(before), split="test")
    assert segments(later, "L1") == segments(before, "L1")
    assert later.manifest.statistics == before.manifest.statistics
    alone = TextRules(config=rules_of(before).config)
    own = prepare_split(tmp_path / "later", tmp_path / "own", alone, split="test")
    assert segments(own, "L1") != segments(before, "L1")
    test = later.impressions("test")
    assert [shown.tolist() for shown in test.candidates] == [[1, 0, 3]]
    assert test.labels.tolist() == [-1, -1, -1]
    assert [history.tolist() for history in test.histories] == [[2]]


@pytest.mark.parametrize("folder", [".", "dev", "MINDsmall_dev", "train"])
def test_one_split_is_enough_to_rank(mind_logs, tmp_path, folder):
    """A folder of splits with or without train, or a folder that is the split, whatever it is called."""
    rules = rules_of(make(mind_logs, tmp_path / "store"))
    logs = mind_logs / folder
    if folder == ".":
        shutil.rmtree(mind_logs / "train")
    elif folder != "dev":
        shutil.rmtree(logs, ignore_errors=True)
        shutil.copytree(mind_logs / "dev", logs)
    store = prepare_split(logs, tmp_path / "other", rules, split="dev")
    assert store.splits == ("dev",)
    assert store.impressions("dev").labels.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert store.num_news == 3


def test_logs_without_histories_still_learn_them_from_train(mind_logs, tmp_path):
    rules = rules_of(make(mind_logs, tmp_path / "store"))
    behaviors = mind_logs / "dev" / "behaviors.tsv"
    behaviors.write_text(behaviors.read_text("utf-8").replace("N1 N4 N2", ""), encoding="utf-8")
    store = prepare_split(mind_logs, tmp_path / "other", rules)
    assert store.splits == ("train", "dev")
    dev = store.impressions("dev")
    assert dev.histories[dev.users[0]].tolist() == [1, 4, 2]


def test_a_folder_of_train_alone_has_nothing_to_rank(mind_logs, tmp_path):
    rules = rules_of(make(mind_logs, tmp_path / "store"))
    shutil.rmtree(mind_logs / "dev")
    with pytest.raises(InputError, match="found only train, expected dev or test"):
        prepare_split(mind_logs, tmp_path / "other", rules)


def test_the_split_to_rank_is_the_one_asked_for_or_the_preferred_one(mind_logs, tmp_path):
    rules = rules_of(make(mind_logs, tmp_path / "store"))
    with pytest.raises(InputError, match="no split 'test' to rank, only dev"):
        prepare_split(mind_logs, tmp_path / "other", rules, split="test")
    shutil.copytree(mind_logs / "dev", mind_logs / "test")
    for number, prefer in enumerate((("dev", "test"), ("test", "dev"))):
        store = prepare_split(mind_logs, tmp_path / str(number), rules, prefer=prefer)
        assert store.splits == ("train", prefer[0])


PREPARE = [sys.executable, "-m", "speedyfeed", "prepare"]


def test_a_full_disk_leaves_nothing_behind(mind_logs, tmp_path):
    def allow_small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    out = tmp_path / "out"
    run = subprocess.run(
        [*PREPARE, mind_logs, out / "store"], preexec_fn=allow_small_files_only, capture_output=True, text=True
    )
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.splitlines()[-1].startswith("speedyfeed: ")
    assert list(out.iterdir()) == []


def test_a_disk_that_fills_up_inside_the_engine_is_one_line(tmp_path):
    with (
        pytest.raises(InputError, match="ran out of room"),
        open_engine(EngineConfig(memory=1), tmp_path) as engine,
    ):
        engine.save(ibis.memtable({"row": [1]}), "no/such/folder")
    with (
        pytest.raises(InputError, match="ran out of room"),
        open_engine(EngineConfig(memory=1), tmp_path) as engine,
    ):
        engine.backend.raw_sql("SET temp_directory = ''")
        engine.backend.raw_sql("SET memory_limit = '20MB'")
        engine.save(ibis.range(5_000_000).unnest().name("row").as_table().order_by(ibis._.row.desc()), "rows")


def test_a_killed_run_leaves_no_store_and_the_next_one_cleans_up(mind_logs, tmp_path):
    out = tmp_path / "out"
    process = forked.Popen([*PREPARE, mind_logs, out / "store"], stderr=forked.DEVNULL)
    while process.poll() is None and not list(out.glob(".store.partial-*/scratch/*")):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (out / "store").exists()
    assert len(list(out.iterdir())) == 1
    make(mind_logs, out / "store")
    assert [path.name for path in out.iterdir()] == ["store"]


def test_texts_of_an_earlier_text_version_are_never_mixed_with_those_of_this_one(mind_logs, tmp_path, caplog):
    """Such a store stays readable, and so does its model, which says that articles are read otherwise now."""
    store = make(mind_logs, tmp_path / "first")
    manifest = json.loads((store.path / MANIFEST).read_text("utf-8"))
    del manifest["settings"]["text_version"], manifest[SEAL]  # as stores were written before there was a number
    write_json(store.path / MANIFEST, seal(manifest))
    earlier = open_store(store.path)
    assert len(earlier.news.tokens) > 5
    with pytest.raises(InputError, match="found tokens of text version 1, expected 2"):
        prepare(mind_logs, tmp_path / "second", PrepareConfig(validation=0), like=earlier.path)
    with pytest.raises(InputError, match="was prepared with text_version 1, asked for 2"):
        make(mind_logs, earlier.path)
    text._warn_of_version.cache_clear()
    prepare_split(mind_logs, tmp_path / "third", rules_of(earlier), split="dev")
    assert "text version 1" in caplog.text
    caplog.clear()
    prepare_split(mind_logs, tmp_path / "fourth", rules_of(store), split="dev")
    assert not caplog.text


def test_a_later_store_has_the_rules_and_the_words_of_an_earlier_one(mind_logs, tmp_path):
    first = make(mind_logs, tmp_path / "first", segment_tokens=16)
    for news in mind_logs.glob("*/news.tsv"):
        news.write_text(news.read_text("utf-8").replace("up", "ranium"), encoding="utf-8")  # of cup and Cup
    config = PrepareConfig(validation=0)
    second = prepare(mind_logs, tmp_path / "second", config, like=first.path).store
    assert second.text_facts.vocabulary_checksum == first.text_facts.vocabulary_checksum
    assert second.manifest.statistics == first.manifest.statistics
    assert second.manifest.settings.segment_tokens == 16
    assert second.manifest.counts.vocabulary_size == first.manifest.counts.vocabulary_size
    assert filecmp.cmp(first.path / DOCUMENT_FREQUENCIES, second.path / DOCUMENT_FREQUENCIES, shallow=False)
    second.verify()
    alone = make(mind_logs, tmp_path / "alone", segment_tokens=16)
    assert alone.text_facts.vocabulary_checksum != first.text_facts.vocabulary_checksum

    assert not prepare(mind_logs, tmp_path / "second", config, like=first.path).is_new
    with pytest.raises(InputError, match="was prepared with like"):
        prepare(mind_logs, tmp_path / "second", PrepareConfig(validation=0, segment_tokens=16))
    with pytest.raises(InputError, match=r"found --segment-tokens beside it, expected none of the text options"):
        prepare(mind_logs, tmp_path / "third", PrepareConfig(segment_tokens=16), like=first.path)
