"""The speed-up: what is counted and scaled; how fast it is, no test can tell."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.speed import speedup
from benchmarks.speed.planned import cut, plan, repeat
from benchmarks.speed.speedup import (
    SpeedupConfig,
    count_conventional,
    deduplicated,
    our_run,
    switches,
    variants_of,
)
from speedyfeed.batching.batches import news_lengths
from speedyfeed.recipes import conventional


@pytest.fixture
def runs(tiny_encoder):
    """All variants with histories of at most 12 clicks."""
    ours = our_run(SpeedupConfig(encoder=str(tiny_encoder)))
    return variants_of(replace(ours, batch=replace(ours.batch, max_clicks=12, token_budget=1000)))


def planned(store, run, num_samples=3):
    return plan(store.train, run, news_lengths(store.news), most_batches=None, num_samples=num_samples)


def test_the_first_variant_is_conventional_and_the_last_is_ours(runs):
    names = list(runs)
    assert names[0] == "conventional"
    assert len(names) == 2 * len(switches(runs[names[-1]]))
    last, first = runs[names[-1]], runs["conventional"]
    twin = conventional(last)
    assert replace(twin, loss=last.loss, batch=replace(twin.batch, size=32), train=last.train) == first
    ours = our_run(SpeedupConfig())
    assert list(variants_of(ours).values())[-1] == ours


def test_all_variants_learn_from_every_click_with_negatives_of_its_own(store, runs):
    pools = [row[-12:] for row in np.split(store.train.click_pools, store.train.clicks.offsets[1:-1])]
    expected = (sum(int((row >= 0).sum()) for row in pools), sum(bool((row >= 0).any()) for row in pools))
    assert expected[1] > 100
    assert expected[0] < sum(map(len, pools))  # or there are no fallback negatives to leave out
    assert count_conventional(store, runs["conventional"]) == expected
    for name, run in runs.items():
        whole = planned(store, run)
        assert (whole.clicks, whole.users) == expected, name


def test_clicks_with_fallback_negatives_count_by_their_weight(store, runs):
    ours = runs["+ packing"]
    weighted = replace(ours, loss=replace(ours.loss, fallback_negatives_weight=0.25))
    without, found = planned(store, ours).clicks, planned(store, weighted).clicks
    every = int(np.minimum(store.train.clicks.lengths, 12).sum())
    assert without < every
    assert found == without + 0.25 * (every - without)


def test_a_deduplicated_conventional_batch_encodes_each_article_once(store, runs):
    slow = deduplicated(runs["conventional"])
    (batch,) = planned(store, slow, num_samples=1).samples
    assert len(batch.users_B) == slow.batch.size
    num_distinct = len(np.unique(np.concatenate([batch.encode_E, batch.cached_R])))
    assert batch.num_padded_tokens == num_distinct * int(news_lengths(store.news).max())
    assert planned(store, slow).padded_tokens < planned(store, runs["conventional"]).padded_tokens


def test_a_repeated_log_has_articles_and_users_in_proportion(store):
    lengths_V = news_lengths(store.news)
    train, more_V = repeat(store.train, lengths_V, 3)
    num_news, num_users = store.num_news, len(store.train.clicks)
    assert len(more_V) == 1 + 3 * num_news
    assert len(train.clicks) == 3 * num_users
    for user in (0, num_users - 1):
        for copy in range(3):
            row = user + copy * num_users
            assert train.clicks[row].tolist() == [copy * num_news + news for news in store.train.clicks[user]]
    counts = train.count_clicks(3 * num_news)[1:].reshape(3, -1)
    assert (counts == store.train.count_clicks(num_news)[1:]).all()
    click = int(np.flatnonzero(store.train.click_pools >= 0)[0])
    own = store.train.pools[store.train.click_pools[click]]
    theirs = train.pools[train.click_pools[click + 2 * len(store.train.click_pools)]]
    assert theirs.tolist() == [2 * num_news + news if news else 0 for news in own]
    assert (train.click_pools == -1).sum() == 3 * (store.train.click_pools == -1).sum()


def test_a_conventional_click_costs_a_full_history_of_full_texts(store, runs):
    config = runs["conventional"].batch
    whole = planned(store, runs["conventional"])
    per_click = (12 + 1 + config.negatives) * int(news_lengths(store.news).max())
    assert whole.padded_tokens == whole.clicks * per_click
    piece = cut(whole.samples[0], config, news_lengths(store.news), most_tokens=3 * per_click + 1)
    assert len(piece.batch.users_B) == 3
    assert piece.tokens == 3 * per_click
    assert piece.batch.num_clicks == 3


def test_pieces_count_as_the_planner_does(store, runs):
    lengths_V = news_lengths(store.news)
    for name, run in runs.items():
        for batch in planned(store, run).samples:
            assert cut(batch, run.batch, lengths_V, most_tokens=10**9).tokens == batch.num_padded_tokens, name


def test_pieces_are_never_larger_than_asked_or_one_click_of_one_instance(store, runs):
    lengths_V = news_lengths(store.news)
    run = runs["only autoregressive"]
    per_click = (1 + run.batch.negatives) * int(lengths_V.max())
    (batch,) = planned(store, run, num_samples=1).samples
    assert cut(batch, run.batch, lengths_V, most_tokens=2 * per_click).batch.history_BL.shape == (1, 2)
    assert cut(batch, run.batch, lengths_V, most_tokens=1).batch.history_BL.shape == (1, 1)


def test_samples_are_spread_over_the_epoch(store, runs):
    whole = planned(store, runs["+ central and batching"], num_samples=4)
    assert whole.batches > 64  # thinned out twice at least
    for position, batch in enumerate(whole.samples):
        assert position / 4 <= batch.step / whole.batches < (position + 1) / 4


def test_the_benchmark_gives_ratios_tables_and_a_figure(store, tiny_encoder, tmp_path, capsys):
    out = tmp_path / "out"
    options = {"--store": store.path, "--encoder": tiny_encoder, "--rounds": 1, "--out": out}
    main(["speedup", "--json", *(str(part) for option in options.items() for part in option)])
    figures = json.loads(capsys.readouterr().out)
    assert figures["overall"] > 1
    assert math.prod(figures["techniques"].values()) == pytest.approx(figures["overall"])
    assert set(figures["techniques"]) == set(figures["alone"]) >= set(speedup.PAPER_TECHNIQUES)
    assert figures["overall_range"][0] <= figures["overall"] * 1.0001
    assert figures["overall_range"][1] >= figures["overall"] * 0.9999
    assert 1 < figures["over_deduplicated"] < figures["overall"]
    assert figures["clicks"]["conventional"] == figures["clicks"]["ours"] > 0
    assert figures["users"]["conventional"] == figures["users"]["ours"] > 0
    assert figures["config"]["precision"] == "fp32"
    assert figures["machine"]["cores"] >= 1
    assert json.loads((out / "speedup.json").read_text()) == figures
    assert "| overall" in (out / "speedup.md").read_text()
    assert (out / "speedup.png").read_bytes().startswith(b"\x89PNG")
