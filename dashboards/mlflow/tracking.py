"""Around MLflow: where its data lives when no server is named, one sync at a time, its noise and its errors."""

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
    """Return the tracking URI of the MLflow database kept in `folder`."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def artifact_root(tracking_uri: str) -> Path | None:
    """Return the folder for artifacts beside an SQLite tracking database; None where a server decides."""
    path = tracking_uri.removeprefix("sqlite:///")
    return None if path == tracking_uri else Path(path).resolve().parent / "mlartifacts"


@contextmanager
def one_at_a_time(store_url: str) -> Iterator[None]:
    """Let one sync of a database run at a time on this machine; MLflow cannot refuse a second run for one trial."""
    digest = hashlib.sha256(store_url.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"tuner-sync-{os.getuid()}-{digest}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the notes of a new tracking database's migrations off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(level)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, cut where it stops being one line for people."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
