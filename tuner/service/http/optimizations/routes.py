"""The requests about optimizations: create, read, delete, suggest, complete, and the best trial."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from tuner.service.http.access import Known, User, log_action
from tuner.service.http.context import Context
from tuner.service.http.optimizations.models import (
    BestView,
    CompleteBody,
    NewOptimization,
    Optimization,
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


def _own(id: str, who: Known, context: Context) -> Optimization:
    """Return the caller's optimization, of admins anybody's.

    Raises:
        Problem: 404 if there is none, or it is another owner's.
    """
    found = context.optimizations.find(id)
    if found is None or not who.may_change(found.owner):
        raise not_found("optimization", id, hides=found is not None)
    return found


def _changed(who: User, found: Annotated[Optimization, Depends(_own)]) -> Optimization:
    return found


Own = Annotated[Optimization, Depends(_own)]
Changed = Annotated[Optimization, Depends(_changed)]


@router.get("/{id}:best")
def best(found: Own, context: Context) -> BestView:
    """Return the best feasible trial and the front."""
    return context.optimizations.best(found.id)


@router.get("/{id}")
def optimization(found: Own, context: Context) -> OptimizationView:
    """Return one optimization."""
    return context.optimizations.view(found.id)


@router.delete("/{id}", status_code=204)
def delete(found: Changed, who: User, context: Context) -> None:
    """Delete an optimization with its trials."""
    context.optimizations.delete(found.id)
    log_action(context, who, "delete optimization", found.id, "done")


async def _in_turn(request: Request, operation: Callable[[], T]) -> T:
    limit: asyncio.Semaphore = request.app.state.optimizing
    async with limit:
        return await run_in_threadpool(operation)


@router.post("/{id}:suggest")
async def suggest(found: Changed, body: SuggestBody, context: Context, request: Request) -> Suggestion:
    """Return the client's trials; if they are fewer than `count`, also those of lost clients and new ones."""
    return await _in_turn(request, lambda: context.optimizations.suggest(found.id, body.client_id, body.count))


@router.post("/{id}/trials/{number}:complete")
async def complete(
    found: Changed,
    number: Annotated[int, Path(ge=0, lt=2**31)],
    body: CompleteBody,
    context: Context,
    request: Request,
) -> TrialView:
    """Store what the client measured, or why it could not. A repeated request has the same answer."""
    return await _in_turn(request, lambda: context.optimizations.complete(found.id, number, body))
