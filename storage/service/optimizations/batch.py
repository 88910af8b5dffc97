"""Operations of many clients in one transaction.

The rows of all their optimizations are locked in the order of their numbers, so that two transactions never wait for
each other in a circle. Within a transaction the operations happen one after another, each on what the earlier ones
left. They change rows in memory, and each kind of change is then one statement, whatever the number of operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, and_, bindparam, insert, or_, select, tuple_, update
from sqlalchemy.orm import Session

from storage.errors import StorageError
from storage.service.optimizations.errors import (
    MissingMetric,
    NotOwner,
    NotYourTrial,
    TooManyActive,
    TrialEnded,
    UnknownOptimization,
    UnknownTrial,
)
from storage.service.optimizations.models import ClientTrialRow, OptimizationRow
from storage.service.optimizations.records import (
    Beat,
    Beaten,
    ClientTrial,
    ClientTrialState,
    Draw,
    Drawer,
    Finish,
    Finished,
    Operation,
    OptimizationState,
    Result,
    Suggest,
    Suggested,
)
from storage.service.optimizations.working import ACTIVE, WorkingOptimization, WorkingTrial

MOST_ACTIVE = 1000
"""Active trials of one optimization."""

OPTIMIZATIONS = cast(Table, OptimizationRow.__table__)
TRIALS = cast(Table, ClientTrialRow.__table__)


class Batch:
    """Runs operations in a transaction."""

    def __init__(self, session: Session, drawer: Drawer, now: datetime) -> None:
        self._session = session
        self._drawer = drawer
        self._now = now
        self._known: dict[str, WorkingOptimization] = {}
        self._created: list[dict[str, Any]] = []
        self._ended: list[dict[str, Any]] = []
        self._touched: dict[tuple[int, int], WorkingTrial] = {}

    def run(self, operations: Sequence[Operation]) -> list[Result | StorageError]:
        """Return the result of each operation, or why it is refused; a refused one changes nothing."""
        self._read_optimizations({operation.optimization for operation in operations})
        self._read_trials(operations)
        before = {id: found.counts for id, found in self._known.items()}
        results = [self._result(operation) for operation in operations]
        self._write(before)
        return self._with_params(results)

    def _read_optimizations(self, ids: set[str]) -> None:
        """Lock the optimizations, and tell the drawer the specs that it lacks."""
        names = ("id", "name", "owner", "shared", "state", "lost_after_s", "most_trials")
        counts = ("suggested", "succeeded", "infeasible", "ended_at")
        columns = [OPTIMIZATIONS.c[name] for name in (*names, *counts)]
        query = select(*columns).where(OPTIMIZATIONS.c.name.in_(ids)).order_by(OPTIMIZATIONS.c.id).with_for_update()
        for row in self._session.execute(query):
            found = WorkingOptimization(*row)
            found.state = OptimizationState(found.state)
            self._known[found.id] = found
        missing = [found.row for found in self._known.values() if not self._drawer.knows(found.row)]
        if missing:
            specs = select(OPTIMIZATIONS.c.id, OPTIMIZATIONS.c.spec).where(OPTIMIZATIONS.c.id.in_(missing))
            for number, spec in self._session.execute(specs):
                self._drawer.learn(number, spec)

    def _read_trials(self, operations: Sequence[Operation]) -> None:
        """Read the active trials of the clients, those of lost clients, and those that are to end."""
        pairs, rows, clients = [], set(), set()
        for each in operations:
            found = self._known.get(each.optimization)
            if found is None:
                continue
            if isinstance(each, Finish):
                pairs.append((found.row, each.number))
            else:
                rows.add(found.row)
                clients.add(each.client)
        wanted: list[ColumnElement[bool]] = []
        if pairs:
            wanted.append(tuple_(TRIALS.c.optimization_id, TRIALS.c.number).in_(pairs))
        if rows:
            since = self._now - timedelta(seconds=min(found.lost_after_s for found in self._known.values()))
            whose = or_(TRIALS.c.client.in_(clients), TRIALS.c.heartbeat_at < since)
            wanted.append(and_(TRIALS.c.optimization_id.in_(rows), TRIALS.c.ended.is_(None), whose))
        if not wanted:
            return
        names = ("number", "state", "client", "attempts", "heartbeat_at", "metrics", "constraints", "reason")
        query = select(TRIALS.c.optimization_id, *(TRIALS.c[name] for name in names)).where(or_(*wanted))
        by_row = {found.row: found.trials for found in self._known.values()}
        for row, *values in self._session.execute(query):
            fields = dict(zip(names, values, strict=True))
            by_row[row][fields["number"]] = WorkingTrial(**fields)

    def _result(self, operation: Operation) -> Result | StorageError:
        found = self._known.get(operation.optimization)
        try:
            stranger = found is not None and operation.owner not in (None, found.owner)
            if found is None or (stranger and not found.shared):
                raise UnknownOptimization(operation.optimization)
            if stranger:
                raise NotOwner(found.id, found.owner)
            if isinstance(operation, Suggest):
                return self._suggest(found, operation)
            if isinstance(operation, Finish):
                return self._finish(found, operation)
            return self._beat(found, operation)
        except StorageError as error:
            return error

    def _suggest(self, found: WorkingOptimization, asked: Suggest) -> Suggested:
        own = found.of_client(asked.client)
        taken: list[WorkingTrial] = []
        missing = 0
        if found.state is OptimizationState.ACTIVE:
            others = (trial for trial in found.lost(self._now) if trial.client != asked.client)
            taken = list(islice(others, max(asked.count - len(own), 0)))
            missing = self._new(found, asked.count - len(own) - len(taken))
            if missing == 0 and not own and not taken and found.active >= MOST_ACTIVE:
                rule = f"{found.active} trials of {found.id!r} are active, and {MOST_ACTIVE} are the most"
                raise TooManyActive(f"{rule}; complete some first")
        draws = self._draws(found, asked, missing)
        for trial in taken:
            trial.client, trial.attempts = asked.client, trial.attempts + 1
        own = sorted([*own, *taken], key=lambda trial: trial.number)
        for trial in own:
            self._touch(found, trial)
        own += [self._add(found, asked.client, draw) for draw in draws]
        trials = tuple(_as_result(trial) for trial in own[: asked.count])
        return Suggested(found.state, trials, missing - len(draws), found.suggested, found.row)

    def _new(self, found: WorkingOptimization, wanted: int) -> int:
        """Return how many of the wanted new trials the limits allow."""
        most = MOST_ACTIVE - found.active
        if found.most_trials is not None:
            most = min(most, found.most_trials - found.suggested)
        return max(min(wanted, most), 0)

    def _draws(self, found: WorkingOptimization, asked: Suggest, count: int) -> list[Draw]:
        """Return configurations for new trials; none if a model has to propose them first."""
        numbers = range(found.suggested, found.suggested + count)
        drawn = [self._drawer.draw(found.row, number) for number in numbers]
        draws = [draw for draw in drawn if draw is not None]
        proposal = asked.proposal
        if draws or proposal is None or not (proposal.late or proposal.first == found.suggested):
            return draws
        return list(proposal.draws[:count])

    def _add(self, found: WorkingOptimization, client: str, draw: Draw) -> WorkingTrial:
        number = found.suggested
        trial = WorkingTrial(number, ACTIVE, client, 1, self._now, draw.params, self._now, draw.sampled, is_new=True)
        found.suggested += 1
        found.trials[number] = trial
        place = {"optimization_id": found.row, "number": number, "state": ACTIVE, "client": client, "attempts": 1}
        values = {"params": draw.params, "sampled": draw.sampled}
        self._created.append({**place, **values, "created_at": self._now, "heartbeat_at": self._now})
        return trial

    def _finish(self, found: WorkingOptimization, end: Finish) -> Finished:
        trial = found.trials.get(end.number)
        if trial is None:
            raise UnknownTrial(found.id, end.number)
        said = (end.state.value, end.metrics, end.constraints, end.reason)
        if trial.client != end.client:
            rule = f"trial {end.number} of {found.id!r} is the client {trial.client!r}'s"
            raise NotYourTrial(f"{rule}; its trials go to others without a heartbeat for {found.lost_after_s:g} s")
        if trial.state != ACTIVE:
            if trial.result != said:
                raise TrialEnded(f"trial {end.number} of {found.id!r} is {trial.state} with another result")
            return Finished(trial.number, end.state)
        if end.state is ClientTrialState.SUCCEEDED:
            for metric in self._drawer.objectives(found.row):
                if metric not in (end.metrics or {}):
                    raise MissingMetric(metric)
        trial.state, trial.metrics, trial.constraints, trial.reason = said
        found.succeeded += end.state is ClientTrialState.SUCCEEDED
        found.infeasible += end.state is ClientTrialState.INFEASIBLE
        if found.most_trials == found.ended and found.state is OptimizationState.ACTIVE:
            found.state, found.ended_at = OptimizationState.COMPLETED, self._now
        place = {"row": found.row, "its_number": trial.number, "ended": found.ended}
        values = dict(zip(("state", "metrics", "constraints", "reason"), said, strict=True))
        self._ended.append({**place, **values, "ended_at": self._now, "heartbeat_at": self._now})
        return Finished(trial.number, end.state)

    def _beat(self, found: WorkingOptimization, beat: Beat) -> Beaten:
        own = found.of_client(beat.client)
        for trial in own:
            self._touch(found, trial)
        return Beaten(found.state, tuple(trial.number for trial in own))

    def _touch(self, found: WorkingOptimization, trial: WorkingTrial) -> None:
        trial.heartbeat_at = self._now
        if not trial.is_new:
            self._touched[found.row, trial.number] = trial

    def _write(self, before: Mapping[str, tuple[object, ...]]) -> None:
        """Write what the operations changed."""
        if self._created:
            self._session.execute(insert(TRIALS), self._created)
        if self._touched:
            changes = [
                {"row": row, "its_number": number, **{name: getattr(trial, name) for name in _KEPT}}
                for (row, number), trial in self._touched.items()
            ]
            self._session.execute(_update_trials(_KEPT), changes)
        if self._ended:
            self._session.execute(_update_trials(_END), self._ended)
        names = ("state", "suggested", "succeeded", "infeasible", "ended_at")
        rows = [
            {"row": found.row, **{name: getattr(found, name) for name in names}}
            for id, found in self._known.items()
            if found.counts != before[id]
        ]
        if rows:
            changed = update(OPTIMIZATIONS).where(OPTIMIZATIONS.c.id == bindparam("row"))
            self._session.execute(changed.values({name: bindparam(name) for name in names}), rows)

    def _with_params(self, results: Sequence[Result | StorageError]) -> list[Result | StorageError]:
        """Return the results with the configurations of trials that existed before the batch."""
        wanted: dict[tuple[int, int], ClientTrial] = {}
        for result in results:
            if isinstance(result, Suggested):
                wanted |= {(result.optimization, each.number): each for each in result.trials if each.params is _UNREAD}
        if not wanted:
            return list(results)
        names = ("optimization_id", *_RECORD)
        query = select(*(TRIALS.c[name] for name in names))
        found: dict[int, dict[int, ClientTrial]] = defaultdict(dict)
        for row, *values in self._session.execute(query.where(tuple_(*TRIALS.primary_key).in_(list(wanted)))):
            record = trial_record(values)
            found[row][record.number] = record
        return [_completed(result, found) if isinstance(result, Suggested) else result for result in results]


_KEPT = ("client", "attempts", "heartbeat_at")
_END = ("state", "metrics", "constraints", "reason", "ended", "ended_at", "heartbeat_at")
_UNREAD: Mapping[str, Any] = {}
_RECORD = tuple(ClientTrial.__dataclass_fields__)


def trial_columns() -> list[Any]:
    """Return the columns of `trial_record`."""
    return [TRIALS.c[name] for name in _RECORD]


def trial_record(values: Sequence[Any]) -> ClientTrial:
    """Return the trial of a row of `trial_columns`."""
    fields = dict(zip(_RECORD, values, strict=True))
    return ClientTrial(**{**fields, "state": ClientTrialState(fields["state"])})


def _update_trials(values: Sequence[str]) -> Any:
    place = (TRIALS.c.optimization_id == bindparam("row"), TRIALS.c.number == bindparam("its_number"))
    return update(TRIALS).where(*place).values({name: bindparam(name) for name in values})


def _as_result(trial: WorkingTrial) -> ClientTrial:
    params = _UNREAD if trial.params is None else trial.params
    created_at = trial.created_at or trial.heartbeat_at
    state, beat = ClientTrialState(trial.state), trial.heartbeat_at
    return ClientTrial(trial.number, state, trial.client, params, trial.sampled, trial.attempts, created_at, beat)


def _completed(result: Suggested, found: Mapping[int, Mapping[int, ClientTrial]]) -> Suggested:
    own = found.get(result.optimization, {})
    trials = tuple(own[each.number] if each.params is _UNREAD else each for each in result.trials)
    return Suggested(result.state, trials, result.missing, result.next, result.optimization)
