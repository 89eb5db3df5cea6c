"""What the routes share, and the FastAPI dependencies that hand it to them.

build_app -> app.state.context (one ServingContext) -> Context, OpenFeed, WRITE_ACCESS -> routes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Request, Security
from fastapi import Path as PathField
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest

from speedyfeed.serving.board import Board
from speedyfeed.serving.feed import Feed
from speedyfeed.serving.middleware import Metrics, WriteAccess
from speedyfeed.serving.service import Service
from speedyfeed.serving.shared_metrics import SharedMetrics
from speedyfeed.serving.worker_pool import WorkerPool


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlace:
    """What the application of one run shares with those in other worker processes."""

    run: int
    """Number of the run among those of the service."""
    board: Board
    """Which worker has loaded what."""
    metrics: SharedMetrics
    """What all workers have counted."""
    writes: Path | None
    """Unix socket of the worker that writes; None if the application around this one forwards writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingContext:
    """Everything a route needs that outlives a request."""

    service: Service
    write_access: WriteAccess
    metrics: Metrics
    reads: WorkerPool
    """Threads for recommendations that may take long."""
    writes: WorkerPool
    """Threads for adding and removing articles, so that recommendations never queue behind them."""
    others: Sequence[str] = ()
    """Names of other runs that are served beside this one."""
    place: WorkerPlace | None = None
    """What this process shares with the other workers of the service; None if it is the only one."""

    @property
    def is_quiet(self) -> bool:
        """Whether no articles are being written, so that no search has to wait."""
        return self.writes.is_idle and not self.service.is_changing

    def metrics_text(self) -> str:
        """What has been counted, in the text format of Prometheus."""
        own = generate_latest(self.metrics.registry).decode()
        return own if self.place is None else self.place.metrics.total(own)

    def save_metrics(self) -> None:
        """Leave what has been counted to the other workers, and to the next process in this place."""
        if self.place is not None:
            self.place.metrics.write(generate_latest(self.metrics.registry).decode())

    def is_everywhere(self, load: int) -> bool:
        """Whether all worker processes have this load of the run in service."""
        return self.place is None or self.place.board.has_reached(self.place.run, load)

    def close(self) -> None:
        """Stop encoding, and end the threads after the articles they are writing; the journal stays open."""
        self.service.stop()
        self.writes.close()
        self.reads.close()


async def get_news_id(
    news_id: Annotated[str, PathField(description="Id of the article, percent-encoded.")],
) -> str:
    """Id of the article in the path; `keep_ids_encoded` leaves the decoding to this."""
    return unquote(news_id)


NewsId = Annotated[str, Depends(get_news_id)]


async def get_context(request: Request) -> ServingContext:
    """Context of the application that received the request."""
    context: ServingContext = request.app.state.context
    return context


Context = Annotated[ServingContext, Depends(get_context)]


async def get_open_feed(context: Context) -> Feed:
    """Feed that answers this request from beginning to end, so that no answer mixes two models."""
    if not context.service.is_open:
        raise HTTPException(503, "The feed is being loaded.", {"Retry-After": "1"})
    return context.service.feed


OpenFeed = Annotated[Feed, Depends(get_open_feed)]


async def require_write_access(
    request: Request,
    context: Context,
    _: Annotated[object, Security(HTTPBearer(auto_error=False, scheme_name="token"))],
) -> None:
    """Refuse a request that may not write."""
    context.write_access(request)


WRITE_ACCESS = Depends(require_write_access)
