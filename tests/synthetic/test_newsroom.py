"""The synthetic newsroom as files: its shape, its splits, its formats, and how it fails."""

import filecmp
import json
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from speedyfeed.data.tables import IMPRESSIONS, NEWS
from speedyfeed.errors import InputError
from speedyfeed.synthetic import Newsroom, SynthConfig, synthesize
from speedyfeed.synthetic.lexicon import load_lexicon, num_before

TINY = {"users": 200, "news": 400, "days": 6}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, Newsroom]:
    out = tmp_path_factory.mktemp("small") / "newsroom"
    return out, synthesize(out, SynthConfig())


@pytest.fixture(scope="module")
def paper(tmp_path_factory) -> tuple[Path, Newsroom]:
    """A quarter of the paper's days, and on each a twenty-fourth of its news."""
    out = tmp_path_factory.mktemp("paper") / "newsroom"
    config = SynthConfig(shape="paper", format="parquet", users=20_000, news=12_000, days=30)
    return out, synthesize(out, config)


def figures(newsroom: Newsroom) -> dict[str, float]:
    return {figure.name: figure.found for figure in newsroom.figures}


def read_mind(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("format", ["mind", "parquet"])
def test_same_seed_gives_the_same_bytes(tmp_path, format):
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(tmp_path / out, SynthConfig(**TINY, seed=seed, format=format))
    files = [str(file.relative_to(tmp_path / "a")) for file in (tmp_path / "a").rglob("*.*")]
    assert len(files) == 7
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", files, shallow=False)[0] == files
    assert not filecmp.cmpfiles(tmp_path / "a", tmp_path / "c", files, shallow=False)[0]


def test_clicks_have_the_long_tail_of_the_paper(paper):
    shares = {figure.name: figure for figure in paper[1].figures if figure.name.startswith("clicks on the top")}
    assert len(shares) == 6
    for figure in shares.values():
        assert figure.found == pytest.approx(figure.paper, abs=3), figure.name


def test_users_click_as_often_as_in_the_paper(paper):
    found = figures(paper[1])
    assert found["clicks per user"] == pytest.approx(15.27, rel=0.1)
    assert found["users with more than 100 clicks (%)"] == pytest.approx(3.26, rel=0.2)
    assert found["clicks per impression"] == pytest.approx(1.74, abs=0.1)


def test_news_are_as_long_as_in_the_paper(paper):
    found = figures(paper[1])
    assert found["words per title"] == pytest.approx(13, abs=0.5)
    assert found["words per abstract"] == pytest.approx(38, abs=1)
    assert found["words per article"] == pytest.approx(659.64, rel=0.02)


def test_most_of_dev_is_unseen_in_train(small, paper):
    for _, newsroom in (small, paper):
        assert figures(newsroom)["dev candidates unseen in train (%)"] > 60


def test_reading_pays_more_than_sections_and_popularity(small, paper):
    for _, newsroom in (small, paper):
        auc = {rung.name: rung.auc for rung in newsroom.ladder}
        assert 0.5 < auc["popularity"] < 0.6
        assert 0.56 < auc["sections"] < 0.65
        assert auc["sections"] + 0.12 < auc["true labels"] < auc["best possible"] - 0.03
        assert (auc["true labels and popularity"] - 0.5) / (auc["best possible"] - 0.5) > 0.75


def test_a_small_newsroom_has_its_ladder_from_all_dev_impressions(small):
    auc = {rung.name: rung.auc for rung in small[1].ladder}
    assert auc["popularity"] + 0.05 < auc["sections"]
    assert auc["best possible"] == pytest.approx(small[1].best_auc)
    assert auc["popularity"] == pytest.approx(small[1].popularity_auc)
    assert (auc["true labels and popularity"] - 0.5) / (auc["best possible"] - 0.5) > 0.8


def test_phrases_of_later_days_are_not_in_train(small):
    late = [
        predicate
        for phrases in load_lexicon().subtopics
        for predicate in phrases["predicate"][num_before(len(phrases["predicate"])) :]
    ]
    train, dev = ((small[0] / split / "news.tsv").read_text(encoding="utf-8") for split in ("train", "dev"))
    assert not any(predicate in train for predicate in late)
    assert sum(predicate in dev for predicate in late) > len(late) / 2


def test_figures_are_kept_beside_the_log(small):
    out, newsroom = small
    assert json.loads((out / "newsroom.json").read_text()) == json.loads(json.dumps(asdict(newsroom)))


def test_mind_files_hold_what_mind_holds(small):
    out, newsroom = small
    num_clicks = 0
    for split in ("train", "dev", "test"):
        news = read_mind(out / split / "news.tsv")
        assert all(len(row) == 8 for row in news)
        assert all(row[3] and row[4] for row in news)
        ids = {row[0] for row in news}
        assert len(ids) == len(news)
        rows = read_mind(out / split / "behaviors.tsv")
        assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
        used = set()
        for _, user, _, history, shown in rows:
            assert user[0] == "U"
            candidates = [candidate.rpartition("-") for candidate in shown.split(" ")]
            used |= {news_id for news_id, _, _ in candidates} | set(history.split())
            assert len({news_id for news_id, _, _ in candidates}) == len(candidates)
            assert {label for _, _, label in candidates} <= {"0", "1"}
            num_clicks += sum(label == "1" for _, _, label in candidates)
        assert used == ids
    assert 0 < num_clicks < newsroom.num_clicks  # the first days are histories only


def test_history_is_what_the_user_clicked_before_the_split(small):
    out, _ = small
    clicks: dict[str, list[str]] = {}
    for split in ("train", "dev", "test"):
        history_of: dict[str, list[str]] = {}
        for _, user, _, history, shown in read_mind(out / split / "behaviors.tsv"):
            if user not in history_of:
                history_of[user] = history.split()
                clicks.setdefault(user, history.split())
                assert sorted(clicks[user]) == sorted(history.split())
            assert history_of[user] == history.split()
            clicks[user] += [candidate[:-2] for candidate in shown.split() if candidate.endswith("-1")]
        assert len(history_of) > 500


def test_visits_of_a_user_come_in_order_of_time(small):
    for split in ("train", "dev", "test"):
        rows = read_mind(small[0] / split / "behaviors.tsv")
        visits = [(user, datetime.strptime(time, "%m/%d/%Y %I:%M:%S %p")) for _, user, time, _, _ in rows]
        assert all(user != other or time <= later for (user, time), (other, later) in pairwise(visits))
        assert len({user for user, _ in visits}) < len(visits)


def test_splits_follow_each_other_and_the_last_day_is_test(small):
    out, newsroom = small
    days = {}
    for split in ("train", "dev", "test"):
        rows = read_mind(out / split / "behaviors.tsv")
        days[split] = {datetime.strptime(row[2], "%m/%d/%Y %I:%M:%S %p").date() for row in rows}
    assert max(days["train"]) < min(days["dev"]) <= max(days["dev"]) < min(days["test"])
    assert (len(days["dev"]), len(days["test"])) == (2, 1)
    assert newsroom.num_test_impressions == len(rows)


def test_parquet_files_are_the_canonical_tables(paper):
    out, newsroom = paper
    counts = newsroom.num_train_impressions, newsroom.num_dev_impressions, newsroom.num_test_impressions
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        news = pq.read_table(out / split / "news.parquet")
        impressions = pq.read_table(out / split / "impressions.parquet")
        assert news.schema.equals(NEWS)
        assert impressions.schema.equals(IMPRESSIONS)
        assert impressions.num_rows == count
        for row in impressions.slice(0, 1000).to_pylist():
            assert sorted(row["candidates"]) == sorted(row["clicked"] + row["skipped"])
            assert row["clicked"]
            assert split != "train" or not row["history"]
    assert all(news["body"].to_pylist())


def test_a_crash_leaves_nothing_behind(tmp_path):
    def crash(stage, done, total):
        if stage == "write articles" and done:
            raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError, match="out of paper"):
        synthesize(tmp_path / "newsroom", SynthConfig(**TINY), crash)
    assert not list(tmp_path.iterdir())


def test_progress_reaches_its_total(tmp_path):
    seen = {}
    synthesize(
        tmp_path / "newsroom", SynthConfig(**TINY), lambda stage, done, total: seen.update({stage: (done, total)})
    )
    assert seen == {"write users": (200, 200), "write articles": (400, 400)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"users": 0}, "users 0: expected a number from 1"),
        ({"users": 1}, "users 1: too few"),
        ({"news": 50}, "news 50: expected 72 or more"),
        ({"days": 2}, "days 2: expected 3 or more"),
        ({"seed": -1}, "seed -1: expected a number from 0"),
        ({"shape": "huge"}, "shape 'huge': expected one of small, paper"),
        ({"format": "csv"}, "format 'csv': expected one of mind, parquet"),
    ],
)
def test_impossible_newsrooms_are_refused(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        synthesize(tmp_path / "newsroom", SynthConfig(**(TINY | wrong)))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        synthesize(tmp_path, SynthConfig(**TINY))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
