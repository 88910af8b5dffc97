"""Helpers for MLflow: where its data is without a server, one sync at a time, its log messages and its errors."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage.errors import StorageError
from storage.locks import Holder, LockHeld, sync_lock
from storage.waiting import NO_WAIT, DatabaseWait

SYNC_WAIT_S = 300.0
"""How long a sync waits for another one of the same database."""

_POLL_S = 0.1
_URL_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")


def embedded_uri(folder: Path) -> str:
    """Return the tracking URI of the MLflow database in a folder, `mlflow.db`."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def mask_passwords(text: str) -> str:
    """Return the text with `***` for the passwords of its URLs."""
    return _URL_PASSWORD.sub(r"\1***@", text)


def artifact_root(tracking_uri: str) -> Path | None:
    """Return the folder of artifacts beside an SQLite tracking database; None if a server chooses it."""
    database = database_file(tracking_uri)
    return None if database is None else database.resolve().parent / "mlartifacts"


def database_file(tracking_uri: str) -> Path | None:
    """Return the file of an SQLite tracking database; None for any other."""
    path = tracking_uri.removeprefix("sqlite:///")
    return None if path == tracking_uri else Path(path)


def local_folder(artifact_uri: str) -> Path | None:
    """Return the folder of a run's artifacts; None if it is not one of this machine."""
    parts = urlsplit(artifact_uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


@contextmanager
def one_at_a_time(
    store_url: str,
    on_wait: Callable[[str], None] = lambda _: None,
    wait_s: float = SYNC_WAIT_S,
    database_wait: DatabaseWait = NO_WAIT,
) -> Iterator[None]:
    """Run the block while no other process syncs the database.

    MLflow would accept a second run for a trial that two processes log at once.

    Args:
        store_url: the tuner's database.
        on_wait: receives one line at the start of a wait, which names the other process.
        wait_s: seconds to wait for other processes.
        database_wait: for a database that does not answer.

    Raises:
        StorageError: if another process still syncs after `wait_s`, or the lock cannot be used.
    """
    lock = sync_lock(store_url)
    deadline = time.monotonic() + wait_s
    waiting_for: Holder | None = None
    while True:
        try:
            database_wait.run(lambda _: lock.take())
            break
        except LockHeld as error:
            if time.monotonic() >= deadline:
                rule = f"{error.holder} has been logging this database to MLflow for {wait_s:.0f} s"
                raise StorageError(f"{rule}; end it, or run `tuner sync` later") from None
            if waiting_for != error.holder:
                waiting_for = error.holder
                on_wait(f"waiting at most {wait_s:.0f} s for {error.holder}, which logs this database to MLflow")
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress informational log messages, such as those of a new tracking database's migrations."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(level)
