"""The bodies of requests about optimizations, and of their answers."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from records.metrics import Direction
from tuner.service.http.models import ID, Body

MOST_TRIALS = 10_000
"""Trials of one optimization; a process reads all of them before its first suggestion."""

LARGEST_SPACE = 65_536
"""Bytes of a search space. Optuna reads those of all optimizations to count an owner's."""

METRIC = r"^[A-Za-z_][A-Za-z0-9_.:/%-]{0,99}$"

Number = Annotated[float, Field(allow_inf_nan=False)]
Values = Annotated[dict[Annotated[str, Field(pattern=METRIC)], Number], Field(max_length=64)]
Client = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$",
        description="name of the client, its own within the optimization",
    ),
]


class OptimizationState(StrEnum):
    """Whether there are trials to run: some may come, or all of them have ended."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"


class ClientTrialState(StrEnum):
    """Where a trial is: a client has it, it was measured, or its configuration cannot work."""

    ACTIVE = "ACTIVE"
    SUCCEEDED = "SUCCEEDED"
    INFEASIBLE = "INFEASIBLE"


class ObjectiveBody(Body):
    """A metric to optimise, and its weight among several."""

    metric: Annotated[str, Field(pattern=METRIC)]
    direction: Direction
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class NewOptimization(Body):
    """An optimization to create. The same `id` with the same content is accepted again and changes nothing."""

    id: Annotated[str | None, Field(pattern=ID, description="its name; made up if it is left out")] = None
    space: Annotated[
        str | dict[str, Any], Field(description="a search space as YAML text, or as JSON of the same content")
    ]
    objectives: Annotated[list[ObjectiveBody], Field(min_length=1, max_length=8)]
    sampler: Literal["random", "tpe", "residual"] = "residual"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    trials: Annotated[int, Field(ge=1, le=MOST_TRIALS, description="most trials to suggest")] = MOST_TRIALS
    lost_after_s: Annotated[
        float, Field(ge=10, le=7 * 86400, description="seconds without a sign of a client until others get its trials")
    ] = 600.0

    @field_validator("space")
    @classmethod
    def _check_space(cls, space: str | dict[str, Any]) -> str | dict[str, Any]:
        text = space if isinstance(space, str) else json.dumps(space, allow_nan=False, ensure_ascii=False)
        if len(text.encode()) > LARGEST_SPACE:
            raise ValueError(f"a space has at most {LARGEST_SPACE:,} bytes")
        return space


class Optimization(NewOptimization):
    """An optimization as its study stores it. Times are UTC."""

    id: str
    owner: str
    created_at: datetime


class SuggestBody(Body):
    """A client that asks for trials: those that it has, then those of lost clients, then new ones."""

    client_id: Client
    count: Annotated[int, Field(ge=1, le=50, description="how many trials the client wants to have")] = 1


class CompleteBody(Body):
    """What a client measured; without metrics, a reason or a violated constraint says why the trial is infeasible."""

    client_id: Client
    metrics: Values = Field(default_factory=dict, description="every objective, and whatever else was measured")
    constraints: Values = Field(default_factory=dict, description="values by name; at most 0 is satisfied")
    reason: Annotated[str | None, Field(min_length=1, max_length=2000, description="why there are no metrics")] = None

    @model_validator(mode="after")
    def _check_why(self) -> Self:
        if not self.metrics and self.reason is None and not any(value > 0 for value in self.constraints.values()):
            raise ValueError("without metrics, a reason or a constraint above 0 is needed")
        return self


class TrialView(BaseModel):
    """A trial. Times are UTC; `attempts` is the number of clients that got it."""

    number: int
    params: dict[str, Any]
    client_id: str
    attempts: int
    created_at: datetime
    heartbeat_at: datetime
    state: ClientTrialState = ClientTrialState.ACTIVE
    metrics: dict[str, float] = {}
    constraints: dict[str, float] = {}
    reason: str | None = None
    ended_at: datetime | None = None


class Suggestion(BaseModel):
    """Trials of a client. An optimization that is COMPLETED has no further ones."""

    state: OptimizationState
    trials: list[TrialView]


class OptimizationView(Optimization):
    """An optimization, and how many trials it has in each state."""

    state: OptimizationState
    active: int
    succeeded: int
    infeasible: int


class BestView(BaseModel):
    """The best feasible trial, null without one that can be weighed, and the front."""

    best: TrialView | None
    front: Annotated[list[int], Field(description="numbers of the feasible trials that no other one beats")]
