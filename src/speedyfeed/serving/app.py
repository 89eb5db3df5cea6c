"""The service as an ASGI application: middleware, error answers, routes and the page, put together.

    request -> RequestGuard -> CORS (if asked for) -> routes/{read,write,editor,state,page} -> Service, Feed
                                                   -> /runs/NAME/...: the same for another run served beside it

A route takes the feed once, so that no answer mixes two models. Computation runs in threads; texts are encoded by
the service's own threads, those of many requests together.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import Gauge

from speedyfeed import __version__
from speedyfeed.serving.dependencies import ServingContext, WorkerPlace
from speedyfeed.serving.forwarding import WriteForwarding
from speedyfeed.serving.middleware import Limits, Metrics, RequestGuard, WriteAccess
from speedyfeed.serving.problems import add_problem_handlers
from speedyfeed.serving.routes import editor, page, read, state, write
from speedyfeed.serving.service import Service
from speedyfeed.serving.worker_pool import WorkerPool

ROUTERS = (read.router, write.router, editor.router, state.router, page.router)
"""In the order they are matched; the page comes last because it takes any path of one part."""
MAX_PENDING_WRITES = 32
MAX_PENDING_READS = 256


def build_app(
    service: Service,
    write_access: WriteAccess,
    *,
    limits: Limits | None = None,
    allow_origins: Sequence[str] = (),
    others: Mapping[str, Service] | None = None,
    places: Sequence[WorkerPlace] = (),
) -> FastAPI:
    """Build the ASGI application; `service` may be opened later, and until then requests are answered with 503.

    Each of `others` has an application of its own below /runs/NAME. A worker process beside others has `places`:
    that of the service, then those of the others.
    """
    others = others or {}
    beside = {
        name: build_app(
            other, write_access, limits=limits, allow_origins=allow_origins, places=places[number : number + 1]
        )
        for number, (name, other) in enumerate(others.items(), start=1)
    }
    place = places[0] if places else None
    context = ServingContext(
        service=service,
        write_access=write_access,
        metrics=Metrics(),
        reads=WorkerPool("recommendation", num_threads=8, max_pending=MAX_PENDING_READS),
        writes=WorkerPool("write", num_threads=4, max_pending=MAX_PENDING_WRITES),
        others=tuple(others),
        place=place,
    )
    app = FastAPI(
        title="SpeedyFeed",
        version=__version__,
        description="News recommendations from a trained run. Reads are open to all, writes need a bearer token.",
        docs_url=None,  # the framework's page loads scripts from another host; ours is /docs.html
        redoc_url=None,
        lifespan=_close_at_shutdown,
    )
    app.state.context = context
    app.state.beside = list(beside.values())
    _count_articles(context)
    if allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allow_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )
    if place is not None and place.writes is not None:
        app.add_middleware(
            WriteForwarding, service=service, write_access=write_access, socket=place.writes, board=place.board
        )
    app.add_middleware(RequestGuard, limits=limits or Limits(), metrics=context.metrics)
    add_problem_handlers(app, ROUTERS)
    for name, other_app in beside.items():
        app.mount(f"/runs/{name}", other_app)
    for router in ROUTERS:
        app.include_router(router)
    return app


@asynccontextmanager
async def _close_at_shutdown(app: FastAPI) -> AsyncIterator[None]:
    yield
    for each in (app, *app.state.beside):
        await asyncio.to_thread(each.state.context.close)  # meanwhile, what is given up is answered


def _count_articles(context: ServingContext) -> None:
    """Export the number of articles, read whenever metrics are asked for."""
    service = context.service
    gauge = Gauge("speedyfeed_news", "Articles that can be recommended.", registry=context.metrics.registry)
    gauge.set_function(lambda: len(service.feed.catalogue) if service.is_open else 0)
