"""Transactions on one database, for reading and for writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from storage.database import storage_errors, writing_engine


class Transactions:
    """Opens a session for each transaction. Errors of the database become `StorageError`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = writing_engine(engine)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with storage_errors(self._engine.url), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with storage_errors(self._engine.url), Session(self._writer) as session, session.begin():
            yield session
