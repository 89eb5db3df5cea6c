"""Every index passes the same suite; the graph is near exact search."""

import numpy as np
import pytest

from speedyfeed.errors import InputError
from speedyfeed.retrieval import index as index_module
from speedyfeed.retrieval.hnsw import HnswConfig, HnswIndex
from speedyfeed.retrieval.index import ExactIndex, Neighbours, overlap
from speedyfeed.retrieval.storage import cached_in, open_index
from speedyfeed.testing import IndexContract
from speedyfeed.testing.indexes import WIDTH, assert_same
from speedyfeed.testing.indexes import some_embeddings as vectors


@pytest.fixture(params=[ExactIndex, HnswIndex])
def kind(request):
    return request.param


class TestIndex(IndexContract):
    @pytest.fixture
    def build(self, kind):
        return kind.build


class TestMappedIndex(IndexContract):
    @pytest.fixture
    def build(self, kind, tmp_path):
        def build_and_open(ids, embeddings):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            kind.build(ids, embeddings).save(folder)
            return open_index(folder)

        return build_and_open


def test_where_few_are_left_of_a_cluster_a_search_goes_on_along_the_graph(tmp_path, monkeypatch):
    ids, embeddings = np.arange(1, 2001), vectors(2000)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    HnswIndex.build(ids, embeddings, HnswConfig(connectivity=8)).save(tmp_path / "index")
    mapped, exact = open_index(tmp_path / "index"), ExactIndex.build(ids, embeddings)
    nearest = exact.search(embeddings[:1], 30).ids[0]
    mapped.remove(nearest)
    exact.remove(nearest)
    expected = exact.search(embeddings[:1], 10)
    monkeypatch.setattr(ExactIndex, "search", None)
    assert_same(mapped.search(embeddings[:1], 10), expected)


def test_a_saved_index_opens_as_it_was_and_can_grow(kind, tmp_path):
    ids, embeddings, queries = np.arange(1, 201), vectors(200), vectors(5, seed=1)
    index = kind.build(ids[:150], embeddings[:150])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, kind)
    assert_same(opened.search(queries, 10), index.search(queries, 10))
    opened.add(ids[150:], embeddings[150:])
    assert_same(opened.search(queries, 10), kind.build(ids, embeddings).search(queries, 10))


def test_settings_of_a_graph_are_saved_with_it(tmp_path):
    config = HnswConfig(norm_ranges=2, connectivity=9, expansion_add=70, expansion_search=90)
    HnswIndex.build(np.arange(1, 51), vectors(50), config).save(tmp_path / "index")
    for graph in open_index(tmp_path / "index")._mapped:
        assert len(graph) == 25
        assert (graph.connectivity, graph.expansion_add, graph.expansion_search) == (9, 70, 90)


def test_more_news_make_more_graphs_not_larger_ones():
    config = HnswConfig(norm_ranges=2, range_news=50, graph_news=100)
    for num_news, expected in ((60, 2), (101, 3), (300, 6)):
        index = HnswIndex.build(np.arange(1, num_news + 1), vectors(num_news), config)
        assert index.parameters["graphs"] == len(index._graphs) == expected
        assert max(len(graph) for graph in index._graphs) <= 50


def test_news_of_equal_norm_go_to_graphs_by_their_ids(tmp_path):
    embeddings, queries = vectors(301), vectors(5, seed=1)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    ids = np.arange(1, 302)
    index = HnswIndex.build(ids[:300], embeddings[:300], HnswConfig(graph_news=100))
    assert [len(graph) for graph in index._graphs] == [100, 100, 100]
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    opened.add(ids[300:], embeddings[300:])
    assert_same(opened.search(queries, 10), ExactIndex.build(ids, embeddings).search(queries, 10))


def test_an_index_is_cached_and_opened_where_the_news_are_the_same(tmp_path, monkeypatch):
    ids, embeddings, queries = np.arange(1, 101), vectors(100), vectors(5, seed=1)
    build = cached_in(tmp_path / "index")
    found = build(ids, embeddings).search(queries, 10)
    other = build(ids[:50], embeddings[:50])
    assert len(other) == 50
    assert len(list((tmp_path / "index").iterdir())) == 1  # the older one is gone
    assert_same(build(ids, embeddings).search(queries, 10), found)
    monkeypatch.setattr(HnswIndex, "build", None)
    assert_same(build(ids, embeddings).search(queries, 10), found)
    for changed in ((ids, embeddings + 1e-6), (ids + 1, embeddings)):
        with pytest.raises(TypeError, match="not callable"):
            build(*changed)


