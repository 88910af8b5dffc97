"""The part of the service's store for optimizations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, load_only

from storage.errors import NotYetAvailable, StorageError
from storage.service.access import read_tokens
from storage.service.errors import TooMany
from storage.service.optimizations.batch import Batch, trial_columns, trial_record
from storage.service.optimizations.errors import OptimizationExists, StillActive, UnknownOptimization
from storage.service.optimizations.models import ClientTrialRow, OptimizationRow
from storage.service.optimizations.records import (
    ClientTrial,
    ClientTrialState,
    Drawer,
    Operation,
    Optimization,
    OptimizationPage,
    OptimizationState,
    Result,
)
from storage.service.records import Token
from storage.service.rows import LARGEST, check_name, insert_into, take_turn
from storage.tables.mapping import to_json_value
from storage.transactions import Transactions


class OptimizationStore(Transactions):
    """Optimizations, whose trials the clients run."""

    def create_optimization(self, new: Optimization, most_active: int | None = None) -> tuple[Optimization, bool]:
        """Store an active optimization without trials.

        Args:
            new: the optimization.
            most_active: how many active ones the owner may have, with this one; None: any number.

        Returns:
            The stored one, and True if it is new. An equal one, with the same owner, spec and limits, is returned as it
            is now, with False: a client may repeat a request whose answer was lost.

        Raises:
            OptimizationExists: if there is another one of that id.
            TooMany: if the owner has `most_active` active ones already.
            StorageError: if a name is not printable or too long, or the spec is not JSON.
        """
        check_name("an optimization's id", new.id)
        check_name("an owner's name", new.owner)
        spec = to_json_value("spec", new.spec)
        with self._writing() as session:
            if most_active is not None:
                take_turn(session, "active optimizations", new.owner)
            created = _insert(session, new, spec)
            if created and most_active is not None and _active(session, new.owner) > most_active:
                raise TooMany(f"{most_active} optimizations of {new.owner} are active", "stop some first")
            row = session.scalar(select(OptimizationRow).where(OptimizationRow.name == new.id))
            if row is None:
                raise NotYetAvailable(f"the optimization {new.id!r} was deleted just now; create it again")
            stored = (row.owner, row.spec, row.lost_after_s, row.most_trials)
            if stored != (new.owner, spec, new.lost_after_s, new.most_trials):
                raise OptimizationExists(f"there is another optimization {new.id!r}; choose another id")
            return optimization_record(row), created

    def optimization(self, id: str) -> Optimization | None:
        """Return an optimization; None if there is none of that id."""
        with self._reading() as session:
            row = session.scalar(select(OptimizationRow).where(OptimizationRow.name == id))
            return None if row is None else optimization_record(row)

    def optimizations(
        self, *, owner: str | None = None, readable_by: str | None = None, after: int | None = None, limit: int = 100
    ) -> OptimizationPage:
        """Return a page of optimizations without their specs, the newest first.

        Args:
            owner: only this owner's.
            readable_by: only this owner's and shared ones.
            after: `next` of the page before; None: the first page.
            limit: the most optimizations of the page, 1 or more.
        """
        query = select(OptimizationRow).order_by(OptimizationRow.id.desc()).limit(limit + 1)
        if owner is not None:
            query = query.where(OptimizationRow.owner == owner)
        if readable_by is not None:
            query = query.where(or_(OptimizationRow.owner == readable_by, OptimizationRow.shared))
        if after is not None:
            query = query.where(OptimizationRow.id < min(after, LARGEST))
        names = [each.key for each in OptimizationRow.__table__.columns if each.key != "spec"]
        query = query.options(load_only(*(getattr(OptimizationRow, name) for name in names)))
        with self._reading() as session:
            rows = session.scalars(query).all()
            records = tuple(optimization_record(row, with_spec=False) for row in rows[:limit])
            return OptimizationPage(records, records[-1].row if len(rows) > limit else None)

    def share_optimization(self, id: str, shared: bool) -> Optimization:
        """Let every token read an optimization, or only its owner's.

        Raises:
            UnknownOptimization: if there is none of that id.
        """
        with self._writing() as session:
            row = _locked(session, id)
            row.shared = shared
            return optimization_record(row)

    def stop_optimization(self, id: str, now: datetime) -> Optimization:
        """End an active optimization: it suggests no new trial, and active trials can still end.

        Raises:
            UnknownOptimization: if there is none of that id.
        """
        with self._writing() as session:
            row = _locked(session, id)
            if row.state == OptimizationState.ACTIVE:
                row.state, row.ended_at = OptimizationState.STOPPED.value, now
            return optimization_record(row)

    def delete_optimization(self, id: str) -> None:
        """Delete an optimization that is not active, with its trials.

        Raises:
            UnknownOptimization: if there is none of that id.
            StillActive: if it is active.
        """
        with self._writing() as session:
            row = _locked(session, id)
            if row.state == OptimizationState.ACTIVE:
                raise StillActive(f"the optimization {id!r} is active; stop it first")
            session.execute(delete(ClientTrialRow).where(ClientTrialRow.optimization_id == row.id))
            session.delete(row)

    def apply(self, operations: Sequence[Operation], drawer: Drawer, now: datetime) -> Sequence[Result | StorageError]:
        """Run operations of clients in one transaction, one after another.

        An operation that is repeated, because its answer was lost, has the same effect and the same answer.

        Args:
            operations: what the clients ask.
            drawer: draws configurations of new trials.
            now: time of the operations.

        Returns:
            The result of each operation, or why it is refused; a refused one changes nothing.
        """
        return self.apply_for((), lambda _: operations, drawer, now)

    def apply_for(
        self,
        digests: Collection[str],
        make: Callable[[Mapping[str, Token]], Sequence[Operation]],
        drawer: Drawer,
        now: datetime,
    ) -> Sequence[Result | StorageError]:
        """Run operations of callers as `apply` does, in the transaction that reads their tokens.

        Args:
            digests: of the callers' tokens.
            make: returns the operations for the tokens by digest, of which some may not exist, be revoked or expired.
            drawer: see `apply`.
            now: see `apply`.
        """
        with self._writing() as session:
            operations = make(read_tokens(session, digests))
            return Batch(session, drawer, now).run(operations) if operations else []

    def client_trials(
        self,
        id: str,
        *,
        after: int = -1,
        states: Collection[ClientTrialState] | None = None,
        limit: int = 1000,
    ) -> list[ClientTrial]:
        """Return trials of an optimization by number; none if there is no such optimization.

        Args:
            id: the optimization.
            after: only trials with larger numbers.
            states: only those in one of these states.
            limit: the most trials to return.
        """
        query = select(*trial_columns()).join_from(ClientTrialRow, OptimizationRow)
        query = query.where(OptimizationRow.name == id, ClientTrialRow.number > min(after, LARGEST))
        if states is not None:
            query = query.where(ClientTrialRow.state.in_([state.value for state in states]))
        with self._reading() as session:
            return [trial_record(row) for row in session.execute(query.order_by(ClientTrialRow.number).limit(limit))]

    def changed_trials(self, optimization: int, suggested: int, ended: int) -> list[ClientTrial]:
        """Return the trials that were suggested or ended since a reader's last call, by number.

        Numbers of trials, and places of ended ones, are given within the transaction that locks the optimization's
        row. A reader that saw one has therefore seen all smaller ones.

        Args:
            optimization: its row number.
            suggested: how many trials the reader has.
            ended: how many ended ones it has.
        """
        changed = or_(ClientTrialRow.number >= suggested, ClientTrialRow.ended > ended)
        query = select(*trial_columns()).where(ClientTrialRow.optimization_id == optimization, changed)
        with self._reading() as session:
            return [trial_record(row) for row in session.execute(query.order_by(ClientTrialRow.number))]

    def measured(self, id: str) -> list[tuple[int, Mapping[str, float], Mapping[str, float]]]:
        """Return number, metrics and constraints of the trials of an optimization that succeeded, by number."""
        columns = (ClientTrialRow.number, ClientTrialRow.metrics, ClientTrialRow.constraints)
        query = select(*columns).join_from(ClientTrialRow, OptimizationRow)
        own = (OptimizationRow.name == id, ClientTrialRow.state == ClientTrialState.SUCCEEDED.value)
        with self._reading() as session:
            rows = session.execute(query.where(*own).order_by(ClientTrialRow.number))
            return [(number, metrics or {}, constraints or {}) for number, metrics, constraints in rows]


def optimization_record(row: OptimizationRow, with_spec: bool = True) -> Optimization:
    """Return the optimization of a row; without its spec, that is empty and not read."""
    return Optimization(
        id=row.name,
        owner=row.owner,
        spec=row.spec if with_spec else {},
        created_at=row.created_at,
        lost_after_s=row.lost_after_s,
        most_trials=row.most_trials,
        shared=row.shared,
        state=OptimizationState(row.state),
        suggested=row.suggested,
        succeeded=row.succeeded,
        infeasible=row.infeasible,
        ended_at=row.ended_at,
        row=row.id,
    )


def _active(session: Session, owner: str) -> int:
    """Return how many active optimizations an owner has."""
    own = (OptimizationRow.owner == owner, OptimizationRow.state == OptimizationState.ACTIVE.value)
    return session.scalar(select(func.count()).select_from(OptimizationRow).where(*own)) or 0


def _locked(session: Session, id: str) -> OptimizationRow:
    row = session.scalar(select(OptimizationRow).where(OptimizationRow.name == id).with_for_update())
    if row is None:
        raise UnknownOptimization(id)
    return row


def _insert(session: Session, new: Optimization, spec: Mapping[str, Any]) -> bool:
    """Insert the row of a new optimization; return False if there is one of its id."""
    values = {
        "name": new.id,
        "owner": new.owner,
        "shared": new.shared,
        "state": OptimizationState.ACTIVE.value,
        "spec": spec,
        "lost_after_s": new.lost_after_s,
        "most_trials": new.most_trials,
        "created_at": new.created_at,
        **dict.fromkeys(("suggested", "succeeded", "infeasible"), 0),
    }
    statement = insert_into(session, OptimizationRow).values(values).on_conflict_do_nothing()
    return session.scalar(statement.returning(OptimizationRow.id)) is not None
