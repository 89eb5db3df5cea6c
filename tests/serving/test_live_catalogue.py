"""Graphs and exact search agree, whatever was added, replaced and removed before."""

import numpy as np
import pytest

from speedyfeed.scoring import Users
from speedyfeed.serving.journal import News
from speedyfeed.serving.live_catalogue import GraphConfig, LiveCatalogue, SearchFilter, build_index

WIDTH = 8
KINDS = ("a", "b", "c")


def some_news(first, num):
    return [News(news_id=f"N{n}", title=f"title {n}", category=KINDS[n % 3]) for n in range(first, first + num)]


def vectors(num, seed=0):
    return np.random.default_rng(seed).standard_normal((num, WIDTH)).astype(np.float32)


def build_catalogue(num, *, graphs_from=0, num_clicks=None):
    embeddings = vectors(num)
    return LiveCatalogue(
        some_news(0, num), embeddings, num_clicks, build_index(embeddings, GraphConfig(graphs_from=graphs_from))
    )


def names(catalogue, hits):
    return [catalogue.news(row).news_id for row in hits.rows.tolist()]


def user_of(query):
    """A user with one vector."""
    return Users.single(query[None])


def by_hand(news, query, k):
    """Ids of the k best articles; `news` maps ids to embeddings."""
    return sorted(news, key=lambda news_id: -float(news[news_id] @ query))[:k]


@pytest.fixture(params=[0, 1_000_000])
def catalogue(request):
    return build_catalogue(200, graphs_from=request.param)


def test_search_follows_what_is_added_replaced_and_removed(catalogue):
    there = dict(zip([f"N{n}" for n in range(200)], vectors(200), strict=True))
    for round_ in range(5):
        changed = some_news(20 * round_, 10) + some_news(1000 + 20 * round_, 20)
        rows = vectors(len(changed), seed=round_ + 1)
        catalogue.add(changed, rows)
        there |= {one.news_id: row for one, row in zip(changed, rows, strict=True)}
        for news_id in (f"N{150 + round_}", f"N{1000 + 20 * round_}"):
            assert catalogue.remove(news_id)
            del there[news_id]
        assert len(catalogue) == len(there)
        for query in vectors(10, seed=77):
            hits = catalogue.search(user_of(query), 10)
            assert names(catalogue, hits) == by_hand(there, query, 10)
            assert hits.scores == pytest.approx([there[name] @ query for name in names(catalogue, hits)], rel=1e-4)


def test_an_unknown_article_cannot_be_removed(catalogue):
    assert not catalogue.remove("nothing")
    assert catalogue.remove("N3")
    assert not catalogue.remove("N3")
    assert catalogue.row("N3") is None


def test_excluded_rows_are_replaced_by_the_next_best(catalogue):
    query = vectors(1, seed=3)[0]
    best = catalogue.search(user_of(query), 20)
    rest = catalogue.search(
        Users.single(query[None]), 10, SearchFilter(excluded_rows=frozenset(best.rows[:10].tolist()))
    )
    assert rest.rows.tolist() == best.rows[10:].tolist()


def test_asking_for_more_than_there_is_gives_all(catalogue):
    query = vectors(1, seed=3)[0]
    assert len(catalogue.search(user_of(query), 500).rows) == 200
    assert len(catalogue.search(user_of(query), 500, SearchFilter(excluded_rows=frozenset([1, 2]))).rows) == 198


def test_filters_by_category_and_age(catalogue):
    query = vectors(1, seed=3)[0]
    hits = catalogue.search(
        Users.single(query[None]), 300, SearchFilter(categories=frozenset(["a", "c", "no such"]))
    )
    assert len(hits.rows) == 200 - 67
    assert {catalogue.news(row).category for row in hits.rows.tolist()} == {"a", "c"}
    assert len(catalogue.search(user_of(query), 5, SearchFilter(categories=frozenset(["no such"]))).rows) == 0
    dated = [News(news_id=f"D{n}", title="", published=100.0 * n) for n in range(3)]
    catalogue.add(dated, vectors(3, seed=9))
    assert set(names(catalogue, catalogue.search(user_of(query), 10, SearchFilter(published_since=100.0)))) == {
        "D1",
        "D2",
    }


def test_candidates_are_scored_as_a_search_scores_them(catalogue):
    query = vectors(1, seed=3)[0]
    best = catalogue.search(user_of(query), 200)
    some = catalogue.score(user_of(query), [5, 9, 9, 120], SearchFilter(excluded_rows=frozenset([9])))
    assert set(some.rows.tolist()) == {5, 120}
    score_of = dict(zip(best.rows.tolist(), best.scores.tolist(), strict=True))
    assert some.scores == pytest.approx([score_of[row] for row in some.rows.tolist()], rel=1e-4)


def test_popularity_weighs_from_0_to_1():
    catalogue = build_catalogue(200, num_clicks=list(range(200)))
    query = vectors(1, seed=3)[0]
    by_match = catalogue.search(user_of(query), 5)
    assert (
        catalogue.search(user_of(query), 5, SearchFilter(popularity=1e-9)).rows.tolist() == by_match.rows.tolist()
    )
    assert catalogue.search(user_of(query), 5, SearchFilter(popularity=1.0)).rows.tolist() == [
        199,
        198,
        197,
        196,
        195,
    ]
    both = catalogue.search(user_of(query), 5, SearchFilter(popularity=0.5)).rows.tolist()
    assert both not in (by_match.rows.tolist(), [199, 198, 197, 196, 195])


def test_similar_is_by_angle_whatever_the_norm():
    embeddings = np.array([[1, 0], [9, 9], [0.01, 0.001], [-1, 0]], np.float32)
    catalogue = LiveCatalogue(some_news(0, 4), embeddings, None, None)
    hits = catalogue.similar(0, 3)
    assert hits.rows.tolist() == [2, 1, 3]
    assert hits.scores == pytest.approx([0.995, 0.7071, -1], abs=1e-3)


def test_categories_are_counted_without_the_removed():
    catalogue = build_catalogue(7)
    assert catalogue.categories() == {"a": 3, "b": 2, "c": 2}
    catalogue.remove("N0")
    catalogue.remove("N3")
    assert catalogue.categories() == {"b": 2, "c": 2, "a": 1}
