"""Optuna's storage of one study. Its operations wait for the database like those of the tuner's own store.

The user attributes are for people who open the database with Optuna's own tools, such as optuna-dashboard.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from records.trials import Failure, StudyRecord, Verdict
from storage.database import connect_arguments, mask_password, parse_url
from storage.errors import NotYetAvailable, StorageError, StorageUnavailable, database_reason
from storage.store import Store
from storage.transactions import check_in_transactions
from storage.waiting import NO_WAIT
from tuner.scoring.goals import FAILED

RULED_OUT, DROPPED = "ruled_out", "dropped"
"""User attributes of an Optuna trial that never ran: the rule that it breaks, or the reason why it was not needed."""

_BUSY_TIMEOUT_S = 30.0
_CREATIONS = 50
"""Attempts to open a new database; each may fail at one of Optuna's dozen tables and indexes."""

T = TypeVar("T")


def open_storage(url: str, arguments: dict[str, Any]) -> optuna.storages.RDBStorage:
    """Open Optuna's storage, and create its tables if there are none.

    Optuna looks for a table and then creates it. Of several processes that open a new database at once, all but one
    fail at some table, and find it when they try again.

    Raises:
        StorageError: if the tables are those of an Optuna whose tables this one does not read.
    """
    for _ in range(_CREATIONS - 1):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=arguments)
        except IntegrityError:  # two processes have stored the schema's version
            continue
        except (OperationalError, ProgrammingError) as error:
            if "already exists" not in str(error):
                raise
        except RuntimeError as error:
            raise _other_version(url, error) from error
    return optuna.storages.RDBStorage(url, engine_kwargs=arguments)


def _other_version(url: str, error: RuntimeError) -> StorageError:
    """Return the error for tables of another version of Optuna; its text says which version, and what to do."""
    found = re.search(r"set up by optuna ([^)\s]+)\)", str(error))
    step = "back it up and run `optuna storage upgrade`" if "upgrade" in str(error) else "update Optuna"
    return StorageError(
        f"Optuna's tables in {mask_password(parse_url(url))} are of Optuna {found[1] if found else '?'}, which "
        f"Optuna {optuna.__version__} does not read; {step}, or give another database"
    )


def open_durable(url: str) -> optuna.storages.RDBStorage:
    """Open Optuna's storage for studies that are in no other table: SQLite syncs at every commit, too."""
    return open_storage(url, _engine_arguments(url, _BUSY_TIMEOUT_S, "FULL"))


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise the errors of Optuna's storage as `StorageUnavailable`."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason = database_reason(error) or str(error)
        raise StorageUnavailable(f"the database did not answer: {reason}; try again") from error


def delete_optuna_study(url: str, name: str) -> None:
    """Delete a study from Optuna's tables; without one of that name, nothing happens."""
    storage = open_storage(url, _engine_arguments(url, _BUSY_TIMEOUT_S))
    try:
        with suppress(KeyError):
            storage.delete_study(storage.get_study_id_from_name(name))
    finally:
        storage.remove_session()
        storage.engine.dispose()


