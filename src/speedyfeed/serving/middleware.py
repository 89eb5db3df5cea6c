"""Checks around every request: write access, limits of size and time, security headers, metrics."""

import asyncio
import ipaddress
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from fastapi import HTTPException, Request
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from speedyfeed.errors import UnwritableError
from speedyfeed.serving.micro_batcher import ServiceStopped

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "SPEEDYFEED_TOKEN"
"""Environment variable with the bearer token for writes."""
UNTIMED_PATHS = ("/v1/reload",)
"""Paths whose answer may take longer than `Limits.seconds`."""
NEWS_PATH = b"/v1/news/"
"""Beginning of all paths that hold the id of an article."""
UNWRITABLE = "The disk is full or cannot be written: this was not recorded, or not all of it."
HEALTH_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths that are answered also while too many requests are in progress."""

SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of requests and connections."""

    max_head: int = 64 << 10
    """Maximum size of the address and headers in bytes."""
    head_seconds: float = 10.0
    """Maximum time in seconds until the headers are complete."""
    max_body: int = 4 << 20
    """Maximum size of the body in bytes."""
    body_seconds: float = 10.0
    """Maximum wait in seconds for the next part of the body."""
    seconds: float = 30.0
    """Maximum time in seconds until the answer is complete."""
    close_seconds: float = 10.0
    """Maximum time in seconds that a closed connection waits for its client to take the rest of an answer."""
    max_requests: int = 500
    """Maximum number of requests in progress; more are refused, except health checks."""
    max_connections: int = 1000
    """Maximum number of open connections; one more closes the one that has been idle longest."""


class WriteAccess:
    """Allows writes that carry the bearer token; without a token, only writes from this machine."""

    def __init__(self, token: str | None, host: str) -> None:
        """`host` is the address the service listens on; without a token, only loopback allows writes."""
        self._token = token.encode() if token else None
        self.state: Literal["open", "token", "off"] = "token" if token else "open" if is_loopback(host) else "off"

    def __call__(self, request: Request) -> None:
        """Raise the HTTP error to answer with if the request may not write."""
        if self.state == "off":
            raise HTTPException(403, "Writes are turned off: the service was started without a token.")
        if self._token is None:
            _require_own_page(request)
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), self._token):
            raise HTTPException(
                401, "Writes need the bearer token of this service.", {"WWW-Authenticate": "Bearer"}
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service that listens on `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _require_own_page(request: Request) -> None:
    """Refuse writes by pages of other sites: a browser lets them reach loopback, but sends their origin and host.

    The headers are read as they were sent: `request.url` takes the server's own address for a host that it finds
    malformed, such as `my_site.example`, whose owner may point it to loopback.
    """
    hosts = request.headers.getlist("host")
    origins = [origin.partition("://")[2] for origin in request.headers.getlist("origin")]
    if not all(is_loopback(_without_port(host)) for host in hosts) or not set(hosts).issuperset(origins):
        raise HTTPException(403, "Without a token, only this machine and the page of this service may write.")


def _without_port(host: str) -> str:
    """The name or address in a Host header."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


class Metrics:
    """Counts and latencies of requests, exported to Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "speedyfeed_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "speedyfeed_request_seconds",
            "Time to answer a request, in seconds.",
            ["route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
            registry=self.registry,
        )
        self.added = Counter("speedyfeed_news_added", "Articles added or replaced.", registry=self.registry)
        self.removed = Counter("speedyfeed_news_removed", "Articles removed.", registry=self.registry)
        self.reloads = Counter(
            "speedyfeed_reloads", "Attempts to load a run, by outcome.", ["outcome"], registry=self.registry
        )


class RequestGuard:
    """ASGI middleware that limits size and time of every request, adds headers and counts it."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = keep_ids_encoded(scope)
        start = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_missing(message["headers"])]
            await send(message)

        seconds = None if scope["path"] in UNTIMED_PATHS else self._limits.seconds
        self._num_requests += 1
        try:
            if (refusal := self._refuse(scope)) is not None:
                await refusal(scope, receive, send_with_headers)
                return
            if scope["method"] == "HEAD":  # answered like GET; the server leaves the body out
                scope = {**scope, "method": "GET"}
            async with asyncio.timeout(seconds):
                await self._app(scope, _LimitedBody(receive, self._limits), send_with_headers)
        except (Exception, asyncio.CancelledError) as error:
            if status:  # the answer has begun: it can only be broken off
                if isinstance(error, asyncio.CancelledError):
                    return
                raise
            if isinstance(error, TimeoutError):
                answer = JSONResponse({"detail": "This took too long."}, 503, {"Retry-After": "1"})
            elif isinstance(error, ServiceStopped | asyncio.CancelledError):  # the server cancels when it stops
                answer = JSONResponse({"detail": "The service is stopping."}, 503, {"Retry-After": "1"})
            elif isinstance(error, UnwritableError):
                log.error("a request failed: %s", error.problem)
                answer = JSONResponse({"detail": UNWRITABLE}, 507)
            else:
                log.exception("a request failed")
                answer = JSONResponse({"detail": "Something went wrong here; the log says what."}, 500)
            await answer(scope, receive, send_with_headers)
        finally:
            self._num_requests -= 1
            route = getattr(scope.get("route"), "path_format", "") or "other"
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        """Answer for a request that is refused by its head alone; None for all others."""
        if self._num_requests > self._limits.max_requests and scope["path"] not in HEALTH_PATHS:
            return JSONResponse({"detail": "Too many requests are in progress."}, 503, {"Retry-After": "1"})
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(value.isdigit() and int(value[:20]) > self._limits.max_body for value in lengths):
            return JSONResponse({"detail": _too_long(self._limits)}, 413)
        return None


def keep_ids_encoded(scope: Scope) -> Scope:
    """Route requests for an article by the path as it was sent: a %2F in an id separates no parts of the path."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    below = raw.removeprefix(scope.get("root_path", "").encode())  # where another run is served beside
    return {**scope, "path": raw.decode("ascii")} if below.startswith(NEWS_PATH) else scope


class _LimitedBody:
    """ASGI `receive` that enforces the limits on the parts of a body."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._bytes = 0
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The request body did not arrive in time.", {"Connection": "close"}) from None
        self._bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._bytes > self._limits.max_body:
            raise HTTPException(413, _too_long(self._limits))
        return message


def _too_long(limits: Limits) -> str:
    return f"The request body is longer than {limits.max_body} bytes."


def _missing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers that an answer still lacks: those for security, and one that makes browsers revalidate.

    Answers change with every write, and files of the page have an ETag.
    """
    known = {name for name, _ in headers}
    wanted = (*SECURITY_HEADERS, (b"cache-control", b"no-cache"))
    return [(name, value) for name, value in wanted if name not in known]
