"""Models of item ids: their closed forms by hand, and what they can and cannot rank."""

import numpy as np
import pytest

from benchmarks.quality.id_models import IdModelsConfig, cosines, count_co_clicks, ease, measure, tables
from speedyfeed.errors import InputError
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.ragged import Ragged, offsets_of

CLICKS = [[1, 2, 2], [1, 2, 3], [3], [2, 3, 4], [1, 4]]


@pytest.fixture
def counts():
    values = np.concatenate([np.array(row, np.int32) for row in CLICKS])
    return count_co_clicks(Ragged(values=values, offsets=offsets_of(np.array(list(map(len, CLICKS))))), 4)


def test_co_clicks_and_cosines_by_hand(counts):
    assert counts[1, 2] == counts[2, 1] == 2
    assert np.diag(counts).tolist() == [0, 3, 3, 3, 2]
    assert cosines(counts)[1, 4] == pytest.approx(1 / np.sqrt(6))
    assert not np.diag(cosines(counts)).any()


def test_ease_is_ridge_regression_of_each_item_on_the_others(counts):
    users = np.zeros((len(CLICKS), 5))
    for row, items in enumerate(CLICKS):
        users[row, items] = 1
    weights = ease(counts, ridge=0.7)
    for item in range(1, 5):
        others = [other for other in range(1, 5) if other != item]
        X = users[:, others]
        expected = np.linalg.solve(X.T @ X + 0.7 * np.eye(3), X.T @ users[:, item])
        np.testing.assert_allclose(weights[item, others], expected, rtol=1e-5)
        assert weights[item, item] == 0


def test_ids_rank_what_was_clicked_and_nothing_else(tmp_path):
    # Items 0 to 9 are read in a circle; item 10 is clicked last by some users, and by nobody before.
    titles = [f"I{item},item {'ab'[item % 2]} number {item}" for item in range(11)]
    rows = []
    for user in range(40):
        clicks = [(user + place) % 10 for place in range(5)]
        clicks += [10] if user % 4 == 0 else [(user + 5) % 10]
        rows += [f"U{user},I{item},{1_700_000_000 + 60 * place}" for place, item in enumerate(clicks)]
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "items.csv").write_text("\n".join(["item_id,title", *titles]) + "\n")
    (logs / "interactions.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    store = prepare(logs, tmp_path / "store", PrepareConfig(split="last", refine="none")).store

    config = IdModelsConfig(store=store.path, work=tmp_path / "work", epochs=2, validations=0)
    figures = measure(config)
    assert figures.clicks == {"all": 40, "no clicks": 10, "1 to 4": 0, "5 up": 30}
    assert [model.name for model in figures.models] == [
        "popularity",
        "item-item",
        "EASE",
        "ids-gru",
        "ids-attention",
    ]
    for model in figures.models[1:3]:
        assert model.metrics["5 up"]["NDCG@10"] > model.metrics["no clicks"]["NDCG@10"]
    assert "no clicks (10)" in tables(figures)


def test_a_log_with_impressions_is_refused(store, tmp_path):
    with pytest.raises(InputError, match="expected a log of interactions"):
        measure(IdModelsConfig(store=store.path, work=tmp_path))
