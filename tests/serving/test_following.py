"""What makes several processes one service, each part alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.retrieval.rerank import PLAIN
from speedyfeed.serving.board import Board
from speedyfeed.serving.feedback import Feedback
from speedyfeed.serving.forwarding import head_of, parse_answer
from speedyfeed.serving.growing_rows import GrowingRows
from speedyfeed.serving.journal import Journal, News
from speedyfeed.serving.query import Query
from speedyfeed.serving.rules import Rule
from speedyfeed.serving.service import Service
from speedyfeed.serving.shared_metrics import SharedMetrics


@pytest.fixture
def pair(run, tmp_path, graphs):
    """A service that writes, and one that follows it."""
    claim = Journal(tmp_path).hand_over()
    writer, reader = (Service(run, tmp_path, graphs, shared=True) for _ in range(2))
    writer.take_over()
    for service in (writer, reader):
        service.open()
    yield writer, reader
    writer.close()
    reader.close()
    claim.release()


def assert_same(writer, reader):
    reader.follow()
    for query in (Query(k=100), Query(history=["N1", "new-3"], k=9), Query(history=["N5"], rerank=PLAIN, k=100)):
        first, second = (service.feed.recommend(query, rules=service.rules()) for service in (writer, reader))
        assert [(one.news, one.score) for one in first.ranked] == [(one.news, one.score) for one in second.ranked]
        assert first.unknown == second.unknown


def test_a_service_that_follows_answers_like_the_one_that_writes(pair):
    writer, reader = pair
    steps = [
        lambda: writer.add([News(news_id=f"new-{number}", title=f"title {number}") for number in range(40)]),
        lambda: writer.add([News(news_id="N2", title="N2 was changed", category="sport")]),
        lambda: writer.remove("new-7") and writer.remove("N9"),
        lambda: writer.give_feedback(Feedback(user_id="U", time=1.0, actions={"N4": "click", "N5": "skip"})),
        lambda: writer.set_rule(Rule(rule_id="a", kind="ban", category="sport", until=1e12)),
        lambda: writer.set_rule(Rule(rule_id="b", kind="boost", news_id="N5", weight=3.0, until=1e12)),
        lambda: writer.remove_rule("a"),
    ]
    for step in steps:
        step()
        assert_same(writer, reader)


def test_a_service_that_follows_loads_the_run_that_the_other_has_loaded(run, another_run, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(run)
    claim = Journal(tmp_path / "data").hand_over()
    writer, reader = (Service(link, tmp_path / "data", shared=True) for _ in range(2))
    writer.take_over()
    writer.open()
    link.unlink()
    link.symlink_to(another_run)
    reader.open()  # as after its predecessor was killed: the link has changed, but the service has not
    assert reader.feed.fingerprint == writer.feed.fingerprint
    writer.add([News(news_id="new-3", title="encoded by the first model")])
    reader.follow()
    writer.reload()
    assert reader.load_number < writer.load_number
    while reader.load_number < writer.load_number:
        reader.follow()
    assert reader.feed.fingerprint == writer.feed.fingerprint
    assert_same(writer, reader)
    for service in (writer, reader):
        service.close()
    claim.release()


def test_a_service_that_takes_over_has_seen_all_and_writes(pair):
    writer, reader = pair
    writer.add([News(news_id="new-3", title="not followed yet")])
    assert not reader.is_writer
    with pytest.raises(Exception, match="readonly"):
        reader.remove("N1")
    reader.take_over()
    assert reader.feed.catalogue.row("new-3") is not None
    assert reader.remove("new-3")
    writer.follow()
    assert writer.feed.catalogue.row("new-3") is None


@given(first=st.integers(0, 5), added=st.lists(st.integers(1, 1500), max_size=4))
def test_rows_left_where_they_are_grow_like_copied_ones(first, added):
    numbers = iter(range(10**6))
    start = np.array([[next(numbers)] * 3 for _ in range(first)], np.float32).reshape(first, 3)
    pair = [GrowingRows(start, is_copied=is_copied) for is_copied in (True, False)]
    for count in added:
        more = np.array([[next(numbers)] * 3 for _ in range(count)], np.float32)
        for rows in pair:
            rows.append(more)
    num_rows = first + sum(added)
    some = np.arange(num_rows)[:: max(1, num_rows // 7)]
    for rows in pair:
        np.testing.assert_array_equal(rows.take(some)[:, 0], some)
        np.testing.assert_array_equal(np.concatenate(rows.blocks(num_rows))[:, 0], np.arange(num_rows))
        assert sum(map(len, rows.blocks(num_rows // 2))) == num_rows // 2


def test_a_forwarded_head_is_as_it_was_sent_but_for_its_connection():
    scope = {
        "method": "POST",
        "raw_path": b"/v1/news/a%2Fb",
        "query_string": b"k=1",
        "headers": [
            (b"host", b"one.example"),
            (b"host", b"two.example"),
            (b"origin", b"http://evil.example"),
            (b"authorization", b"Bearer token"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"keep-alive"),
        ],
    }
    assert head_of(scope, 7).decode().split("\r\n") == [
        "POST /v1/news/a%2Fb?k=1 HTTP/1.1",
        "host: one.example",
        "host: two.example",
        "origin: http://evil.example",
        "authorization: Bearer token",
        "content-length: 7",
        "connection: close",
        "",
        "",
    ]


def test_an_answer_that_breaks_off_is_no_answer():
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nX-Worker: 0\r\nRetry-After: 1\r\n\r\n"
    answer = parse_answer(head, b"done")
    assert (answer.status_code, answer.body) == (201, b"done")
    assert answer.headers["retry-after"] == "1"
    assert "x-worker" not in answer.headers
    with pytest.raises(EOFError):
        parse_answer(head, b"don")


def test_metrics_of_all_workers_are_added_up_and_outlive_them(tmp_path):
    text = (
        "# HELP a_total Some.\n# TYPE a_total counter\n"
        'a_total{{route="/x y"}} {}\n# HELP b News.\n# TYPE b gauge\nb {}\n'
    )
    first, second = SharedMetrics(tmp_path, "0", 0), SharedMetrics(tmp_path, "0", 1)
    first.write(text.format(3.0, 12))
    assert second.total(text.format(4.0, 13)) == text.format(7.0, 13.0)
    successor = SharedMetrics(tmp_path, "0", 0)
    assert successor.total(text.format(1.0, 14)) == text.format(8.0, 14.0)
    assert SharedMetrics(tmp_path, "1", 0).total(text.format(1.0, 9)) == text.format(1.0, 9.0), "another run"


def test_metrics_are_written_by_several_threads_at_once(tmp_path):
    metrics = SharedMetrics(tmp_path, "0", 0)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(metrics.total, ["# TYPE a_total counter\na_total 1.0\n"] * 400)) == {
            "# TYPE a_total counter\na_total 1.0\n"
        }


def test_a_worker_that_has_ended_keeps_nobody_waiting():
    board = Board(3, 2)
    board.show(0, [4, 1])
    board.show(1, [3, 1])
    assert board.is_ready(0)
    assert not board.is_ready(2)
    assert board.has_reached(1, 1)
    assert not board.has_reached(0, 4)
    looks = board.looks()
    for worker in (0, 0, 1):
        board.count_look(worker)
    assert not board.have_looked_since(looks)  # the one look of worker 1 may have begun before
    board.count_look(1)
    assert board.have_looked_since(looks)
    assert not board.have_looked_since(board.looks())
    board.show(1, [0, 0])
    assert board.has_reached(0, 4)
    board.count_look(0)
    board.count_look(0)
    assert board.have_looked_since([4 - 2, 2, 0])
