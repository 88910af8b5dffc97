"""Optimizations as studies in Optuna's tables of the service's database.

The study's attribute `optimization` has what was asked, its owner and its time. A trial's attribute `lease` says which
client has it, and `result` what that client measured. Operations on one optimization happen one after another, in all
processes, so a client that lost an answer repeats its request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from records.metrics import Direction
from storage.service.store import ServiceStore
from tuner.errors import SettingError
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, Objective, score
from tuner.service.http.optimizations.models import (
    BestView,
    ClientTrialState,
    CompleteBody,
    Optimization,
    OptimizationState,
    OptimizationView,
    Suggestion,
    TrialView,
)
from tuner.service.http.optimizations.proposals import Proposer, proposer_of
from tuner.service.http.problems import Problem, not_found
from tuner.study.optuna_storage import database_errors, open_durable

PREFIX = "optimization/"
"""Begin of the studies' names; no study of the service has a slash."""

MOST_OWNED = 200
"""Optimizations of one owner."""

MOST_ACTIVE = 1000
"""Trials of one optimization that clients have."""

MOST_OPEN = 64
"""Studies whose trials a process keeps in memory; others are read again when they are needed."""

_ASKED = "optimization"
_NAMES = {"id", "owner", "space", "objectives", "sampler", "seed", "trials", "lost_after_s"}
"""What makes two requests to create the same."""


@dataclass(frozen=True)
class _Open:
    """A study with its trials in memory, and what proposes new ones."""

    study: optuna.Study
    proposer: Proposer

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)