def test_news_of_equal_norm_share_a_graph():
    embeddings = np.tile(np.eye(WIDTH, dtype=np.float32), (2, 1))
    index = HnswIndex.build(np.arange(1, 33), embeddings)
    assert [len(graph) for graph in index._graphs] == [32]
    assert sorted(index.search(embeddings[3:4], 2).ids[0]) == [4, 20]


def test_a_folder_that_holds_no_index_is_refused(kind, tmp_path):
    with pytest.raises(InputError, match="not an index"):
        open_index(tmp_path)
    kind.build(np.arange(1, 51), vectors(50)).save(tmp_path / "index")
    for file in (tmp_path / "index").iterdir():
        if file.suffix != ".json":
            file.write_bytes(b"")
    with pytest.raises(InputError, match="is damaged"):
        open_index(tmp_path / "index")


def test_exact_search_in_blocks_equals_one_block(monkeypatch):
    ids, embeddings, queries = np.arange(1, 301), vectors(300), vectors(23, seed=1)
    whole = ExactIndex.build(ids, embeddings).search(queries, 40)
    monkeypatch.setattr(index_module, "_QUERIES", 5)
    monkeypatch.setattr(index_module, "_NEWS", 17)  # less than k
    assert_same(ExactIndex.build(ids, embeddings).search(queries, 40), whole)


def test_the_graph_is_near_exact_search_on_clustered_news():
    """Stories within topics, users between a few stories; one graph by plain inner product stays below .95."""
    draws = np.random.default_rng(3)
    spectrum = (1 + np.arange(256)) ** -0.5
    topics = draws.standard_normal((40, 256))
    stories = topics[draws.integers(0, 40, 150)] + 0.8 * draws.standard_normal((150, 256))
    news = (stories[draws.integers(0, 150, 4000)] + 0.5 * draws.standard_normal((4000, 256))) * spectrum
    news *= np.exp(draws.normal(0, 0.4, (4000, 1))) / np.linalg.norm(news, axis=1, keepdims=True)
    news = news.astype(np.float32)
    users = np.stack([news[draws.integers(0, 4000, 3)].mean(0) for _ in range(100)])
    ids = np.arange(1, 4001)
    exact = ExactIndex.build(ids, news).search(users, 200)
    assert overlap(HnswIndex.build(ids, news).search(users, 200), exact) >= 0.98


def test_overlap_is_the_share_of_exact_results_found_for_the_same_query():
    def neighbours(ids):
        return Neighbours(ids=np.array(ids), scores=np.zeros(np.shape(ids), np.float32))

    exact = neighbours([[1, 2], [3, 4]])
    assert overlap(exact, exact) == 1.0
    assert overlap(neighbours([[2, 1], [4, 9]]), exact) == 0.75
    assert overlap(neighbours([[3, 4], [1, 2]]), exact) == 0.0  # right news for the wrong query
    assert overlap(neighbours([[0, 0], [0, 3]]), exact) == 0.25


@pytest.mark.parametrize("name", ["0.usearch", "index.json", "checksums.json"])
def test_a_damaged_cache_is_rebuilt(tmp_path, name, caplog):
    ids, embeddings = np.arange(1, 51), vectors(50)
    build = cached_in(tmp_path / "cache")
    expected = build(ids, embeddings).search(embeddings[:3], 5).ids
    (folder,) = (tmp_path / "cache").iterdir()
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 0x80
    (folder / name).write_bytes(content)
    assert (build(ids, embeddings).search(embeddings[:3], 5).ids == expected).all()
    assert "is rebuilt" in caplog.text
    caplog.clear()
    build(ids, embeddings)
    assert not caplog.text


def test_a_mapped_graph_finds_the_best_of_what_is_left_and_what_was_added(tmp_path):
    ids, embeddings = np.arange(1, 401), vectors(400)
    queries = embeddings[:20] + 0.1
    built = HnswIndex.build(ids, embeddings)
    built.save(tmp_path / "index")
    mapped = open_index(tmp_path / "index")
    exact = ExactIndex.build(ids, embeddings)
    for step in range(3):  # each removes the best of all queries, and adds them again under other ids
        best = np.unique(exact.search(queries, 5).ids)
        again = exact._embeddings[np.isin(exact._ids, best)]
        for index in (mapped, exact):
            index.remove(best)
        assert len(mapped) == len(exact)
        assert_same(mapped.search(queries, 10), exact.search(queries, 10))
        more = np.arange(1000 * (step + 1), 1000 * (step + 1) + len(again))
        for index in (mapped, exact):
            index.add(more, again + 0.01)
        assert_same(mapped.search(queries, 10), exact.search(queries, 10))
    assert len(open_index(tmp_path / "index")) == 400
