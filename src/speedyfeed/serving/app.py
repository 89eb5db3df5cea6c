"""The service over HTTP: reads for everyone, writes for those with the token, and the page.

Routes take the feed once and keep to it, so that no answer mixes two models. What computes runs in threads; texts
are encoded by the service's own thread, those of many requests together.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from prometheus_client import Gauge, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route

from speedyfeed import __version__
from speedyfeed.serving.feed import Embeddings, Feed
from speedyfeed.serving.middleware import Limits, Metrics, RequestGuard, WriteAccess
from speedyfeed.serving.schemas import (
    MAX_K,
    AboutAnswer,
    AddAnswer,
    AddBody,
    ListAnswer,
    NewsAnswer,
    Problem,
    RankedNews,
    RecommendAnswer,
    RecommendBody,
    ReloadAnswer,
    RemoveAnswer,
    StateAnswer,
)
from speedyfeed.serving.service import Busy, Service

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
MAX_WAITING_WRITES = 32
MAX_WAITING_READS = 256
MAX_MAP = 2000
T = TypeVar("T")

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The body is no JSON.",
        408: "The body did not arrive in time.",
        413: "The body is too long.",
        422: "The request does not have the form described here.",
        503: "Not ready, or too busy: try again soon.",
    }.items()
}
_WRITE_PROBLEMS: dict[int | str, dict[str, Any]] = _PROBLEMS | {
    401: {"model": Problem, "description": "The token is missing or wrong."},
    403: {"model": Problem, "description": "Writing is off, or not allowed from there."},
}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "No such news."}}
_BUSY: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "A reload is under way, or the run cannot be loaded."}
}


def build_app(
    service: Service, door: WriteAccess, *, limits: Limits | None = None, allow_origins: Sequence[str] = ()
) -> FastAPI:
    """The service as an ASGI application; it may be opened later, until then it answers 503."""
    metrics = Metrics()
    Gauge("speedyfeed_news", "News that can be recommended.", registry=metrics.registry).set_function(
        lambda: len(service.feed.catalogue) if service.is_open else 0
    )
    writers = _Threads("write", 4, MAX_WAITING_WRITES)
    users = _Threads("recommendation", 8, MAX_WAITING_READS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        writers.close()
        users.close()

    app = FastAPI(
        title="SpeedyFeed",
        version=__version__,
        description="News recommendations from a trained run. Reads are free, writes need a bearer token.",
        docs_url=None,  # their page loads scripts from elsewhere; ours is /docs.html
        redoc_url=None,
        lifespan=lifespan,
    )
    if allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allow_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )
    app.add_middleware(RequestGuard, limits=limits or Limits(), metrics=metrics)
    _add_problem_answers(app)

    async def open_feed() -> Feed:
        if not service.is_open:
            raise HTTPException(503, "The feed is being loaded.", {"Retry-After": "1"})
        return service.feed

    async def may_write(
        request: Request, _: Annotated[object, Security(HTTPBearer(auto_error=False, scheme_name="token"))]
    ) -> None:
        door(request)

    OpenFeed = Annotated[Feed, Depends(open_feed)]
    writes = [Depends(may_write)]

    @app.post("/v1/recommend", response_model=RecommendAnswer, responses=_PROBLEMS, tags=["read"])
    async def recommend(body: RecommendBody, feed: OpenFeed) -> Response:
        """The best news for a user."""
        query = body.to_query()
        texts = [click for click in query.history if not isinstance(click, str)]
        embeddings: Embeddings | None = None
        if texts:
            embeddings = await asyncio.wrap_future(feed.encode(texts))

        def answer() -> str:
            return RecommendAnswer.from_answer(feed.recommend(query, embeddings)).model_dump_json()

        # As text: the framework would check an answer that is right by construction, on the event loop.
        # While news are written a search may have to wait for them, and the event loop must not.
        text = answer() if writers.is_idle and feed.is_quick(query) else await users.run(answer)
        return Response(text, media_type="application/json")

    @app.get("/v1/news/{news_id}", responses=_PROBLEMS | _NOT_FOUND, tags=["read"])
    async def get_news(news_id: str, feed: OpenFeed) -> NewsAnswer:
        """One news."""
        row = feed.catalogue.row(news_id)
        if row is None:
            raise HTTPException(404, "No such news.")
        return NewsAnswer.of(feed.catalogue.news(row), feed.places(feed.catalogue.embeddings([row]))[0])

    @app.get("/v1/news/{news_id}/similar", responses=_PROBLEMS | _NOT_FOUND, tags=["read"])
    async def similar(news_id: str, feed: OpenFeed, k: Annotated[int, Query(ge=1, le=MAX_K)] = 10) -> ListAnswer:
        """News that say about the same; scores are cosines."""
        found = await run_in_threadpool(feed.similar, news_id, k)
        if found is None:
            raise HTTPException(404, "No such news.")
        return ListAnswer(news=[RankedNews.from_ranked(one) for one in found])

    @app.get("/v1/map", responses=_PROBLEMS, tags=["read"])
    async def get_map(feed: OpenFeed, limit: Annotated[int, Query(ge=1, le=MAX_MAP)] = 1000) -> ListAnswer:
        """Some news of all kinds with their places, to draw a map with; scores mean nothing here."""
        found = await run_in_threadpool(feed.sample, limit)
        return ListAnswer(news=[RankedNews.from_ranked(one) for one in found])

    @app.get("/v1/about", responses=_PROBLEMS, tags=["read"])
    async def about(feed: OpenFeed) -> AboutAnswer:
        """What is served."""
        return AboutAnswer(
            version=__version__,
            model=feed.fingerprint,
            news=len(feed.catalogue),
            categories=feed.catalogue.categories(),
            knows_popularity=feed.catalogue.knows_popularity,
            writes=door.state,
        )

    @app.post("/v1/news", status_code=201, responses=_WRITE_PROBLEMS, dependencies=writes, tags=["write"])
    async def add_news(body: AddBody, _: OpenFeed) -> AddAnswer:
        """Add news, or change them; they are on disk and found by the next request when this answers."""
        news = [one.to_news() for one in body.news]
        await writers.run(lambda: service.add(news))
        metrics.added.inc(len(news))
        return AddAnswer(news_ids=[one.news_id for one in news])

    @app.delete("/v1/news/{news_id}", responses=_WRITE_PROBLEMS | _NOT_FOUND, dependencies=writes, tags=["write"])
    async def remove_news(news_id: str, _: OpenFeed) -> RemoveAnswer:
        """Remove a news for good, a restart and another run included."""
        if not await writers.run(lambda: service.remove(news_id)):
            raise HTTPException(404, "No such news.")
        metrics.removed.inc()
        return RemoveAnswer(news_id=news_id)

    @app.post("/v1/reload", responses=_WRITE_PROBLEMS | _BUSY, dependencies=writes, tags=["write"])
    async def reload(_: OpenFeed) -> ReloadAnswer:
        """Load the run folder as it is now; answers when the new model does, nobody waits meanwhile."""
        try:
            done = await run_in_threadpool(service.reload)
        except Busy:
            raise HTTPException(409, "A reload is under way already.") from None
        except Exception:
            log.exception("the run cannot be loaded; the one before keeps answering")
            metrics.reloads.labels("failed").inc()
            raise HTTPException(
                409, "The run cannot be loaded; the one before keeps answering. The log says why."
            ) from None
        metrics.reloads.labels("done").inc()
        return ReloadAnswer(model=done.model, news=done.news, seconds=done.seconds)

    @app.get("/healthz", tags=["state"])
    async def healthz() -> StateAnswer:
        """Whether the process answers."""
        return StateAnswer(status="ok")

    @app.get("/readyz", responses={503: _PROBLEMS[503]}, tags=["state"])
    async def readyz(_: OpenFeed) -> StateAnswer:
        """Whether it can recommend."""
        return StateAnswer(status="ready")

    @app.get("/metrics", response_class=PlainTextResponse, tags=["state"])
    async def get_metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(generate_latest(metrics.registry))

    page = StaticFiles(directory=PAGE, html=True)

    # Not mounted: a mount at the root would answer for the methods that other routes do not have.
    @app.get("/", include_in_schema=False)
    @app.get("/{file}", include_in_schema=False)
    async def get_page(request: Request, file: str = ".") -> Response:
        return await page.get_response(file, request.scope)

    return app


class _Threads:
    """Threads for one kind of work, and a queue that refuses when it is long."""

    def __init__(self, name: str, num_threads: int, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._name = name
        self._max_waiting = max_waiting
        self._waiting = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._waiting == 0

    async def run(self, work: Callable[[], T]) -> T:
        if self._waiting >= self._max_waiting:
            raise HTTPException(503, f"Too many {self._name}s are waiting.", {"Retry-After": "1"})
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._threads.shutdown()


def _add_problem_answers(app: FastAPI) -> None:
    """Every problem is one line of JSON: no path, no traceback, nothing of the request said back at length."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = error.errors()
        if any(problem["type"] == "json_invalid" for problem in problems):
            return JSONResponse({"detail": "The body is no JSON."}, 400)
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith("function-"))
        return JSONResponse({"detail": f"{where}: {first['msg']}" if where else str(first["msg"])}, 422)

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        if error.status_code == 405:  # of all routes with that path, not only the first
            methods = {method for route in app.routes for method in _methods(route, request)}
            headers["Allow"] = ", ".join(sorted(methods))
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers)


def _methods(route: BaseRoute, request: Request) -> set[str]:
    """Those the route has for the path of a request."""
    if not isinstance(route, Route) or route.matches(request.scope)[0] is Match.NONE:
        return set()
    return route.methods or set()
