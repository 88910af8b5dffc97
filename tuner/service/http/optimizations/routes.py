"""The requests about optimizations: create, list, read, share, delete, suggest, complete, and the best trial."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from tuner.service.http.access import Known, User, log_action
from tuner.service.http.context import Context
from tuner.service.http.optimizations.models import (
    BestView,
    CompleteBody,
    NewOptimization,
    Optimization,
    OptimizationChange,
    OptimizationsPage,
    OptimizationView,
    SuggestBody,
    Suggestion,
    TrialView,
)
from tuner.service.http.problems import not_found

router = APIRouter(prefix="/v1/optimizations", tags=["optimizations"])
THREADS = 4
"""Suggestions and results that a process works on at once, so that they leave threads for other requests."""

T = TypeVar("T")


@router.post("", status_code=201, responses={200: {"model": OptimizationView}})
def create(body: NewOptimization, who: User, context: Context, response: Response) -> OptimizationView:
    """Create an optimization; 200 instead of 201 if it was created before."""
    id = body.id or f"optimization-{secrets.token_hex(4)}"
    asked = {**body.model_dump(), "id": id, "owner": who.owner, "created_at": context.clock()}
    found, created = context.optimizations.create(Optimization.model_validate(asked))
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/optimizations/{id}"
    log_action(context, who, "create optimization", id, "created" if created else "known")
    return found


@router.get("")
def optimizations(
    who: Known,
    context: Context,
    after: Annotated[int | None, Query(ge=0)] = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
) -> OptimizationsPage:
    """Return the optimizations that the caller may read, the newest first."""
    return context.optimizations.page(who.reads_as, after, limit)


def _readable(id: str, who: Known, context: Context) -> Optimization:
    found = context.optimizations.find(id)
    if found is None or not who.may_read(found):
        raise not_found("optimization", id, hides=found is not None)
    return found


Readable = Annotated[Optimization, Depends(_readable)]


def _changeable(who: User, found: Readable) -> Optimization:
    who.check_change("optimization", found)
    return found


Changeable = Annotated[Optimization, Depends(_changeable)]


@router.get("/{id}:best")
def best(found: Readable, context: Context) -> BestView:
    """Return the best feasible trial and the front."""
    return context.optimizations.best(found.id)


@router.get("/{id}")
def optimization(found: Readable, context: Context) -> OptimizationView:
    """Return one optimization."""
    return context.optimizations.view(found.id)


@router.patch("/{id}")
def change(found: Changeable, body: OptimizationChange, who: User, context: Context) -> OptimizationView:
    """Change who may read an optimization."""
    changed = context.optimizations.share(found.id, body.shared)
    log_action(context, who, "change optimization", found.id, "done")
    return changed


@router.delete("/{id}", status_code=204)
def delete(found: Changeable, who: User, context: Context) -> None:
    """Delete an optimization with its trials."""
    context.optimizations.delete(found.id)
    log_action(context, who, "delete optimization", found.id, "done")


@router.get("/{id}/trials")
def trials(
    found: Readable,
    context: Context,
    after: Annotated[int, Query(ge=-1)] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[TrialView]:
    """Return trials whose number is above `after`, by number, at most `limit`."""
    return context.optimizations.trials(found.id, after, limit)


async def _in_turn(request: Request, operation: Callable[[], T]) -> T:
    limit: asyncio.Semaphore = request.app.state.optimizing
    async with limit:
        return await run_in_threadpool(operation)


@router.post("/{id}:suggest")
async def suggest(found: Changeable, body: SuggestBody, context: Context, request: Request) -> Suggestion:
    """Return the client's trials; if they are fewer than `count`, also those of lost clients and new ones."""
    return await _in_turn(request, lambda: context.optimizations.suggest(found.id, body.client_id, body.count))


@router.post("/{id}/trials/{number}:complete")
async def complete(
    found: Changeable,
    number: Annotated[int, Path(ge=0, lt=2**31)],
    body: CompleteBody,
    context: Context,
    request: Request,
) -> TrialView:
    """Store what the client measured, or why it could not. A repeated request has the same answer."""
    return await _in_turn(request, lambda: context.optimizations.complete(found.id, number, body))
