"""What the routes share, and the FastAPI dependencies that hand it to them.

build_app -> app.state.context (one ServingContext) -> Context, OpenFeed, WRITE_ACCESS -> routes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Path, Request, Security
from fastapi.security import HTTPBearer

from speedyfeed.serving.feed import Feed
from speedyfeed.serving.middleware import Metrics, WriteAccess
from speedyfeed.serving.service import Service
from speedyfeed.serving.worker_pool import WorkerPool


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

    def close(self) -> None:
        """Stop encoding, and end the threads after the articles they are writing; the journal stays open."""
        self.service.stop()
        self.writes.close()
        self.reads.close()


async def get_news_id(news_id: Annotated[str, Path(description="Id of the article, percent-encoded.")]) -> str:
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
