"""Routes that need the bearer token: adding and removing articles, and loading another run."""

import asyncio
import logging

from fastapi import APIRouter, HTTPException
from starlette.concurrency import run_in_threadpool

from speedyfeed.serving.dependencies import WRITE_ACCESS, Context, NewsId, OpenFeed
from speedyfeed.serving.micro_batcher import ServiceStopped
from speedyfeed.serving.problems import NOT_FOUND, RELOAD_FAILED, WRITE_PROBLEMS
from speedyfeed.serving.schemas.news import AddAnswer, AddBody, RemoveAnswer
from speedyfeed.serving.schemas.state import ReloadAnswer
from speedyfeed.serving.service import ReloadInProgress

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Time between two looks at what other worker processes have loaded."""

router = APIRouter(tags=["write"], responses=WRITE_PROBLEMS, dependencies=[WRITE_ACCESS])


@router.post("/v1/news", status_code=201)
async def add_news(body: AddBody, _: OpenFeed, context: Context) -> AddAnswer:
    """Add articles, or replace those whose id is taken; once answered, they are on disk and can be recommended."""
    news = [one.to_news() for one in body.news]
    await context.writes.run(lambda: context.service.add(news))
    context.metrics.added.inc(len(news))
    return AddAnswer(news_ids=[one.news_id for one in news])


@router.delete("/v1/news/{news_id:path}", responses=NOT_FOUND)
async def remove_news(news_id: NewsId, _: OpenFeed, context: Context) -> RemoveAnswer:
    """Remove an article for good: it stays removed after a restart and when another run is loaded."""
    if not await context.writes.run(lambda: context.service.remove(news_id)):
        raise HTTPException(404, "No such article.")
    context.metrics.removed.inc()
    return RemoveAnswer(news_id=news_id)


@router.post("/v1/reload", responses=RELOAD_FAILED)
async def reload(_: OpenFeed, context: Context) -> ReloadAnswer:
    """Load the run folder again; answers once the new model serves, and the old model serves until then."""
    try:
        loaded = await run_in_threadpool(context.service.reload)
    except ReloadInProgress:
        raise HTTPException(409, "Another reload is in progress.") from None
    except ServiceStopped:
        raise
    except Exception:
        log.exception("the run cannot be loaded; the previous one stays in service")
        context.metrics.reloads.labels("failed").inc()
        raise HTTPException(
            409, "The run cannot be loaded; the previous one stays in service. The log says why."
        ) from None
    while not context.is_everywhere(context.service.load_number):  # other workers load it now
        await asyncio.sleep(POLL_SECONDS)
    context.metrics.reloads.labels("done").inc()
    return ReloadAnswer(model=loaded.model, news=loaded.news, seconds=loaded.seconds)
