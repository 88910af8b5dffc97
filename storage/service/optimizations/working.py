"""Rows of optimizations and their trials as the operations of a batch change them, before they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from storage.service.optimizations.records import ClientTrialState, OptimizationState

ACTIVE = ClientTrialState.ACTIVE.value


@dataclass
class WorkingTrial:
    """A trial as the operations of a batch change it; `params` are read only where they are returned."""

    number: int
    state: str
    client: str
    attempts: int
    heartbeat_at: datetime
    params: Mapping[str, Any] | None = None
    created_at: datetime | None = None
    sampled: Mapping[str, Any] | None = None
    metrics: Mapping[str, float] | None = None
    constraints: Mapping[str, float] | None = None
    reason: str | None = None
    is_new: bool = False

    @property
    def result(self) -> tuple[object, ...]:
        """What a client says when it ends the trial."""
        return self.state, self.metrics, self.constraints, self.reason


@dataclass
class WorkingOptimization:
    """An optimization as the operations of a batch change it, with the trials that they need."""

    row: int
    id: str
    owner: str
    shared: bool
    state: OptimizationState
    lost_after_s: float
    most_trials: int | None
    suggested: int
    succeeded: int
    infeasible: int
    ended_at: datetime | None
    trials: dict[int, WorkingTrial] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """The number of ended trials."""
        return self.succeeded + self.infeasible

    @property
    def active(self) -> int:
        """The number of active trials."""
        return self.suggested - self.ended

    @property
    def counts(self) -> tuple[object, ...]:
        """What a batch may change of the row."""
        return self.state, self.suggested, self.succeeded, self.infeasible

    def of_client(self, client: str) -> list[WorkingTrial]:
        """Return a client's active trials by number."""
        own = (trial for trial in self.trials.values() if trial.client == client and trial.state == ACTIVE)
        return sorted(own, key=lambda trial: trial.number)

    def lost(self, now: datetime) -> list[WorkingTrial]:
        """Return the active trials whose clients gave no sign for too long, by number."""
        since = now - timedelta(seconds=self.lost_after_s)
        lost = (trial for trial in self.trials.values() if trial.state == ACTIVE and trial.heartbeat_at < since)
        return sorted(lost, key=lambda trial: trial.number)
