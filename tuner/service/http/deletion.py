"""Delete a study with everything that the service has of it."""

from __future__ import annotations

import shutil

from storage.service.errors import WrongState
from storage.service.records import ENDED
from storage.service.submissions import DELETABLE
from tuner.service.http.context import ServiceContext
from tuner.study.lock import study_lock
from tuner.use_cases.places import artifacts_folder


def delete_study(id: str, context: ServiceContext) -> None:
    """Delete an ended submission, its study in the tuner's and in Optuna's tables, and its files.

    The lock of the study is held meanwhile, so no driver runs it. Optuna's study comes first: the submission stays
    until everything else in the database is gone, so an interrupted deletion can be repeated.

    Raises:
        UnknownSubmission: if there is none of that id.
        WrongState: if it has not ended.
        StudyIsRunning: if a process runs the study.
    """
    from tuner.study.optuna_storage import delete_optuna_study

    with study_lock(context.url, id):
        found = context.service.submission(id)
        if found is not None and found.state not in ENDED:
            raise WrongState(id, found.state, DELETABLE)
        delete_optuna_study(context.url, id)
        context.service.delete(id, with_study=True)
        for folder in (context.folder_of(id), artifacts_folder(context.url) / id):
            shutil.rmtree(folder, ignore_errors=True)
