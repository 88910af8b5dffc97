"""The places of a study's files on this machine, and the lookup of a study."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import storage as database
from tuner.errors import SettingError

if TYPE_CHECKING:
    from records.trials import StudyRecord
    from storage.store import Store

DEFAULT_FOLDER = Path("tuner_study")
"""The default folder of databases and artifacts, in the current folder."""


def database_url(storage: str | None) -> str:
    """Return the URL of a file or an SQLAlchemy URL, or of the default database; nothing is checked or created."""
    return database.normalise_url(storage or os.fspath(DEFAULT_FOLDER / "tuner.db"))


def storage_url(storage: str | None, create: bool) -> str:
    """Return the database's URL, see `database_url`; without `create`, a SQLite file must exist.

    Raises:
        SettingError: when there is no database to read.
    """
    if storage is None and create:
        DEFAULT_FOLDER.mkdir(0o700, exist_ok=True)
    url = database_url(storage)
    if not create and url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        path = url.removeprefix("sqlite:///")
        remedy = "run `tuner optimize` here first, or give {storage}"
        raise SettingError("storage", None, f"there is no database at {path}", remedy)
    return url


def find_study(store: Store, name: str | None) -> StudyRecord:
    """Return the study of that name, or the latest one.

    Raises:
        SettingError: when there is none.
    """
    studies = store.studies()
    if not studies:
        remedy = "run `tuner optimize` first, or give another {storage}"
        raise SettingError("storage", None, "the database has no study", remedy)
    if name is None:
        return max(studies, key=lambda study: study.created_at)
    for study in studies:
        if study.name == name:
            return study
    names = ", ".join(study.name for study in studies)
    raise SettingError("study", name, f"the database has no study of this name; studies: {names}")


FORMS = "a trial (12), a study (NAME), one of its trials (NAME#12), or those of another database (FILE:NAME#12)"
"""How a text names a trial."""


def named_trial(text: str) -> tuple[str | None, str, str]:
    """Return the database, the study and the number that a text names; None or empty for a part that it lacks."""
    file, colon, rest = text.rpartition(":")
    storage, text = (file, rest) if colon and Path(file).is_file() else (None, text)
    name, hash_, number = text.rpartition("#")
    if not hash_:
        name, number = ("", text) if text.isdigit() else (text, "")
    return storage, name, number


def tracking_uri(store_url: str, folder: Path = DEFAULT_FOLDER) -> str:
    """Return MLflow's tracking URI: MLFLOW_TRACKING_URI, or its own database beside the study's.

    Args:
        store_url: of the study's database.
        folder: where MLflow's database is if the study's is no file.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    return given or f"sqlite:///{data_folder(store_url, folder) / 'mlflow.db'}"


def data_folder(store_url: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """Return the folder of MLflow's database and of the artifacts, absolute: that of an SQLite file, else `folder`."""
    if store_url.startswith("sqlite:///"):
        return Path(store_url.removeprefix("sqlite:///")).resolve().parent
    return folder.resolve()


def check_folder(output: Path) -> None:
    """Refuse a file where a folder is written.

    Raises:
        SettingError: about `output`.
    """
    if output.exists() and not output.is_dir():
        raise SettingError("output", str(output), "this is a file", "give a folder")


def new_folder(output: Path) -> Path:
    """Make and return the first of the folders 1, 2, … within `output` that does not exist: two runs never share logs.

    Raises:
        SettingError: as `check_folder`.
    """
    check_folder(output)
    numbers = itertools.count(1)
    while True:
        folder = output / str(next(numbers))
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def artifacts_folder(store_url: str) -> Path:
    """Return the folder of all studies' artifacts."""
    return data_folder(store_url) / "artifacts"