class Optimizations:
    """The optimizations of a database; used by threads. The service's store gives processes their turns."""

    def __init__(self, url: str, service: ServiceStore, clock: Callable[[], datetime]) -> None:
        self._service, self._clock = service, clock
        with database_errors():
            self._storage = open_durable(url)
        self._open = lru_cache(MOST_OPEN)(self._opened)

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def create(self, asked: Optimization) -> tuple[OptimizationView, bool]:
        """Create an optimization; return it and True, or an equal one that exists and False.

        Raises:
            SettingError: if the id is taken, the owner has too many, or nothing can be proposed.
            Problem: 409 if the owner has another one of that id.
        """
        proposer = proposer_of(asked)
        with self._service.turn("optimizations", "new"), database_errors():
            known = self._find(asked.id)
            if known is None:
                proposer.propose([])
                self._create(asked, proposer)
            elif known[1].owner != asked.owner:
                raise _taken(asked.id)
            elif known[1].model_dump(include=_NAMES) != asked.model_dump(include=_NAMES):
                raise Problem(409, f"there is another optimization {asked.id!r}; choose another id", "id")
        return self.view(asked.id), known is None

    def _create(self, asked: Optimization, proposer: Proposer) -> None:
        owners = [each.user_attrs.get(_ASKED, {}).get("owner") for each in self._storage.get_all_studies()]
        if owners.count(asked.owner) >= MOST_OWNED:
            rule = f"{asked.owner} has {MOST_OWNED} optimizations, and that is the most"
            raise SettingError("id", asked.id, rule, "delete some first")
        try:
            number = self._storage.create_new_study(proposer.directions, PREFIX + asked.id)
        except optuna.exceptions.DuplicatedStudyError:  # its creation was interrupted, or it is not the service's
            raise _taken(asked.id) from None
        self._storage.set_study_user_attr(number, _ASKED, asked.model_dump(mode="json"))

    def _find(self, id: str) -> tuple[int, Optimization] | None:
        try:
            number = self._storage.get_study_id_from_name(PREFIX + id)
            attributes = self._storage.get_study_user_attrs(number)
        except KeyError:
            return None
        return (number, Optimization.model_validate(attributes[_ASKED])) if _ASKED in attributes else None

    def _found(self, id: str) -> tuple[int, Optimization]:
        if (found := self._find(id)) is None:
            raise not_found("optimization", id)
        return found

    def _opened(self, number: int, id: str, created_at: datetime) -> _Open:
        """Open a study; SQLite may give its number again, but not with the same time."""
        proposer = proposer_of(self._found(id)[1])
        return _Open(optuna.load_study(study_name=PREFIX + id, storage=self._storage), proposer)

    def _of(self, id: str) -> tuple[Optimization, _Open]:
        number, asked = self._found(id)
        return asked, self._open(number, id, asked.created_at)

    @contextmanager
    def _turn(self, id: str) -> Iterator[None]:
        with self._service.turn("optimization", id), database_errors():
            yield

    @database_errors()
    def find(self, id: str) -> Optimization | None:
        """Return an optimization; None if there is none of that id."""
        found = self._find(id)
        return None if found is None else found[1]

    def view(self, id: str) -> OptimizationView:
        """Return an optimization with the numbers of its trials.

        Raises:
            Problem: 404 if there is none.
        """
        with self._turn(id):
            asked, open_ = self._of(id)
            trials = open_.trials()
            states = [_state_of(each) for each in trials]
            counts = {state.value.lower(): states.count(state) for state in ClientTrialState}
            return OptimizationView(**asked.model_dump(), **counts, state=_state(asked, trials))

    def delete(self, id: str) -> None:
        """Delete an optimization with its trials."""
        with self._turn(id):
            self._storage.delete_study(self._found(id)[0])

    def best(self, id: str) -> BestView:
        """Return the best feasible trial and the front; of equal ones the earliest."""
        with self._turn(id):
            _, open_ = self._of(id)
            return _best(open_.trials(), open_.proposer.objectives)

    def suggest(self, id: str, client: str, count: int) -> Suggestion:
        """Return the trials of a client, then those of lost clients, then new ones; `count` at most.

        Raises:
            SettingError: if the rules of the space exclude every proposal.
        """
        with self._turn(id):
            asked, open_ = self._of(id)
            now, trials = self._clock(), open_.trials()
            active = [each for each in trials if each.state is TrialState.RUNNING]
            own = {each.number for each in active if each.user_attrs["lease"]["client_id"] == client}
            lost = {each.number for each in active if _is_lost(each, now, asked.lost_after_s)}
            numbers = [*sorted(own), *sorted(lost - own)][:count]
            for number in numbers:
                self._lease(trials[number], client, now)
            for _ in range(min(count - len(numbers), asked.trials - len(trials), MOST_ACTIVE - len(active))):
                numbers.append(_add(open_, client, now))
            found = open_.trials()
            given = [_view(found[number]) for number in sorted(numbers)]
            return Suggestion(state=_state(asked, found), trials=given)

    def _lease(self, trial: FrozenTrial, client: str, now: datetime) -> None:
        lease = trial.user_attrs["lease"]
        attempts = lease["attempts"] + (lease["client_id"] != client)
        changed = {**lease, "client_id": client, "attempts": attempts, "heartbeat_at": now.isoformat()}
        self._storage.set_trial_user_attr(trial._trial_id, "lease", changed)

    def complete(self, id: str, number: int, body: CompleteBody) -> TrialView:
        """End a trial of a client. A repeated end with the same result changes nothing.

        Raises:
            Problem: 404 for an unknown trial; 409 if another client has it, or it has ended with another result; 422
                if an objective is missing.
        """
        with self._turn(id):
            asked, open_ = self._of(id)
            trials = open_.trials()
            if number >= len(trials):
                raise Problem(404, f"the optimization {id!r} has no trial {number}")
            trial, owner = trials[number], trials[number].user_attrs["lease"]["client_id"]
            if owner != body.client_id:
                rule = f"its trials go to others without a request for {asked.lost_after_s:g} s"
                raise Problem(409, f"trial {number} of {id!r} is the client {owner!r}'s; {rule}", "client_id")
            state = ClientTrialState.SUCCEEDED if body.metrics else ClientTrialState.INFEASIBLE
            result: dict[str, Any] = {"state": state.value, **body.model_dump(exclude={"client_id"})}
            if trial.state is TrialState.RUNNING:
                _check(result, open_.proposer)
                _end(open_, trial, {**result, "ended_at": self._clock().isoformat()})
            elif {**trial.user_attrs["result"], "ended_at": None} != {**result, "ended_at": None}:
                raise Problem(409, f"trial {number} of {id!r} is {_state_of(trial)} with another result")
            return _view(open_.trials()[number])


def _taken(id: str) -> SettingError:
    return SettingError("id", id, "this id is taken", "choose another one")


