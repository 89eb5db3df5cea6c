"""Slow, silent and greedy clients of a real server."""

import asyncio
import contextlib
import http.client
import logging
import socket
import struct
import sys
import threading
import time

import pytest
import uvicorn

from speedyfeed.errors import InputError
from speedyfeed.serving.app import build_app
from speedyfeed.serving.connections import connection_class
from speedyfeed.serving.listeners import open_listeners
from speedyfeed.serving.middleware import Limits, WriteAccess
from speedyfeed.serving.service import Service

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LOOPS = ("uvloop", "asyncio")
PATIENT = Limits(max_connections=20, max_requests=5)
"""Their times are those of a real service: a machine that is busy for a moment breaks no test."""
HASTY = Limits(head_seconds=0.4, close_seconds=0.4)
"""For tests that wait until a connection is closed."""
RELEASED = threading.Event()


@pytest.fixture(scope="module", params=LOOPS)
def server(request, tmp_path_factory):
    """Port of a server that loads no run; health checks and refusals need none."""
    with serving(tmp_path_factory, request.param, PATIENT) as port:
        yield port


@pytest.fixture(scope="module", params=LOOPS)
def hasty_server(request, tmp_path_factory):
    """Port of such a server that soon closes slow connections."""
    with serving(tmp_path_factory, request.param, HASTY) as port:
        yield port


@contextlib.contextmanager
def serving(tmp_path_factory, loop, limits):
    """Port of a server that runs as long as the block."""
    service = Service(tmp_path_factory.mktemp("none"), tmp_path_factory.mktemp("data"))
    app = build_app(service, WriteAccess(None, "127.0.0.1"), limits=limits)

    @app.get("/test/slow")  # two parts: a path of one part belongs to the page
    async def slow() -> None:
        await asyncio.sleep(0.5)

    @app.get("/test/held")
    async def held() -> None:
        while not RELEASED.is_set():
            await asyncio.sleep(0.01)

    @app.get("/test/large")
    async def large() -> str:
        return "x" * (32 << 20)

    config = uvicorn.Config(app, port=0, loop=loop, http=connection_class(limits), ws="none", log_level="critical")
    made = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    made.should_exit = True
    thread.join()
    service.close()


