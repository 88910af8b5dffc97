"""The health of the service, for load balancers and Prometheus."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Response

from tuner.service.http.access import Known
from tuner.service.http.context import Context
from tuner.service.http.edge.described import text
from tuner.service.watching.meters import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:  # no thread, so that slow requests, which have them all, do not delay it
    """Answer while the process lives."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(context: Context) -> dict[str, str]:
    """Answer if the database does; else 503."""
    context.service.figures()
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses=text("text/plain"))
def metrics(who: Known, context: Context) -> Response:
    """Return the metrics of the whole service, in Prometheus' format."""
    figures = context.service.figures()
    text = context.meters.text(figures, context.devices, context.queue.leads, datetime.now(UTC))
    return Response(text, media_type=CONTENT_TYPE)
