"""The requests about optimizations: create, list, read, share, delete, suggest, complete, and the best trial."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from tuner.service.http.access import Caller, Known, User, log_action
from tuner.service.http.context import ServiceContext, context_of
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
from tuner.service.http.problems import Problem, not_found

router = APIRouter(prefix="/v1/optimizations", tags=["optimizations"])
Context = Annotated[ServiceContext, Depends(context_of)]
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
    return context.optimizations.page(None if who.is_admin else who.owner, after, limit)


def _check_readable(id: str, who: Caller, context: ServiceContext) -> Optimization:
    found = context.optimizations.find(id)
    if found is None or not (who.is_admin or found.owner == who.owner or found.shared):
        raise not_found("optimization", id, hides=found is not None)
    return found


def _check_changeable(id: str, who: Caller, context: ServiceContext) -> None:
    found = _check_readable(id, who, context)
    if not (who.is_admin or found.owner == who.owner):
        raise Problem(403, f"the optimization {id!r} is {found.owner}'s; only its owner and admins change it")


@router.get("/{id}:best")
def best(id: str, who: Known, context: Context) -> BestView:
    """Return the best feasible trial and the front."""
    _check_readable(id, who, context)
    return context.optimizations.best(id)


@router.get("/{id}")
def optimization(id: str, who: Known, context: Context) -> OptimizationView:
    """Return one optimization."""
    _check_readable(id, who, context)
    return context.optimizations.view(id)


@router.patch("/{id}")
def change(id: str, body: OptimizationChange, who: User, context: Context) -> OptimizationView:
    """Change who may read an optimization."""
    _check_changeable(id, who, context)
    found = context.optimizations.share(id, body.shared)
    log_action(context, who, "change optimization", id, "done")
    return found


@router.delete("/{id}", status_code=204)
def delete(id: str, who: User, context: Context) -> None:
    """Delete an optimization with its trials."""
    _check_changeable(id, who, context)
    context.optimizations.delete(id)
    log_action(context, who, "delete optimization", id, "done")


@router.get("/{id}/trials")
def trials(
    id: str,
    who: Known,
    context: Context,
    after: Annotated[int, Query(ge=-1)] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[TrialView]:
    """Return trials whose number is above `after`, by number, at most `limit`."""
    _check_readable(id, who, context)
    return context.optimizations.trials(id, after, limit)


async def _in_turn(request: Request, operation: Callable[[], T]) -> T:
    limit: asyncio.Semaphore = request.app.state.optimizing
    async with limit:
        return await run_in_threadpool(operation)


@router.post("/{id}:suggest")
async def suggest(id: str, body: SuggestBody, who: User, context: Context, request: Request) -> Suggestion:
    """Return the client's trials; if they are fewer than `count`, also those of lost clients and new ones."""

    def operation() -> Suggestion:
        _check_changeable(id, who, context)
        return context.optimizations.suggest(id, body.client_id, body.count)

    return await _in_turn(request, operation)


@router.post("/{id}/trials/{number}:complete")
async def complete(
    id: str,
    number: Annotated[int, Path(ge=0, lt=2**31)],
    body: CompleteBody,
    who: User,
    context: Context,
    request: Request,
) -> TrialView:
    """Store what the client measured, or why it could not. A repeated request has the same answer."""

    def operation() -> TrialView:
        _check_changeable(id, who, context)
        return context.optimizations.complete(id, number, body)

    return await _in_turn(request, operation)
