"""Whether the service works: for load balancers and Prometheus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from storage.service.records import ACTIVE
from tuner.service.http.access import Known
from tuner.service.http.context import ServiceContext, context_of
from tuner.service.http.edge.described import text

router = APIRouter(tags=["health"])
Context = Annotated[ServiceContext, Depends(context_of)]


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Answer while the process lives."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(context: Context) -> dict[str, str]:
    """Answer if the database does; else 503."""
    context.service.counts()
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses=text("text/plain"))
def metrics(who: Known, context: Context) -> Response:
    """Return the metrics of the whole service, in Prometheus' format."""
    registry = CollectorRegistry()
    studies = Gauge("tuner_studies", "Submitted studies by state.", ["state"], registry=registry)
    for state, count in context.service.counts().items():
        studies.labels(state.value).set(count)
    total = Gauge("tuner_devices", "Devices by kind.", ["kind"], registry=registry)
    busy = Gauge("tuner_devices_busy", "Devices that a study has, by kind.", ["kind"], registry=registry)
    granted = [name for each in context.service.active_and_queued() if each.state in ACTIVE for name in each.granted]
    for kind, names in context.devices.items():
        total.labels(kind).set(len(names))
        busy.labels(kind).set(sum(name in granted for name in names))
    leads = Gauge("tuner_scheduler_leads", "1 if this process schedules.", registry=registry)
    leads.set(context.queue.leads)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