def open_connection(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_all(connection):
    """Everything until the server closes; what a reset cuts off is lost."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def is_healthy(port):
    with open_connection(port) as connection:
        connection.sendall(GET + b"Connection: close\r\n\r\n")
        return read_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", GET, GET + b"X-Half: "], ids=["nothing", "newline", "head", "half"]
)
def test_a_head_that_does_not_come_is_closed_in_time(hasty_server, sent):
    with open_connection(hasty_server) as connection:
        connection.sendall(sent)
        start = time.monotonic()
        assert read_all(connection) == b""
        assert time.monotonic() - start < 5


def test_bytes_that_trickle_in_gain_no_time(hasty_server):
    with open_connection(hasty_server) as connection:
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 5:
                connection.sendall(b"\r\n")
                time.sleep(0.05)
        assert time.monotonic() - start < 5


def test_a_second_head_on_the_same_connection_has_the_same_time(hasty_server):
    with open_answered(hasty_server) as connection:
        connection.sendall(GET)
        start = time.monotonic()
        read_all(connection)
        assert time.monotonic() - start < 5


def open_answered(port):
    """A connection whose first request was answered; a busy machine may be too slow for that once."""
    for _ in range(10):
        connection = open_connection(port)
        connection.sendall(GET + b"\r\n")
        with contextlib.suppress(ConnectionError):
            if connection.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                return connection
        connection.close()
    raise AssertionError("no answer in ten connections")


def test_silent_connections_do_not_keep_others_out(server):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(open_connection(server)) for _ in range(3 * PATIENT.max_connections)]
        assert is_healthy(server)
        silent[0].settimeout(5)  # sooner than a head that does not come is closed
        assert silent[0].recv(1) == b""  # the oldest made room


def test_requests_in_progress_do_not_keep_health_checks_out(server):
    RELEASED.clear()
    with contextlib.ExitStack() as stack:
        stack.callback(RELEASED.set)
        busy = [stack.enter_context(open_connection(server)) for _ in range(PATIENT.max_requests)]
        for connection in busy:
            connection.sendall(b"GET /test/held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + 20
        refused = b""
        while not refused.startswith(b"HTTP/1.1 503") and time.monotonic() < deadline:  # until all five arrived
            with open_connection(server) as other:
                other.sendall(b"GET /app.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                refused = read_all(other)
            assert is_healthy(server)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refused
        RELEASED.set()
        assert all(connection.recv(1) for connection in busy)  # else they are in progress in the next test too


HEADS = {
    "one header": GET + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
    "many headers": GET + b"X: x\r\n" * 70_000 + b"\r\n",
    "address": b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "without end": GET + b"X: " + b"x" * 5_000_000,
    "after a body": b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\nX: " + b"x" * 5_000_000,
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_above_the_limit_is_refused(server, name):
    with open_connection(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(HEADS[name])
        answer = read_all(connection)
    if name != "after a body":  # that one is answered for its missing content type, or cut off
        assert answer.startswith(b"HTTP/1.1 431 "), answer
        assert answer.endswith(b'{"detail":"Address and headers of the request are longer than 65536 bytes."}')
    assert is_healthy(server)


def test_a_head_below_the_limit_is_accepted(server):
    with open_connection(server) as connection:
        connection.sendall(GET + b"X: " + b"x" * 60_000 + b"\r\nConnection: close\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_refused_in_json(server):
    with open_connection(server) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"detail":"This is not a valid HTTP request."}')


@pytest.mark.parametrize("rest", [b"chunked\r\n\r\nZZ\r\n", b"identity\r\n\r\n{}"], ids=["chunk", "coding"])
def test_a_body_that_is_no_http_is_refused_in_json(server, rest):
    with open_connection(server) as connection:
        connection.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + rest)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"detail":"This is not a valid HTTP request."}')
    assert is_healthy(server)


def test_a_broken_request_is_not_answered_inside_another_answer(server):
    with open_connection(server) as connection:
        connection.sendall(b"GET /test/slow HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"no HTTP\r\n\r\n")
        assert b"HTTP/1.1 400" not in read_all(connection)
    assert is_healthy(server)


def test_a_body_in_small_pieces_is_no_head(server):
    connection = http.client.HTTPConnection("127.0.0.1", server, timeout=20)
    pieces = (b"{}" if number == 0 else b" " * 10 for number in range(20_000))
    connection.request("POST", "/v1/recommend", pieces, {"content-type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 503  # nothing is loaded
    connection.close()


def test_a_body_announced_above_the_limit_is_refused_at_once(server):
    with open_connection(server) as connection:
        start = time.monotonic()
        connection.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 5000000\r\n\r\n"
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - start < 5


def test_a_client_that_takes_no_answer_is_cut_off(hasty_server):
    waits = (1, 4)  # a busy machine may need longer
    assert any(wait_and_read(hasty_server, seconds) < 32 << 20 for seconds in waits)


def wait_and_read(port, seconds):
    """Bytes of a large answer that are still there for a client that waits before it reads."""
    with open_connection(port) as connection:
        connection.sendall(b"GET /test/large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(seconds)
        return len(read_all(connection))


def test_a_client_that_leaves_with_requests_in_line_is_no_error(server, monkeypatch):
    failures = []
    monkeypatch.setattr(
        logging.getLogger("uvicorn.error"), "error", lambda *_, **__: failures.append(sys.exc_info())
    )
    with open_connection(server) as connection:
        large = b"GET /test/large HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(large + 2 * (GET + b"\r\n"))  # the second waits for room, the third for the second
        assert connection.recv(1)
        time.sleep(0.2)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves at once
    time.sleep(0.2)
    assert is_healthy(server)
    assert failures == []


def test_an_empty_host_is_not_taken_for_all_addresses():
    with pytest.raises(InputError, match="host '': is empty"):
        open_listeners("", 0)
