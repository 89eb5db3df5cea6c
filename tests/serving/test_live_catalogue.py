"""Graphs and exact search agree, whatever was added, replaced and removed before."""

import numpy as np
import pytest

from speedyfeed.retrieval.storage import open_index
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


def search(catalogue, query, k, search_filter=None):
    """Hits of one query."""
    return catalogue.search(query[None], k, search_filter)[0]


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
            hits = search(catalogue, query, 10)
            assert names(catalogue, hits) == by_hand(there, query, 10)
            assert hits.scores == pytest.approx([there[name] @ query for name in names(catalogue, hits)], rel=1e-4)


@pytest.mark.parametrize("num_added", [0, 100])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_articles_are_found_behind_a_removed_cluster(is_mapped, num_added, tmp_path):
    embeddings = vectors(1000)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)  # one graph
    there = dict(zip([f"N{n}" for n in range(1000)], embeddings, strict=True))
    index = build_index(embeddings, GraphConfig(graphs_from=0))
    if is_mapped:
        index.save(tmp_path / "index")
        index = open_index(tmp_path / "index")
    catalogue = LiveCatalogue(some_news(0, 1000), embeddings, None, index)
    query = there["N7"]
    for news_id in by_hand(there, query, 200):
        assert catalogue.remove(news_id)
        del there[news_id]
    more, rows = some_news(1000, num_added), 0.5 * vectors(num_added, seed=1)
    catalogue.add(more, rows)
    there |= {one.news_id: row for one, row in zip(more, rows, strict=True)}
    assert names(catalogue, search(catalogue, query, 20)) == by_hand(there, query, 20)


def test_an_unknown_article_cannot_be_removed(catalogue):
    assert not catalogue.remove("nothing")
    assert catalogue.remove("N3")
    assert not catalogue.remove("N3")
    assert catalogue.row("N3") is None


def test_excluded_rows_are_replaced_by_the_next_best(catalogue):
    query = vectors(1, seed=3)[0]
    best = search(catalogue, query, 20)
    rest = search(catalogue, query, 10, SearchFilter(excluded_rows=frozenset(best.rows[:10].tolist())))
    assert rest.rows.tolist() == best.rows[10:].tolist()


def test_asking_for_more_than_there_is_gives_all(catalogue):
    query = vectors(1, seed=3)[0]
    assert len(search(catalogue, query, 500).rows) == 200
    assert len(search(catalogue, query, 500, SearchFilter(excluded_rows=frozenset([1, 2]))).rows) == 198


def test_filters_by_category_and_age(catalogue):
    query = vectors(1, seed=3)[0]
    hits = search(catalogue, query, 300, SearchFilter(categories=frozenset(["a", "c", "no such"])))
    assert len(hits.rows) == 200 - 67
    assert {catalogue.news(row).category for row in hits.rows.tolist()} == {"a", "c"}
    assert len(search(catalogue, query, 5, SearchFilter(categories=frozenset(["no such"]))).rows) == 0
    dated = [News(news_id=f"D{n}", title="", published=100.0 * n) for n in range(3)]
    catalogue.add(dated, vectors(3, seed=9))
    assert set(names(catalogue, search(catalogue, query, 10, SearchFilter(published_since=100.0)))) == {"D1", "D2"}


def test_candidates_pass_the_filter_once_each(catalogue):
    some = catalogue.passing([120, 5, 9, 9, 5], SearchFilter(excluded_rows=frozenset([9])))
    assert some.tolist() == [5, 120]
    assert catalogue.passing([3, 4, 5], SearchFilter(excluded_categories=frozenset("a"))).tolist() == [4, 5]


def test_several_queries_and_the_most_clicked_are_retrieved_together(catalogue):
    queries = vectors(3, seed=3)
    rows = catalogue.retrieve(queries, 7)
    assert rows.tolist() == sorted({row for query in queries for row in search(catalogue, query, 7).rows.tolist()})
    assert catalogue.retrieve(queries, 7, popular=True).tolist() == rows.tolist()  # no clicks are known


def test_clicks_since_the_start_count_as_popularity():
    catalogue = build_catalogue(200, num_clicks=[1] * 200)
    query = vectors(1, seed=3)
    known = set(catalogue.retrieve(query, 3).tolist())
    for news_id in ("N8", "N8", "N9", "no such"):
        catalogue.count_click(news_id)
    assert set(catalogue.retrieve(query, 2, popular=True).tolist()) - known == {8, 9}
    only_c = SearchFilter(categories=frozenset("c"))
    assert 8 in catalogue.retrieve(query, 1, only_c, popular=True)
    assert catalogue.clicks(np.array([8, 9, 10])).tolist() == [3, 2, 1]
    catalogue.remove("N8")
    assert 8 not in catalogue.retrieve(query, 200, popular=True)
    assert catalogue.section_clicks().sum() == 200 + 200 + 3


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
