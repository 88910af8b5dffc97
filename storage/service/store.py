"""The service's store: all reads and writes of its tables, in terms of `storage.service.records`."""

from __future__ import annotations

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from storage import database
from storage.service.access import AccessStore
from storage.service.events import WatchingStore
from storage.service.runs import RunStore
from storage.service.submissions import SubmissionStore
from storage.waiting import NO_WAIT, DatabaseWait

IDLE_TRANSACTION_S = 60
"""How long PostgreSQL keeps a transaction, and its locks, whose program sends nothing: its host may have died."""


class ServiceStore(SubmissionStore, RunStore, WatchingStore, AccessStore):
    """What the service stores beside the studies; threads, processes and hosts can share the database.

    Every method is one transaction, and either all of its changes happen or none. Times are arguments; a datetime has a
    time zone. Methods that change a submission lock its row, so they happen one after another. A store with a
    `DatabaseWait` repeats a method while the database does not answer, see `storage.transactions`: the store of a
    driver, of whose methods alone a repetition is safe.

    Raises:
        StorageError: by every method, if the database fails. Methods list further reasons.
    """


def open_service_store(url: str, wait: DatabaseWait | None = None) -> ServiceStore:
    """Open a database and return the service's store; arguments and errors are those of `storage.open_store`."""
    wait = wait or NO_WAIT
    return ServiceStore(_with_limit(database.open_engine(url, wait.busy_s)), wait)


def _with_limit(engine: Engine) -> Engine:
    """Return the engine, whose transactions on PostgreSQL end if their program stalls."""
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _limit_idle_transactions)
        engine.dispose()  # the connection of the migration has no limit
    return engine


def _limit_idle_transactions(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_S}s'")
    cursor.close()
    connection.commit()
