"""The benchmarks that measure at several sizes: what they count."""

import json

import pytest

from benchmarks import newsroom
from benchmarks.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("newsrooms")


@pytest.fixture(autouse=True)
def few_days(monkeypatch):
    monkeypatch.setattr(newsroom, "DAYS", 3)


def measure(capsys, name, **options):
    arguments = [part for key, values in options.items() for part in (f"--{key}", *map(str, values))]
    main([name, "--json", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("forked_pools")
def test_preparing_is_measured_at_every_size(folder, tmp_path, capsys):
    figures = measure(capsys, "prepare", users=(600, 900), work=[folder], out=[tmp_path])
    rows = figures["rows"]
    assert [row["users"] for row in rows] == [600, 900]
    assert rows[0]["clicks"] < rows[1]["clicks"]
    assert all(row["rows_per_second"] > 0 and row["peak_megabytes"] > 0 for row in rows)
    assert sorted(path.name for path in folder.iterdir()) == ["newsroom-paper-600", "newsroom-paper-900"]
    assert (tmp_path / "prepare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("forked_pools")
def test_loading_is_measured_at_every_size(store, tiny_encoder, tmp_path, capsys):
    options = {"encoder": [tiny_encoder], "rounds": [1], "out": [tmp_path]}
    figures = measure(capsys, "loader", store=[store.path], copies=(1, 2), **options)
    rows = figures["rows"]
    users, clicks = len(store.train.clicks), int((store.train.click_pools >= 0).sum())
    assert [row["users"] for row in rows] == [users, 2 * users]
    assert [row["news"] for row in rows] == [store.num_news, 2 * store.num_news]
    assert rows[0]["clicks"] <= clicks
    assert rows[1]["clicks"] == 2 * rows[0]["clicks"]
    assert figures["cost_growth"] == rows[1]["tokens_per_click"] / rows[0]["tokens_per_click"]
    assert all(row["times_trainer"] > 0 for row in rows)
    assert (tmp_path / "loader.png").read_bytes().startswith(b"\x89PNG")


def test_growth_gives_cost_and_speed_up_at_every_size(store, tiny_encoder, tmp_path, capsys):
    options = {"encoder": [tiny_encoder], "rounds": [1], "out": [tmp_path], "recipes": ["speed-mini"]}
    figures = measure(capsys, "growth", store=[store.path], copies=(1, 3), **options)
    small, large = figures["rows"]
    assert (small["news"], large["news"]) == (store.num_news, 3 * store.num_news)
    assert small["cost_growth"] == 1
    assert large["cost_growth"] == large["tokens_per_click"] / small["tokens_per_click"]
    assert large["clicks"] == 3 * small["clicks"]
    for row in figures["rows"]:
        assert row["gamma"] == 20  # a small log
        assert 1 < row["over_deduplicated"][0] < row["speedup"][0]
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_newsroom_is_made_once(folder):
    config = newsroom.paper_shaped(600)
    made, again = (newsroom.make_newsroom(config, folder) for _ in range(2))
    assert made.logs == again.logs
    files = (made.logs / "newsroom.json", made.store.path / "manifest.json")
    before = [file.stat().st_mtime_ns for file in files]
    newsroom.make_newsroom(config, folder)
    assert [file.stat().st_mtime_ns for file in files] == before
