"""Connections of clients that may be slow, silent or hostile: how long and how large a request head may be.

    accepted --head complete--> request in progress --answered--> idle --next head complete--> ...
       |                                                           |
       +--- closed after `head_seconds` or above `max_head` -------+--- closed first when connections run out

Once a request is in progress, the limits of `RequestGuard` apply. A connection that is being closed but whose
client does not take the rest of the answer is cut off, so that no client can hold one open for ever.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from speedyfeed.serving.middleware import Limits

CHUNK_FRAME = 16
"""Bytes that may surround each piece of a chunked body without counting as a head."""
CHECKS_PER_LIMIT = 5
"""Checks of a connection within its shortest time limit, so that it is exceeded by at most a fifth."""


class LimitedConnection(HttpToolsProtocol):
    """An HTTP connection of uvicorn that enforces the limits of request heads and of connections."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_since: float | None = self.loop.time()  # when the wait for the rest of a head began
        self._closing_since: float | None = None
        self._last_seen = self.loop.time()
        self._unparsed_bytes = 0  # received for a head, or around a body, that is not complete
        self._is_too_long = self._is_refused = False
        self._check: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # the request being answered; later ones may wait

    @property
    def is_answering(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_waiting_for_body(self) -> bool:
        """Whether the only request in progress has no answer yet because its body is not complete."""
        return self.is_answering and self.cycle.more_body and not (self.cycle.response_started or self.pipeline)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, the one that has been idle longest is closed."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            others = [one for one in self.connections if isinstance(one, LimitedConnection) and one is not self]
            idle = [one for one in others if not one.is_answering and not one.transport.is_closing()]
            if idle:
                min(idle, key=lambda one: one._last_seen).transport.abort()
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its timers."""
        if self._check is not None:
            self._check.cancel()
        self._unset_keepalive_if_required()  # the parent leaves it running after an error
        if self._running is not None:  # the parent tells the newest request only, which may be a waiting one
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; a head above the limit is answered with 431."""
        if self._is_refused or self.transport.is_closing():
            return
        self._last_seen = self.loop.time()
        if self._head_since is None and not self.is_answering:
            self._head_since = self._last_seen
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > self.limits.max_head and not self._is_refused:
            self._is_too_long = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count and keep a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and keep a header, or a trailer after the body."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer the request."""
        self._head_since = None
        self._unparsed_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand a part of the body to the application."""
        self._unparsed_bytes = max(0, self._unparsed_bytes - len(body) - CHUNK_FRAME)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; what comes next is the head of another one."""
        self._head_since = None
        self._unparsed_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or a head that is too long, in one line of JSON and close the connection."""
        status, detail = HTTPStatus.BAD_REQUEST, "This is not a valid HTTP request."
        if self._is_too_long:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"Address and headers of the request are longer than {self.limits.max_head} bytes."
        if self._is_waiting_for_body:  # which will never be whole: this is the answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self.is_answering or self.cycle.disconnected:  # otherwise this would end up inside another answer
            body = f'{{"detail":"{detail}"}}'
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode("ascii")
            )
        self._is_refused = True
        self.transport.write_eof()
        # Closing at once, while the client still sends, would reset the connection before it reads the answer.
        self.loop.call_later(min(1.0, self.limits.close_seconds), self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _count(self, num_bytes: int) -> None:
        """Add to the size of the head; above the limit the parser is stopped by an error."""
        self._head_bytes += num_bytes
        if self._head_bytes > self.limits.max_head:
            self._is_too_long = True
            raise ValueError("the head is too long")

    def _schedule_check(self) -> None:
        interval = min(self.limits.head_seconds, self.limits.close_seconds) / CHECKS_PER_LIMIT
        self._check = self.loop.call_later(interval, self._check_time)

    def _check_time(self) -> None:
        """Close the connection if its head does not come, and cut it off if its client does not let it close."""
        now = self.loop.time()
        if self.transport.is_closing():
            self._closing_since = now if self._closing_since is None else self._closing_since
            if now - self._closing_since >= self.limits.close_seconds:
                self.transport.abort()
                return
        elif self._head_since is not None and now - self._head_since >= self.limits.head_seconds:
            self.transport.close()
        self._schedule_check()


def connection_class(limits: Limits) -> type[LimitedConnection]:
    """Make the class of connections with these limits, for the `http` setting of uvicorn."""
    return type("Connection", (LimitedConnection,), {"limits": limits})
