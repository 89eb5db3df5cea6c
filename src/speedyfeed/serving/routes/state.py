"""Routes for whoever operates the service: liveness, readiness, metrics."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from speedyfeed.serving.dependencies import Context, OpenFeed
from speedyfeed.serving.problems import NOT_READY
from speedyfeed.serving.schemas.state import StateAnswer

router = APIRouter(tags=["state"])


@router.get("/healthz")
async def healthz() -> StateAnswer:
    """Check that the process is alive; answers also while a run is being loaded."""
    return StateAnswer(status="ok")


@router.get("/readyz", responses=NOT_READY)
async def readyz(_: OpenFeed) -> StateAnswer:
    """Check that a run is loaded and can recommend."""
    return StateAnswer(status="ready")


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(context: Context) -> Response:
    """Get counts and latencies in the text format of Prometheus."""
    return PlainTextResponse(await run_in_threadpool(context.metrics_text))
