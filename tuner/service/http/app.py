"""The application: routes, limits and headers of every answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner import __version__
from tuner.service.http import admin, events, health, problems, results, studies
from tuner.service.http.access import touch
from tuner.service.http.context import ServiceContext
from tuner.service.http.optimizations import routes, verbs
from tuner.service.http.page import documents, files, predictions
from tuner.service.optimizer.batches import Batches
from tuner.service.optimizer.clients import Clients
from tuner.service.optimizer.draws import Draws
from tuner.service.optimizer.models import Models
from tuner.service.watching.meters import Meters

LARGEST_BODY = 4 * 1024 * 1024
"""Most bytes of a request's body."""

EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The hash of an empty text. Plotly makes an empty `<style>` and adds its rules by script, which no policy forbids."""

HEADERS = {
    # Plotly writes `style` attributes within its SVG. Only they may be inline; scripts and style sheets are files.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    f"style-src-elem 'self' {EMPTY_STYLE}; style-src-attr 'unsafe-inline'; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of an answer that does not set its own."""


def create_app(context: ServiceContext) -> FastAPI:
    """Return the application of one API process."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.reader = reader = events.Reader(context.service, context.meters.happened)
        reader.start()
        app.state.clients = clients = _clients(context)
        clients.start()
        yield
        clients.close()
        await reader.close()

    app = FastAPI(title="tuner", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.context = context
    problems.install(app)
    app.add_middleware(Guard, meters=context.meters)
    for part in (predictions, documents, studies, results, events, admin, health, verbs, routes, files):
        app.include_router(part.router)
    return app


def _clients(context: ServiceContext) -> Clients:
    """Return what answers the clients of optimizations."""
    draws = Draws()
    batches = Batches(context.service, draws, lambda token, now: touch(context, token, now), context.clock)
    return Clients(batches, draws, Models(context.service))


class Guard:
    """Refuses a body that is too large or has no size, adds the headers of every answer, and counts it.

    Starlette's own base class for this costs a quarter of a small request.
    """

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app, self._meters = app, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status, began)
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = _refusal(Headers(scope=scope)) or self._app
        try:
            await answer(scope, receive, send_with_headers)
        finally:
            if not status:  # an exception, which Starlette answers around this class
                self._count(scope, 500, began)

    def _count(self, scope: Scope, status: int, began: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._meters.answered(scope["method"], route, status, time.perf_counter() - began)


def _refusal(headers: Headers) -> Response | None:
    """Return the answer to a request whose body is refused by its headers."""
    length = headers.get("content-length")
    if headers.get("transfer-encoding") is not None or (length is not None and not length.isdigit()):
        return problems.Problem(413, "a body needs a Content-Length").response()
    if length is not None and int(length) > LARGEST_BODY:
        detail = f"a body has at most {LARGEST_BODY:,} bytes, not {int(length):,}"
        return problems.Problem(413, detail).response()
    return None
