"""New SQLite databases of MLflow, copied from a kept empty one: MLflow's migrations take two processor seconds.

This module does not import MLflow.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from dashboards.mlflow.ui import one_at_a_time


def create_database(database: Path, kept: Path | None, migrate: Callable[[Path], None]) -> None:
    """Create a database as a whole; one that exists stays as it is.

    MLflow makes its tables one by one. A process that is killed meanwhile would leave a database that MLflow refuses
    for good; here it leaves a file beside it that the next call removes.

    Args:
        database: the new file.
        kept: an empty database of the same version of MLflow, which is written if it is missing or damaged; None keeps
            none. A folder that cannot be written is no error.
        migrate: makes a database with MLflow's tables at a path.

    Raises:
        StorageError: if another process creates the same database and does not end.
        OSError: if the database cannot be written.
    """
    if database.exists():
        return
    with one_at_a_time(f"sqlite:///{database}"):
        if database.exists():
            return
        unfinished = database.with_name(f"{database.name}.part")
        _remove(unfinished)
        if kept is None or not _copy(kept, unfinished):
            migrate(unfinished)
            if kept is not None:
                _keep(unfinished, kept)
        unfinished.replace(database)


def _remove(database: Path) -> None:
    """Remove a database and its journal, which SQLite would apply to the next file of the same name."""
    database.unlink(missing_ok=True)
    database.with_name(f"{database.name}-journal").unlink(missing_ok=True)


def _copy(kept: Path, new: Path) -> bool:
    """Copy the kept database; return False, and leave no file, if it is missing or damaged."""
    try:
        content = kept.read_bytes()
    except OSError:
        return False
    new.write_bytes(content)
    if _is_whole(new):
        return True
    _remove(new)
    return False


def _is_whole(database: Path) -> bool:
    try:
        with closing(sqlite3.connect(database)) as connection:
            versions = connection.execute("SELECT count(*) FROM alembic_version").fetchone()
            check = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error:
        return False
    return (versions, check) == ((1,), ("ok",))


def _keep(new: Path, kept: Path) -> None:
    """Keep a copy without the experiment `Default`, which names a folder; MLflow adds it when it opens a database."""
    temporary = kept.with_name(f".{kept.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with suppress(OSError, sqlite3.Error):
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(new.read_bytes())
            with closing(sqlite3.connect(temporary)) as connection, connection:
                connection.execute("DELETE FROM experiments")
            temporary.replace(kept)
        finally:
            _remove(temporary)