def _add(open_: _Open, client: str, now: datetime) -> int:
    """Store a new trial of a client, in one transaction, and return its number."""
    trials = open_.trials()
    sampled, config = open_.proposer.propose(trials)
    lease = {"client_id": client, "attempts": 1, "created_at": now.isoformat(), "heartbeat_at": now.isoformat()}
    new = create_trial(
        state=TrialState.RUNNING,
        params=sampled.params,
        distributions=sampled.distributions,
        user_attrs={"params": dict(config), "lease": lease},
    )
    open_.study.add_trial(new)
    return len(trials)


def _check(result: dict[str, Any], proposer: Proposer) -> None:
    metrics = result["metrics"]
    missing = next((each.metric for each in proposer.objectives if each.metric not in metrics), None)
    if metrics and missing is not None:
        rule = "every objective is needed"
        raise Problem(422, f"the objective {missing!r} is missing; give every one", f"metrics.{missing}", None, rule)


def _end(open_: _Open, trial: FrozenTrial, result: dict[str, Any]) -> None:
    """Store a result, and then the state."""
    metrics, objectives = result["metrics"], open_.proposer.objectives
    measured = (each for each in open_.trials() if each.state is TrialState.COMPLETE)
    reference = next((each.user_attrs["result"]["metrics"] for each in measured), metrics)
    handle = Trial(open_.study, trial._trial_id)
    handle.set_user_attr("result", result)
    handle.set_user_attr("score", score(metrics, reference, objectives))
    constraints = {**result["constraints"], FAILED: 0.0 if metrics else FAILED_VIOLATION}
    for name in constraints.keys() - trial.constraints.keys():  # an interrupted try has stored the others
        handle.set_constraint(name, constraints[name])
    if metrics:
        open_.study.tell(handle, [metrics[each.metric] for each in objectives])
    else:
        open_.study.tell(handle, state=TrialState.PRUNED)


def _is_lost(trial: FrozenTrial, now: datetime, lost_after_s: float) -> bool:
    """Return whether the client of a trial has asked nothing for too long."""
    heartbeat_at = datetime.fromisoformat(trial.user_attrs["lease"]["heartbeat_at"])
    return now - heartbeat_at > timedelta(seconds=lost_after_s)


def _state_of(trial: FrozenTrial) -> ClientTrialState:
    if trial.state is TrialState.RUNNING:
        return ClientTrialState.ACTIVE
    return ClientTrialState.SUCCEEDED if trial.state is TrialState.COMPLETE else ClientTrialState.INFEASIBLE


def _state(asked: Optimization, trials: Sequence[FrozenTrial]) -> OptimizationState:
    ended = sum(each.state.is_finished() for each in trials)
    return OptimizationState.COMPLETED if ended == asked.trials else OptimizationState.ACTIVE


def _view(trial: FrozenTrial) -> TrialView:
    known = {**trial.user_attrs["lease"], **(trial.user_attrs["result"] if trial.state.is_finished() else {})}
    return TrialView(number=trial.number, params=trial.user_attrs["params"], **known)


def _best(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> BestView:
    measured = [each for each in trials if each.state is TrialState.COMPLETE]
    signs = [-1 if each.direction is Direction.MAXIMIZE else 1 for each in objectives]
    feasible = [each for each in measured if all(value <= 0 for value in each.constraints.values())]
    costs = {each.number: tuple(s * v for s, v in zip(signs, each.values, strict=True)) for each in feasible}
    front = _front(costs)
    if not front:
        return BestView(best=None, front=[])
    scores = dict.fromkeys(front, 0.0)
    if len(objectives) > 1:
        values = {each.number: each.user_attrs["result"]["metrics"] for each in measured}
        found = {number: score(values[number], values[measured[0].number], objectives) for number in front}
        scores = {number: value for number, value in found.items() if value is not None}
    best = max(scores, key=lambda number: (scores[number], -number), default=None)
    return BestView(best=None if best is None else _view(trials[best]), front=front)


def _front(costs: dict[int, tuple[float, ...]]) -> list[int]:
    """Return the numbers without a dominating one; in the order of costs, only earlier ones can dominate."""
    front: list[int] = []
    for number in sorted(costs, key=lambda number: (costs[number], number)):
        mine = costs[number]
        if not any(costs[n] != mine and all(a <= b for a, b in zip(costs[n], mine, strict=True)) for n in front):
            front.append(number)
    return sorted(front)
