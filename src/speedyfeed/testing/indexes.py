"""The contract of indexes: what is found, added and removed."""

import numpy as np
from numpy.typing import NDArray

from speedyfeed.retrieval.index import BuildIndex, Embeddings, ExactIndex, Neighbours

WIDTH = 16
"""Width of the embeddings that the contract searches."""


class IndexContract:
    """What every index must do. Needs a fixture `build`: a function from ids and embeddings to an index."""

    def test_the_best_come_first_with_their_inner_products(self, build: BuildIndex) -> None:
        ids, embeddings = np.arange(300) * 3 + 1, some_embeddings(300)
        for num_queries in (1, 7):
            queries = some_embeddings(num_queries, seed=1)
            found = build(ids, embeddings).search(queries, 10)
            assert found.ids.shape == found.scores.shape == (num_queries, 10)
            for row, query in enumerate(queries):
                assert found.ids[row].tolist() == _best_ids(ids, embeddings, query, 10)
                np.testing.assert_allclose(found.scores[row], embeddings[(found.ids[row] - 1) // 3] @ query, 1e-5)

    def test_asking_for_more_than_there_is_gives_all(self, build: BuildIndex) -> None:
        index = build(np.array([5, 9]), some_embeddings(2))
        for queries in (some_embeddings(1, seed=1), some_embeddings(3, seed=1)):
            found = index.search(queries, 200)
            assert found.ids.shape == (len(queries), 2)
            assert {tuple(sorted(row)) for row in found.ids.tolist()} == {(5, 9)}

    def test_an_empty_index_finds_nothing(self, build: BuildIndex) -> None:
        index = build(np.zeros(0, np.int64), some_embeddings(0))
        assert len(index) == 0
        assert index.search(some_embeddings(3), 10).ids.shape == (3, 0)

    def test_no_query_no_answer(self, build: BuildIndex) -> None:
        assert build(np.array([5, 9]), some_embeddings(2)).search(some_embeddings(0), 1).ids.shape == (0, 1)

    def test_added_articles_are_found_like_the_first_ones(self, build: BuildIndex) -> None:
        ids, embeddings, queries = np.arange(1, 201), some_embeddings(200), some_embeddings(5, seed=1)
        index = build(ids[:120], embeddings[:120])
        index.add(ids[120:], embeddings[120:])
        assert len(index) == 200
        assert_same(index.search(queries, 10), build(ids, embeddings).search(queries, 10))

    def test_removed_articles_are_not_found_and_the_others_are(self, build: BuildIndex) -> None:
        ids, embeddings, queries = np.arange(1, 301), some_embeddings(300), some_embeddings(5, seed=1)
        index = build(ids, embeddings)
        removed = np.unique(index.search(queries, 3).ids)
        index.remove(removed)
        left = ~np.isin(ids, removed)
        expected = ExactIndex.build(ids[left], embeddings[left]).search(queries, 10)
        assert len(index) == left.sum()
        assert_same(index.search(queries, 10), expected)
        index.remove(np.append(removed, 1000))
        assert len(index) == left.sum(), "ids that are not in the index are ignored"

    def test_the_best_of_what_is_left_are_found_whoever_was_removed(self, build: BuildIndex) -> None:
        ids, embeddings, queries = np.arange(1, 401), some_embeddings(400), some_embeddings(3, seed=1)
        for num_removed in (30, 300, 395, 400):  # the nearest of one query
            both = build(ids, embeddings), ExactIndex.build(ids, embeddings)
            index, exact = both
            nearest = exact.search(queries[:1], num_removed).ids[0]
            for one in both:
                one.remove(nearest)
            assert len(index) == len(exact) == 400 - num_removed
            assert_same(index.search(queries, 10), exact.search(queries, 10))
            for one in both:
                one.add(np.arange(1001, 1021), some_embeddings(20, seed=2))
            assert_same(index.search(queries, 10), exact.search(queries, 10))

    def test_a_removed_article_can_be_added_again(self, build: BuildIndex) -> None:
        ids, embeddings, queries = np.arange(1, 51), some_embeddings(50), some_embeddings(5, seed=1)
        index = build(ids, embeddings)
        before = index.search(queries, 10)
        index.remove(ids[:5])
        index.add(ids[:5], embeddings[:5])
        assert len(index) == 50
        assert_same(index.search(queries, 10), before)


def some_embeddings(num: int, seed: int = 0) -> Embeddings:
    """Random embeddings that differ in norm, (num, 16)."""
    rng = np.random.default_rng(seed)
    norms = np.exp(rng.normal(0, 0.2, (num, 1)))
    return (norms * rng.standard_normal((num, WIDTH))).astype(np.float32)


def assert_same(a: Neighbours, b: Neighbours) -> None:
    """Check that two searches found the same articles with the same scores."""
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_allclose(a.scores, b.scores, rtol=1e-5)


def _best_ids(ids: NDArray[np.int64], embeddings: Embeddings, query: Embeddings, k: int) -> list[int]:
    scores = embeddings.astype(np.float64) @ query.astype(np.float64)
    return [int(ids[row]) for row in np.argsort(-scores)[:k]]
