"""One run of a submission: its settings, its study, and the state in which it ends."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from records.trials import Culprit
from search_spaces.errors import SpaceError
from storage.errors import StorageError, StorageUnavailable
from storage.service.errors import NotYours
from storage.service.records import Driver, Request, Role, Submission, SubmissionState
from storage.service.store import ServiceStore
from tuner.cancellation import NOTICE_S, Wishes
from tuner.errors import InfrastructureError, SettingError, TunerError, UserError
from tuner.results.what_works import asked as asked_by
from tuner.service.asked.allowed import check_space, check_words
from tuner.service.asked.contents import check_contents, files_of, with_files
from tuner.service.asked.rules import ServerRules, check_rules
from tuner.service.asked.settings import read_settings
from tuner.service.driver.events import EventObserver
from tuner.service.driver.job import GAVE_BACK, Ending, Job
from tuner.service.driver.size import run_size
from tuner.service.queue.rules import SIMULATED
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import SCRIPT_FILE, StudySettings
from tuner.study.protocols import RunEnding
from tuner.study.specification.plan import gpus_of_trial
from tuner.study.specification.spec import StudySpec
from tuner.study.study_folder import StudyIsRunning, wait_until_free
from tuner.use_cases.optimize import OptimizeResult, optimize

BEAT_S = NOTICE_S
"""Seconds between two heartbeats, and the longest time until a request is noticed."""

FAILED = {
    RunEnding.DEFAULTS_FAILED: Culprit.CONFIGURATION,
    RunEnding.SAME_FAILURE: Culprit.CONFIGURATION,
    RunEnding.INFRASTRUCTURE: Culprit.INFRASTRUCTURE,
}
"""Endings by failures, and whose fault each is."""

LOCK_WAIT_S = 120.0
"""Seconds that a driver waits for another process that still runs its study, such as an ending predecessor."""


class Heartbeat:
    """Writes heartbeats in a thread, and turns requests into wishes."""

    def __init__(self, store: ServiceStore, submission: str, driver: Driver, wishes: Wishes) -> None:
        self._store, self._submission, self._driver = store, submission, driver
        self._obey = {
            Request.STOP: wishes.conclude.set,
            Request.CANCEL: wishes.cancel,
            Request.YIELD: wishes.pause.set,
        }
        self._ended = threading.Event()
        self.lost = False
        """Whether the submission is no longer this driver's."""
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                request = self._store.beat(self._submission, self._driver, datetime.now(UTC))
            except NotYours:
                self.lost = True
                self.obey(Request.CANCEL)
                return
            except StorageError:
                continue
            self.obey(request)

    def obey(self, request: Request | None) -> None:
        """Set the wish of a request."""
        if request is not None:
            self._obey[request]()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def run_submission(job: Job, submission: Submission, store: ServiceStore, driver: Driver, wishes: Wishes) -> Ending:
    """Run a submission's study until it ends, and return how.

    `wishes` are set from outside, by a signal or the heartbeat.
    """
    observer = EventObserver(store, submission.id, driver)
    try:
        wait_until_free(job.storage, submission.id, LOCK_WAIT_S, wishes.stop)
        settings = _settings(job, submission)
        if isinstance(settings, SizeSettings):
            return run_size(
                settings, job, observer, lambda answer: store.set_answer(submission.id, driver, answer), wishes
            )
        _check_sources(settings, submission, store)
        simulated = submission.kind == SIMULATED
        settings = replace(
            settings,
            engine=SIMULATED if simulated else "vllm",
            vllm=None if simulated else job.vllm,
            workers=max(len(submission.granted) // gpus_of_trial(settings), 1),
            ray_address=None if simulated else job.ray_address,
            storage=job.storage,
            output=job.folder / SCRIPT_FILE,
        )
        result = optimize(
            settings,
            observer,
            wishes,
            permit=lambda spec: _permit(spec, job.rules),
            measured=lambda: _give_back(store, submission.id, driver),
        )
    except (InfrastructureError, StorageUnavailable, StudyIsRunning) as error:
        return Ending(SubmissionState.FAILED, str(error), Culprit.INFRASTRUCTURE)
    except (UserError, SpaceError) as error:
        return Ending(SubmissionState.FAILED, str(error), Culprit.CONFIGURATION)
    except (TunerError, StorageError) as error:
        return Ending(SubmissionState.FAILED, str(error), Culprit.TUNER)
    return _ending(result, wishes)


def _settings(job: Job, submission: Submission) -> StudySettings:
    """Return the submission's settings, with its contents as files in the driver's folder.

    Raises:
        UserError: for what this server does not allow; its rules may have changed since the submission.
    """
    settings, files = read_settings(submission.settings, submission.id), files_of(submission.settings)
    check_rules(settings, job.rules)
    check_contents(settings, files)
    return with_files(settings, files, job.folder / "contents")


def _permit(spec: StudySpec, rules: ServerRules) -> None:
    """Refuse a study with a flag or a variable that this server does not allow, as the resolved plan has them."""
    check_space(spec.space.specs, rules.flags, rules.variables)
    check_words("server_arguments", spec.server.arguments, rules.flags)


def _give_back(store: ServiceStore, id: str, driver: Driver) -> None:
    """Give the devices back. A driver that lost its submission has none: its heartbeat ends it."""
    with suppress(NotYours):
        store.measured_all(id, driver, datetime.now(UTC))


def _check_sources(settings: StudySettings, submission: Submission, store: ServiceStore) -> None:
    """Refuse source studies that the owner may no longer read: sharing ends, and names are given again."""
    tokens = [token for token in store.tokens() if token.owner == submission.owner]
    if any(token.role is Role.ADMIN and token.is_valid(datetime.now(UTC)) for token in tokens):
        return
    for name in settings.learn_from:
        found = store.submission(name)
        if found is None or not (found.owner == submission.owner or found.shared):
            raise SettingError("learn_from", name, "there is no study of this name that you may read", "leave it out")


def _ending(result: OptimizeResult, wishes: Wishes) -> Ending:
    run = result.run
    if run.conclusion is not None:
        cut = run.ending is RunEnding.TIMEOUT and (wishes.conclude.is_set() or not result.has_result)
        return Ending(SubmissionState.STOPPED if cut else SubmissionState.DONE, run.conclusion.reason)
    if run.ending in FAILED:
        why = "its trials failed" if run.reason is None else f"{run.reason.kind.value}: {run.reason.message}"
        if run.ending is RunEnding.DEFAULTS_FAILED:
            wanted = asked_by(run.reason) if run.reason is not None else ""
            remedy = f"submit a baseline with {wanted}" if wanted else "submit a baseline that does"
            why = f"the defaults fail, and no given configuration works; {remedy}: {why}"
        return Ending(SubmissionState.FAILED, why, FAILED[run.ending])
    if run.ending is RunEnding.INTERRUPTED:
        return GAVE_BACK
    return Ending(SubmissionState.STOPPED, "its time ended before it had a conclusion; resume it to continue")


def remove_contents(folder: Path) -> None:
    contents = folder / "contents"
    for path in contents.glob("*") if contents.is_dir() else ():
        with suppress(OSError):
            os.unlink(path)