class OptunaStorage:
    """Reads and writes the trials of one study in Optuna's tables; only this process adds trials to the study."""

    def __init__(self, url: str, name: str, directions: Sequence[StudyDirection], store: Store | None) -> None:
        """Open the study, or create it; the wait and the check of a store in the same database apply here as well."""
        self._wait = NO_WAIT if store is None else store.wait
        self._check = None if store is None else store.check
        self._transactions_left: int | None = None
        arguments = _engine_arguments(url, self._wait.busy_s)
        self._database = self.run(lambda _: open_storage(url, arguments))
        self._storage = optuna.storages.get_storage(self._database)  # reads an ended trial once
        check_in_transactions(self._database.engine, self._begin)
        self.study = self.run(
            lambda _: optuna.create_study(
                storage=self._storage, study_name=name, directions=directions, load_if_exists=True
            )
        )
        self.run(lambda _: self._describe(None if store is None else store.study(name)))
        self._study_id = self.run(lambda _: self._storage.get_study_id_from_name(name))

    def _describe(self, record: StudyRecord | None) -> None:
        """Store where the study's numbers come from."""
        if record is None:
            return
        present = self.study.user_attrs
        for name, value in study_attributes(record).items():
            if present.get(name) != value:
                self.study.set_user_attr(name, value)

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.remove_session()
        self._database.engine.dispose()

    def run(self, operation: Callable[[bool], T]) -> T:
        """Return the result of an operation, see `DatabaseWait.run`."""
        return self._wait.run(operation, optuna.exceptions.StorageInternalError)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, by number."""
        return self.run(lambda _: self.study.get_trials(deepcopy=False))

    def add(self, trial: FrozenTrial, before: int) -> int:
        """Store a new trial, which has `before` trials before it, in one transaction and return its number.

        If an earlier try lost its connection, a later trial with the same content is that one.
        """

        def once(again: bool) -> int:
            if again:
                content = (trial.params, trial.user_attrs)
                later = self.study.get_trials(deepcopy=False)[before:]
                for each in later:
                    if (each.params, each.user_attrs) == content:
                        return each.number
            # Optuna itself repeats a failed transaction, and would add the trial a second time.
            self._transactions_left = 1
            try:
                trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
            finally:
                self._transactions_left = None
            # The cache knows the number and would read the whole trial to return it.
            expected = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, before)
            return before if expected == trial_id else self._storage.get_trial_number_from_id(trial_id)

        return self.run(once)

    def end(self, number: int, ended: FrozenTrial) -> None:
        """Write the attributes and constraints of an ended trial, then its state and values.

        All is written again if the connection was lost before the state was written.
        """

        def once(again: bool) -> None:
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            if again and self._storage.get_trial(trial_id).state.is_finished():
                return
            for name, value in ended.user_attrs.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            for name, value in ended.system_attrs.items():
                self._storage.set_trial_system_attr(trial_id, name, value)
            self._storage.set_trial_state_values(trial_id, ended.state, ended.values)

        self.run(once)

    def _begin(self) -> None:
        """Check what must hold in each transaction."""
        if self._check is not None:
            self._check()
        if self._transactions_left is not None:
            self._transactions_left -= 1
            if self._transactions_left < 0:
                raise NotYetAvailable("the database lost the connection while a trial was added")


def study_attributes(record: StudyRecord) -> dict[str, str]:
    """Return the user attributes of a study: its provenance, engine, model and devices, as far as they are known."""
    engine = record.premise.get("engine")
    model = record.premise.get("model")
    known = {
        "provenance": record.provenance.value,
        "engine": f"{engine.get('name')} {engine.get('version')}" if isinstance(engine, Mapping) else None,
        "model": model.get("name") if isinstance(model, Mapping) else model,
        "devices": ", ".join(map(str, record.facts.get("devices", ()))),
    }
    return {name: str(value) for name, value in known.items() if value}


def attributes_of(verdict: Verdict | None, failure: Failure | None) -> dict[str, float | str]:
    """Return the user attributes of an ended trial: its score, its verdict and the kind of its failure."""
    attributes: dict[str, float | str] = {}
    if verdict is not None and verdict.score is not None:
        attributes["score"] = verdict.score
    if failure is not None:
        attributes |= {"failure": failure.kind.value, "verdict": "failed"}
    elif verdict is not None and verdict.feasible:
        attributes["verdict"] = "feasible"
    elif verdict is not None and None in verdict.values.values() and FAILED not in verdict.constraints:
        attributes["verdict"] = "cut short"
    elif verdict is not None:  # a search for the capacity has no verdict
        missed = [name for name, value in verdict.constraints.items() if value > 0]
        attributes["verdict"] = f"infeasible: {', '.join(missed) or 'an objective was not measured'}"
    return attributes


def _engine_arguments(url: str, busy_s: float, synchronous: str = "NORMAL") -> dict[str, Any]:
    """Return SQLAlchemy's arguments for Optuna's connections.

    SQLite uses a write-ahead log. With `NORMAL` it syncs at checkpoints: a killed process loses nothing. A power cut
    may lose the last trials of Optuna's tables; the tuner's own tables, synced at every commit, still contain them.
    """
    if not url.startswith("sqlite:///"):
        return {"pool_pre_ping": True, "connect_args": dict(connect_arguments(parse_url(url)))}

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=busy_s, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        return connection

    return {"creator": connect}


def reason_not_run(storage_url: str, name: str, number: int) -> str | None:
    """Return why a suggestion of a study never ran; None if Optuna has no such suggestion."""
    try:
        study = optuna.load_study(study_name=name, storage=open_storage(storage_url, {}))
    except KeyError:  # Optuna has no such study
        return None
    attributes = next((trial.user_attrs for trial in study.get_trials(deepcopy=False) if trial.number == number), {})
    reason = attributes.get(RULED_OUT, attributes.get(DROPPED))
    return None if reason is None else str(reason)
