"""Optimizations: create, list, read, share, stop and delete, their trials, and the best of them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from storage.service.optimizations.records import ClientTrialState, Optimization
from tuner.errors import SettingError
from tuner.scoring.objectives import Objective
from tuner.service.http.access import Caller, Known, User, log_action
from tuner.service.http.context import ServiceContext, context_of
from tuner.service.http.optimizations.bodies import (
    MOST_MODELLED,
    MOST_TRIALS,
    BestView,
    NewOptimization,
    OptimizationChange,
    OptimizationsPage,
    OptimizationView,
    TrialNumber,
    TrialView,
    optimization_view,
    trial_view,
    trial_views,
)
from tuner.service.http.optimizations.refusals import refusals
from tuner.service.http.problems import Problem, not_found
from tuner.service.optimizer.draws import check_rules
from tuner.service.optimizer.front import best as best_of
from tuner.service.optimizer.settings import RANDOM, OptimizerSettings, make_spec, read_space, read_spec

router = APIRouter(prefix="/v1/optimizations", tags=["optimizations"])
Context = Annotated[ServiceContext, Depends(context_of)]
MOST_ACTIVE = 1000
"""Active optimizations of one owner."""


@router.post("", status_code=201, responses={200: {"model": OptimizationView}})
def create(body: NewOptimization, who: User, context: Context, response: Response) -> OptimizationView:
    """Create an optimization; 200 instead of 201 if it was created before."""
    id = body.id or f"optimization-{secrets.token_hex(4)}"
    objectives = [Objective(each.metric, each.direction, each.weight) for each in body.objectives]
    names = [each.metric for each in objectives]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SettingError("objectives", repeated, "the metric is there twice", "keep one of them")
    settings = OptimizerSettings(read_space(body.space), tuple(objectives), body.sampler, body.seed)
    now = datetime.now(UTC)
    spec = make_spec(body.space, objectives, body.sampler, body.seed)
    new = Optimization(id, who.owner, spec, now, body.lost_after_s, _trials(body), body.shared)
    with refusals():
        check_rules(settings)
        known = context.service.optimization(id)
        if known is not None and not (who.is_admin or known.owner == who.owner):
            raise SettingError("id", id, "this id is taken", "choose another one")
        found, created = context.service.create_optimization(new, MOST_ACTIVE)
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/optimizations/{id}"
    log_action(context, who, "create optimization", id, "created" if created else "known")
    return optimization_view(found)


def _trials(body: NewOptimization) -> int:
    """Return the most trials to suggest.

    Raises:
        SettingError: if they are too many for the sampler.
    """
    most = MOST_TRIALS if body.sampler == RANDOM else MOST_MODELLED
    if body.trials is not None and body.trials > most:
        rule = f"with the sampler {body.sampler!r}, {most:,} are the most"
        raise SettingError("trials", body.trials, rule, "lower it, or use the sampler 'random'")
    return body.trials or most


@router.get("")
def optimizations(
    who: Known,
    context: Context,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    after: Annotated[int | None, Query(ge=0)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> OptimizationsPage:
    """Return the optimizations that the caller may read, the newest first, without their specs."""
    readable_by = None if who.is_admin else who.owner
    page = context.service.optimizations(owner=owner, readable_by=readable_by, after=after, limit=limit)
    views = [optimization_view(each, spec=False) for each in page.optimizations]
    return OptimizationsPage(optimizations=views, next=page.next)


def _readable(id: str, who: Caller, context: ServiceContext) -> Optimization:
    found = context.service.optimization(id)
    if found is None or not (who.is_admin or found.owner == who.owner or found.shared):
        raise not_found("optimization", id, hides=found is not None)
    return found


def _changeable(id: str, who: Caller, context: ServiceContext) -> Optimization:
    found = _readable(id, who, context)
    if not (who.is_admin or found.owner == who.owner):
        raise Problem(403, f"the optimization {id!r} is {found.owner}'s; only its owner and admins change it")
    return found


@router.get("/{id}:best")
def best(id: str, who: Known, context: Context) -> BestView:
    """Return the best feasible trial and the front."""
    found = _readable(id, who, context)
    chosen = best_of(context.service.measured(id), read_spec(found.spec).objectives)
    trial = [] if chosen.number is None else context.service.client_trials(id, after=chosen.number - 1, limit=1)
    return BestView(best=trial_view(trial[0]) if trial else None, score=chosen.score, front=list(chosen.front))


@router.get("/{id}")
def optimization(id: str, who: Known, context: Context) -> OptimizationView:
    """Return one optimization."""
    return optimization_view(_readable(id, who, context))


@router.patch("/{id}")
def change(id: str, body: OptimizationChange, who: User, context: Context) -> OptimizationView:
    """Change who may read an optimization."""
    _changeable(id, who, context)
    with refusals():
        found = context.service.share_optimization(id, body.shared)
    log_action(context, who, "change optimization", id, "done")
    return optimization_view(found)


@router.delete("/{id}", status_code=204)
def delete(id: str, who: User, context: Context) -> None:
    """Delete an optimization that is not active, with its trials."""
    _changeable(id, who, context)
    with refusals():
        context.service.delete_optimization(id)
    log_action(context, who, "delete optimization", id, "done")


@router.post("/{id}:stop")
def stop(id: str, who: User, context: Context) -> OptimizationView:
    """Suggest no new trial from now on. Active trials can still end."""
    _changeable(id, who, context)
    with refusals():
        found = context.service.stop_optimization(id, datetime.now(UTC))
    log_action(context, who, "stop optimization", id, found.state.value)
    return optimization_view(found)


@router.get("/{id}/trials")
def trials(
    id: str,
    who: Known,
    context: Context,
    after: Annotated[int, Query(ge=-1)] = -1,
    state: Annotated[list[ClientTrialState] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[TrialView]:
    """Return trials whose number is above `after`, by number, at most `limit`."""
    _readable(id, who, context)
    return trial_views(context.service.client_trials(id, after=after, states=state, limit=limit))


@router.get("/{id}/trials/{number}")
def trial(id: str, number: TrialNumber, who: Known, context: Context) -> TrialView:
    """Return one trial."""
    _readable(id, who, context)
    found = context.service.client_trials(id, after=number - 1, limit=1)
    if not found or found[0].number != number:
        raise not_found("trial", str(number))
    return trial_view(found[0])
