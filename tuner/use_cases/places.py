"""Where things are kept on this machine, and how a study is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import UserError

if TYPE_CHECKING:
    from storage.records import StudyRecord
    from storage.store import Store

FOLDER = Path("tuner_study")
"""The folder of a study's database, MLflow and artifacts, in the current one."""


def home() -> Path:
    """Return the folder for caches and the registry of started processes: TUNER_HOME, or ~/.cache/tuner."""
    given = os.environ.get("TUNER_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "tuner"


def storage_url(storage: str | None, create: bool) -> str:
    """Return the database's URL.

    Args:
        storage: what the user gave.
        create: whether the default folder may be made; without it, a missing SQLite file is the user's mistake.

    Raises:
        UserError: when there is nothing to read.
    """
    from storage import normalise_url

    if storage is None and create:
        FOLDER.mkdir(exist_ok=True)
    url = normalise_url(storage or os.fspath(FOLDER / "tuner.db"))
    if not create and url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        path = url.removeprefix("sqlite:///")
        raise UserError(f"there is no database at {path}; run `tuner optimize` here first, or give --storage")
    return url


def find_study(store: Store, name: str | None) -> StudyRecord:
    """Return the study of that name, or the one that was created last.

    Raises:
        UserError: when there is none.
    """
    studies = store.studies()
    if not studies:
        raise UserError("the database holds no study; run `tuner optimize` first, or give another --storage")
    if name is None:
        return max(studies, key=lambda study: study.created_at)
    for study in studies:
        if study.name == name:
            return study
    raise UserError(f"--study {name!r}: there is none of that name; studies: {', '.join(s.name for s in studies)}")


def tracking_uri(store_url: str) -> str:
    """Return MLflow's tracking URI: MLFLOW_TRACKING_URI, or a database of its own beside the study's."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given
    folder = FOLDER
    if store_url.startswith("sqlite:///"):
        folder = Path(store_url.removeprefix("sqlite:///")).parent
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"
