"""A database that commits, and whose acknowledgement is lost."""

import sqlite3
from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine.default import DefaultDialect

T = TypeVar("T")


def losing_one(engine: Engine, write: Callable[[], T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Return the result of a write, the acknowledgement of whose first commit with a change is lost."""
    commit = DefaultDialect.do_commit
    lost: list[int] = []
    with engine.connect() as connection:
        before = connection.connection.total_changes

    def without_acknowledgement(dialect: DefaultDialect, connection: sqlite3.Connection) -> None:
        commit(dialect, connection)  # type: ignore[no-untyped-call]
        if connection.total_changes > before and not lost:
            lost.append(1)
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(DefaultDialect, "do_commit", without_acknowledgement)
        result = write()
    assert lost == [1]
    return result
