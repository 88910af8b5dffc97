"""The application: routes, and what each request passes before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from tuner import __version__
from tuner.service.http import admin, events, health, problems, results, sign_in, studies
from tuner.service.http.context import ServiceContext
from tuner.service.http.edge.described import PROBLEM, describe
from tuner.service.http.edge.guard import Guard
from tuner.service.http.edge.rates import Rates
from tuner.service.http.edge.refusals import Refusals
from tuner.service.http.edge.streams import Streams
from tuner.service.http.optimizations import routes
from tuner.service.http.page import documents, files, predictions


def create_app(context: ServiceContext, rates: Rates | None = None) -> FastAPI:
    """Return the application of one API process.

    `rates` counts requests; None: with the limits of `edge.rates`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.streams = streams = Streams(context.service, context.clock, context.meters.happened)
        streams.start()
        app.state.optimizing = asyncio.Semaphore(routes.THREADS)
        yield
        await streams.close()
        if "optimizations" in vars(context):
            context.optimizations.close()

    app = FastAPI(
        title="tuner",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        routes=_routes(),
    )
    app.state.context = context
    problems.install(app)
    rates = Rates() if rates is None else rates
    refusals = Refusals(context.service, context.clock)
    app.add_middleware(Guard, rates=rates, meters=context.meters, refusals=refusals, names=context.names)
    describe(app)
    return app


class Answer(JSONResponse):
    """JSON without the server's paths."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = scope["app"].state.context.places.hidden(self.body)
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of every application of this process: FastAPI takes 100 ms to make them."""
    router = APIRouter(default_response_class=Answer, responses=PROBLEM)
    for part in (predictions, documents, studies, results, events, admin, sign_in, health, routes, files):
        router.include_router(part.router)
    return router.routes
