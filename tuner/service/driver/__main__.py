"""`python -m tuner.service.driver`: the process that the scheduler starts for one run of a submission.

The job is in the environment. The exit code is 0 if the run's end is in the database, else 1; also 1 if a cancelled
run did not end by itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime

from records.trials import Culprit
from storage.service.errors import NotYours
from storage.service.records import Driver, Request, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from storage.waiting import DatabaseWait
from tuner.cancellation import Wishes
from tuner.files import be_private
from tuner.processes.last_resort import ends_in_time
from tuner.service.driver.job import GAVE_BACK, VARIABLE, Ending, Job, this_driver
from tuner.service.driver.run import Heartbeat, remove_contents, run_submission
from tuner.service.watching.logs import VARIABLE as LOG_FORMAT
from tuner.service.watching.logs import LogFormat, say, set_up


def main() -> int:
    """Run the job of the environment."""
    job, wishes, driver = Job.from_environment(os.environ), Wishes(), this_driver()
    be_private()
    del os.environ[VARIABLE]  # the database's password is not for servers
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: wishes.cancel())
    set_up(LogFormat(os.environ.get(LOG_FORMAT, "text")), sys.stdout, times=True, study=job.submission)
    empty = job.folder / "work"  # in which no setting can name a file by a relative path
    empty.mkdir(parents=True, exist_ok=True)
    os.chdir(empty)
    wait = DatabaseWait(lambda text: say(logging.WARNING, text), wishes.stop)
    with closing(open_service_store(job.storage, wait)) as store:
        with suppress(NotYours):
            store.set_driver(job.submission, driver, datetime.now(UTC), job.run)
            with ends_in_time(wishes.at_once, 1, lambda: _end(job, store, driver, GAVE_BACK)):
                _drive(job, store, driver, wishes)
            return 0
        say(logging.WARNING, "the submission has another driver by now")
    return 0


def _drive(job: Job, store: ServiceStore, driver: Driver, wishes: Wishes) -> None:
    submission = store.submission(job.submission)
    assert submission is not None  # it has this driver
    heartbeat = Heartbeat(store, job.submission, driver, wishes)
    heartbeat.obey(submission.request)
    try:
        ending = run_submission(job, submission, store, driver, wishes)
    except Exception as error:  # noqa: BLE001  the run's boundary: whatever it raises, the submission ends
        say(logging.ERROR, f"internal error: {type(error).__name__}", error, culprit=Culprit.TUNER.value)
        ending = Ending(SubmissionState.FAILED, f"internal error: {type(error).__name__}: {error}", Culprit.TUNER)
    finally:
        heartbeat.close()
    _end(job, store, driver, ending)


def _end(job: Job, store: ServiceStore, driver: Driver, ending: Ending) -> None:
    """Store how the run ended; a request to cancel changes that. A submission of another driver stays as it is."""
    remove_contents(job.folder)
    try:
        request = store.beat(job.submission, driver, datetime.now(UTC))
    except NotYours:
        return
    if request is Request.CANCEL and ending.state is not SubmissionState.DONE:
        ending = Ending(SubmissionState.CANCELLED, "ended on request")
    culprit = None if ending.culprit is None else ending.culprit.value
    level = logging.ERROR if ending.state is SubmissionState.FAILED else logging.INFO
    text = f"{ending.state.value}: {ending.reason or 'no reason given'}"
    say(level, text, state=ending.state.value, culprit=culprit, run=job.run)
    store.end(job.submission, driver, ending.state, ending.reason, culprit, datetime.now(UTC))


if __name__ == "__main__":
    sys.exit(main())
