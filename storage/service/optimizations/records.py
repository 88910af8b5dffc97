"""Records of optimizations: plain, frozen, without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeAlias


class OptimizationState(StrEnum):
    """Where an optimization is: it suggests, a person stopped it, or all of its trials have ended."""

    ACTIVE = "ACTIVE"
    STOPPED = "STOPPED"
    COMPLETED = "COMPLETED"


class ClientTrialState(StrEnum):
    """Where a trial is: a client has it, it was measured, or its parameters cannot work."""

    ACTIVE = "ACTIVE"
    SUCCEEDED = "SUCCEEDED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True)
class Optimization:
    """An optimization.

    Attributes:
        id: its name, chosen by its owner.
        owner: whose it is.
        spec: space, objectives, sampler and seed, as JSON.
        created_at: time of its creation.
        lost_after_s: seconds without a sign of a client after which its trials are handed out again.
        most_trials: how many trials it suggests at most; None: no limit of its own.
        shared: whether every token may read it.
        state: see `OptimizationState`.
        suggested: number of its trials, which are numbered from 0.
        succeeded: how many of them succeeded.
        infeasible: how many are infeasible.
        ended_at: when it was stopped or completed.
        row: number of its row, which no other optimization ever has.
    """

    id: str
    owner: str
    spec: Mapping[str, Any]
    created_at: datetime
    lost_after_s: float
    most_trials: int | None = None
    shared: bool = False
    state: OptimizationState = OptimizationState.ACTIVE
    suggested: int = 0
    succeeded: int = 0
    infeasible: int = 0
    ended_at: datetime | None = None
    row: int = 0


@dataclass(frozen=True)
class ClientTrial:
    """A trial of an optimization.

    Attributes:
        number: within its optimization, from 0.
        state: see `ClientTrialState`.
        client: who has it, or had it when it ended.
        params: its configuration.
        sampled: the sampler's own values of the configuration, where they differ from it by rounding; else None.
        attempts: how many clients got it.
        created_at: when it was suggested.
        heartbeat_at: the last sign of its client.
        ended_at: when it ended; None while it is active.
        ended: its place among the ended trials of its optimization, from 1; None while it is active.
        metrics: measured values by name; None without a measurement.
        constraints: values by name, of which at most 0 is satisfied; None without a measurement.
        reason: why it is infeasible.
    """

    number: int
    state: ClientTrialState
    client: str
    params: Mapping[str, Any]
    sampled: Mapping[str, Any] | None
    attempts: int
    created_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None = None
    ended: int | None = None
    metrics: Mapping[str, float] | None = None
    constraints: Mapping[str, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Draw:
    """A configuration for a new trial; `sampled` as in `ClientTrial`."""

    params: Mapping[str, Any]
    sampled: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Proposal:
    """Configurations that a model proposes.

    Attributes:
        first: number of the first one's trial: the model has seen every trial before it, and no other one.
        draws: the configurations.
        late: whether they are taken although there are trials by now that the model has not seen.
    """

    first: int
    draws: Sequence[Draw]
    late: bool = False


@dataclass(frozen=True)
class Suggest:
    """Ask for trials.

    Attributes:
        optimization: its id.
        owner: who asks; None: an admin.
        client: name of the client within the optimization.
        count: how many trials the client wants to have.
        proposal: of a model; None where a draw needs none, or none was computed yet.
    """

    optimization: str
    owner: str | None
    client: str
    count: int
    proposal: Proposal | None = None


@dataclass(frozen=True)
class Finish:
    """End a trial; `state` is an ended one, the other attributes are those of `ClientTrial`."""

    optimization: str
    owner: str | None
    client: str
    number: int
    state: ClientTrialState
    metrics: Mapping[str, float] | None = None
    constraints: Mapping[str, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Beat:
    """Give a sign of a client, so that its trials stay its own."""

    optimization: str
    owner: str | None
    client: str


Operation: TypeAlias = Suggest | Finish | Beat


@dataclass(frozen=True)
class Suggested:
    """The trials of a client.

    Attributes:
        state: of the optimization; where it is not active, there are no new trials.
        trials: by number, at most as many as it asked for.
        missing: how many more a model has to propose.
        next: number of the next new trial.
        optimization: its row number.
    """

    state: OptimizationState
    trials: tuple[ClientTrial, ...]
    missing: int
    next: int
    optimization: int


@dataclass(frozen=True)
class Finished:
    """A trial that has ended."""

    number: int
    state: ClientTrialState


@dataclass(frozen=True)
class Beaten:
    """Numbers of the trials that a client has, and the state of their optimization."""

    state: OptimizationState
    numbers: tuple[int, ...]


Result: TypeAlias = Suggested | Finished | Beaten


@dataclass(frozen=True)
class OptimizationPage:
    """A page of optimizations; `next` is the row number after which the next page begins, None on the last one."""

    optimizations: tuple[Optimization, ...]
    next: int | None = None


class Drawer(Protocol):
    """Draws configurations of optimizations, which it knows by their row numbers."""

    def knows(self, optimization: int) -> bool:
        """Return whether it was told the optimization's `spec`."""

    def learn(self, optimization: int, spec: Mapping[str, Any]) -> None:
        """Store the `spec` of an optimization."""

    def objectives(self, optimization: int) -> Collection[str]:
        """Return the metrics that a trial needs to succeed."""

    def draw(self, optimization: int, number: int) -> Draw | None:
        """Return the configuration of a new trial; None if a model has to propose it.

        Raises:
            StorageError: if there is none.
        """
