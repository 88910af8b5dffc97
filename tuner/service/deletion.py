"""Delete a study with everything that the service has of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.service.errors import WrongState
from storage.service.records import ENDED
from storage.service.store import ServiceStore
from storage.service.submissions import DELETABLE
from tuner.study.study_folder import study_lock
from tuner.use_cases.places import data_folder


def delete_study(id: str, service: ServiceStore, url: str, folder: Path) -> None:
    """Delete an ended submission, its study in the tuner's and in Optuna's tables, and its files.

    The lock of the study is held meanwhile, so no driver runs it. Optuna's study comes first: the submission stays
    until everything else in the database is gone, so an interrupted deletion can be repeated.

    Args:
        id: the submission, and the study's name.
        service: the service's store.
        url: of the database.
        folder: the submission's folder.

    Raises:
        UnknownSubmission: if there is none of that id.
        WrongState: if it has not ended.
        StudyIsRunning: if a process runs the study.
    """
    from tuner.study.optuna_storage import delete_optuna_study

    with study_lock(url, id):
        found = service.submission(id)
        if found is not None and found.state not in ENDED:
            raise WrongState(id, found.state, DELETABLE)
        delete_optuna_study(url, id)
        service.delete(id, with_study=True)
        # Without an SQLite file, the driver's artifacts are in its own folder.
        for place in (folder, data_folder(url, folder) / "artifacts" / id):
            shutil.rmtree(place, ignore_errors=True)
