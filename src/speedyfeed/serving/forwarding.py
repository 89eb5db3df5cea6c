"""Writes that reach a worker which only follows: it asks the one that writes, and hands its answer on.

    client --POST /v1/news--> worker 1 --the same head and body, over a Unix socket--> worker 0 --> journal
           <------ 201 -------         <---------------------- 201 -------------------

Both check who may write: the first refuses at once what may not, and the second sees the request as the client
sent it, its token, origin and host included. All workers hold the listening socket of the one that writes, so
requests wait there while another worker takes over.

A write is answered once all workers show it, so that whoever wrote it finds it wherever the next request arrives.
"""

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speedyfeed.serving.board import Board
from speedyfeed.serving.middleware import WriteAccess
from speedyfeed.serving.service import Service

WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")
READ_PATHS = ("/v1/recommend",)
"""Ends of paths that a write method only reads at."""
OF_CONNECTION = (
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"content-length",
    b"expect",
    b"upgrade",
    b"te",
)
"""Headers of a request that concern the connection of the client alone."""
OF_SERVER = (b"date", b"connection", b"content-length", b"x-worker")
"""Headers of an answer that each worker adds itself."""
SHOWN_SECONDS = 5.0
"""Time after which a write is answered though a worker may not show it yet."""
POLL_SECONDS = 0.01
"""Time between two looks at what the others show."""
LOST = "The process that writes has ended; whether this was written is not known."


@dataclass(frozen=True, slots=True)
class WriterRoute:
    """What a forwarded request is counted as."""

    path_format: str = "forwarded"


class WriteForwarding:
    """ASGI middleware that sends writes to the worker which writes; it answers once all workers show them."""

    def __init__(
        self, app: ASGIApp, service: Service, write_access: WriteAccess, socket: Path, board: Board
    ) -> None:
        """`socket` is the Unix socket that the worker which writes accepts from."""
        self._app = app
        self._service = service
        self._write_access = write_access
        self._socket = socket
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_write(scope):
            await self._app(scope, receive, send)
            return
        if self._service.is_writer:
            await self._app(scope, receive, self._when_shown(send))
            return
        scope["route"] = WriterRoute()
        request = Request(scope, receive)
        try:
            self._write_access(request)
            answer = await self._forward(scope, await request.body())
        except HTTPException as error:
            answer = JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            answer = JSONResponse({"detail": LOST}, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "1"})
        await answer(scope, receive, send)

    def _when_shown(self, send: Send) -> Send:
        """Send the answer once all workers show what was written."""

        async def send_later(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
                looks, deadline = self._board.looks(), time.monotonic() + SHOWN_SECONDS
                while not self._board.have_looked_since(looks) and time.monotonic() < deadline:
                    await asyncio.sleep(POLL_SECONDS)
            await send(message)

        return send_later

    async def _forward(self, scope: Scope, body: bytes) -> Response:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(head_of(scope, len(body)) + body)
            await writer.drain()
            return parse_answer(await reader.readuntil(b"\r\n\r\n"), await reader.read())
        finally:
            writer.close()


def is_write(scope: Scope) -> bool:
    """Whether a request may change something, by its head."""
    return scope["method"] in WRITE_METHODS and not scope["path"].endswith(READ_PATHS)


def head_of(scope: Scope, num_bytes: int) -> bytes:
    """Head of a request as it was sent, for a body of this size on a connection of its own."""
    target: bytes = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = [b"%b: %b" % pair for pair in scope["headers"] if pair[0].lower() not in OF_CONNECTION]
    lines = [
        b"%b %b HTTP/1.1" % (scope["method"].encode("ascii"), target),
        *headers,
        b"content-length: %d" % num_bytes,
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", b""])


def parse_answer(head: bytes, body: bytes) -> Response:
    """The answer of another worker, which closes the connection at its end."""
    status, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    announced = int(dict(headers)[b"content-length"])
    if announced != len(body):
        raise asyncio.IncompleteReadError(body, announced)
    answer = Response(body, int(status.split()[1]))
    answer.raw_headers += [pair for pair in headers if pair[0] not in OF_SERVER]
    return answer
