"""Helpers for MLflow: where its data is without a server, one sync at a time, its log messages and its errors."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def embedded_uri(folder: Path) -> str:
    """Return the tracking URI of the MLflow database in a folder, `mlflow.db`."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def artifact_root(tracking_uri: str) -> Path | None:
    """Return the folder of artifacts beside an SQLite tracking database; None if a server chooses it."""
    path = tracking_uri.removeprefix("sqlite:///")
    return None if path == tracking_uri else Path(path).resolve().parent / "mlartifacts"


@contextmanager
def one_at_a_time(store_url: str) -> Iterator[None]:
    """Run the block while no other process of this user on this machine syncs the database.

    MLflow would accept a second run for a trial that two processes log at once.
    """
    prefix, _, path = store_url.partition("sqlite:///")  # the same relative path in two folders is two databases
    database = store_url if prefix or not path else str(Path(path).resolve())
    digest = hashlib.sha256(database.encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir()) / f"tuner-sync-{os.getuid()}-{digest}.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress informational log messages, such as those of a new tracking database's migrations."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(level)
