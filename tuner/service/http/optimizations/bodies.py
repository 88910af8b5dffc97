"""Bodies of requests and answers about optimizations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from storage.metrics import Direction
from storage.service.optimizations.records import ClientTrial, ClientTrialState, Optimization, OptimizationState
from tuner.service.http.models import ID

MOST_TRIALS = 100_000
"""Trials of one optimization."""

MOST_MODELLED = 10_000
"""Trials of one optimization whose sampler has a model, which a new process reads before its first suggestion."""

MOST_COUNT = 100
"""Trials of one suggestion."""

MOST_METRICS = 64
"""Metrics, and constraints, of one trial."""

CLIENT = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$"
METRIC = r"^[A-Za-z_][A-Za-z0-9_.:/%-]{0,99}$"

TrialNumber = Annotated[int, Path(ge=0, lt=2**31)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Client = Annotated[str, Field(pattern=CLIENT, description="name of the client, its own within the optimization")]
Values = Annotated[dict[Annotated[str, Field(pattern=METRIC)], Number], Field(max_length=MOST_METRICS)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ObjectiveBody(_Body):
    """A metric to optimise, and its weight among several."""

    metric: Annotated[str, Field(pattern=METRIC)]
    direction: Direction
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class NewOptimization(_Body):
    """An optimization to create. The same `id` with the same content is accepted again and changes nothing."""

    id: Annotated[str | None, Field(pattern=ID, description="its name; made up if it is left out")] = None
    space: Annotated[
        str | dict[str, Any], Field(description="a search space as YAML text, or as JSON of the same content")
    ]
    objectives: Annotated[list[ObjectiveBody], Field(min_length=1, max_length=8)]
    sampler: Literal["random", "tpe", "residual"] = "residual"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    trials: Annotated[
        int | None, Field(ge=1, le=MOST_TRIALS, description="most trials to suggest; none: as many as are possible")
    ] = None
    lost_after_s: Annotated[
        float, Field(ge=10, le=7 * 86400, description="seconds without a sign of a client until others get its trials")
    ] = 600.0
    shared: Annotated[bool, Field(description="whether every token may read it")] = False


class OptimizationChange(_Body):
    """What may be changed of an optimization."""

    shared: bool


class SuggestBody(_Body):
    """A client that asks for trials: those that it has, then those of lost clients, then new ones."""

    client_id: Client
    count: Annotated[int, Field(ge=1, le=MOST_COUNT, description="how many trials the client wants to have")] = 1


class BeatBody(_Body):
    """A client that is still there."""

    client_id: Client


class CompleteBody(_Body):
    """What a client measured.

    A trial needs every objective to succeed. Without metrics it needs a violated constraint, and is infeasible.
    """

    client_id: Client
    metrics: Values | None = None
    constraints: Annotated[Values, Field(description="values by name; at most 0 is satisfied")] = {}


class InfeasibleBody(_Body):
    """Why the configuration of a trial cannot work."""

    client_id: Client
    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class TrialView(BaseModel):
    """A trial. Times are UTC; `attempts` is the number of clients that got it."""

    number: int
    state: ClientTrialState
    client_id: str
    params: dict[str, Any]
    attempts: int
    metrics: dict[str, float] | None
    constraints: dict[str, float] | None
    reason: str | None
    created_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None


class SuggestedTrial(BaseModel):
    """A trial to run."""

    number: int
    params: dict[str, Any]
    attempts: int


class Suggestion(BaseModel):
    """Trials of a client. In another state than ACTIVE there will be no new ones."""

    state: OptimizationState
    trials: list[SuggestedTrial]


class Beating(BaseModel):
    """Numbers of the trials that the client has."""

    state: OptimizationState
    trials: list[int]


class Ending(BaseModel):
    """A trial that has ended."""

    number: int
    state: ClientTrialState


class OptimizationView(BaseModel):
    """An optimization. `trials` is its limit; the counts are those of its trials by state. Times are UTC."""

    id: str
    owner: str
    shared: bool
    state: OptimizationState
    trials: int | None
    lost_after_s: float
    suggested: int
    active: int
    succeeded: int
    infeasible: int
    created_at: datetime
    ended_at: datetime | None
    spec: Annotated[dict[str, Any] | None, Field(description="space, objectives, sampler and seed; null in lists")]


class OptimizationsPage(BaseModel):
    """A page of optimizations, the newest first. `next` is the `after` of the next page; null on the last one."""

    optimizations: list[OptimizationView]
    next: int | None


class BestView(BaseModel):
    """The best feasible trial, its score where there are several objectives, and the front."""

    best: TrialView | None
    score: Annotated[float | None, Field(description="relative to the first measured trial; null with one objective")]
    front: Annotated[list[int], Field(description="numbers of the feasible trials that no other one beats")]


def optimization_view(found: Optimization, *, spec: bool = True) -> OptimizationView:
    """Return the view of an optimization."""
    names = ("id", "owner", "shared", "state", "lost_after_s", "suggested", "succeeded", "infeasible")
    return OptimizationView(
        **{name: getattr(found, name) for name in names},
        trials=found.most_trials,
        active=found.suggested - found.succeeded - found.infeasible,
        created_at=found.created_at,
        ended_at=found.ended_at,
        spec=dict(found.spec) if spec else None,
    )


def trial_view(trial: ClientTrial) -> TrialView:
    """Return the view of a trial."""
    names = ("number", "state", "params", "attempts", "metrics", "constraints", "reason")
    times = ("created_at", "heartbeat_at", "ended_at")
    return TrialView(**{name: getattr(trial, name) for name in (*names, *times)}, client_id=trial.client)


def trial_views(trials: Sequence[ClientTrial]) -> list[TrialView]:
    """Return the views of trials."""
    return [trial_view(trial) for trial in trials]
