"""One run of a submission: which culprit a failure has, and what a request does."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from records.trials import Culprit
from storage import normalise_url
from storage.service.records import Driver, Request, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.cli.conftest import NoMlflow
from tests.empty_database import write_empty_database
from tests.unit.storage.test_locks import another_process
from tuner.cancellation import Wishes
from tuner.service.asked.rules import ServerRules
from tuner.service.driver import run
from tuner.service.driver.job import Job, this_driver
from tuner.service.driver.run import Ending, Heartbeat, run_submission
from tuner.use_cases import optimize as optimize_run

NOW = datetime(2026, 11, 25, tzinfo=UTC)
ID = "s"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceStore]:
    monkeypatch.setattr(optimize_run, "MlflowFollower", NoMlflow)
    write_empty_database(tmp_path / "t.db")
    with closing(open_service_store(normalise_url(str(tmp_path / "t.db")))) as store:
        yield store


def started(store: ServiceStore, settings: dict[str, object]) -> tuple[Submission, Driver]:
    """Return a simulated submission that has a device, and this process as its driver."""
    store.submit(Submission(ID, "ada", settings, "simulated", 1, 0, NOW, NOW))
    lease = store.take_lease("scheduler", "test", 60.0, NOW)
    assert lease is not None
    assert store.start(ID, ["simulated:0"], lease, NOW)
    driver = this_driver()
    return store.set_driver(ID, driver, NOW), driver


def run_it(store: ServiceStore, folder: Path, **settings: object) -> Ending:
    submission, driver = started(
        store, {"engine": "simulated", "trials": 1, "num_prompts": 8, "reduce": False, **settings}
    )
    job = Job(normalise_url(str(folder / "t.db")), ID, 1, folder)
    return run_submission(job, submission, store, driver, Wishes())


def test_a_driver_reads_the_job_that_its_scheduler_wrote(tmp_path: Path) -> None:
    rules = ServerRules((tmp_path,), False, frozenset({"--a"}), frozenset({"B"}), frozenset({"C"}))
    job = Job("sqlite:///t.db", ID, 2, tmp_path, ray_address="auto", rules=rules)
    assert Job.from_environment(job.environment()) == job


def test_a_study_that_another_process_runs_fails_by_the_infrastructure(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOCK_WAIT_S", 0.0)
    with another_process(normalise_url(str(tmp_path / "t.db"))) as process:
        ending = run_it(store, tmp_path)
    assert (ending.state, ending.culprit) == (SubmissionState.FAILED, Culprit.INFRASTRUCTURE)
    assert f"process {process.pid} on host" in str(ending.reason)


def test_a_study_waits_for_a_predecessor_that_ends(store: ServiceStore, tmp_path: Path) -> None:
    with another_process(normalise_url(str(tmp_path / "t.db"))) as process:
        threading.Timer(0.3, process.kill).start()
        ending = run_it(store, tmp_path)
    assert (ending.state, ending.culprit) == (SubmissionState.DONE, None)


def test_a_space_that_is_not_valid_is_a_configuration(store: ServiceStore, tmp_path: Path) -> None:
    ending = run_it(store, tmp_path, space="parameters: 7")
    assert (ending.state, ending.culprit) == (SubmissionState.FAILED, Culprit.CONFIGURATION)


def test_a_driver_checks_the_plan_by_its_servers_rules(store: ServiceStore, tmp_path: Path) -> None:
    """The door accepted the submission by other rules, or before the server was started with these."""
    ending = run_it(store, tmp_path, server_arguments=["--chat-template", "/etc/passwd"])
    assert (ending.state, ending.culprit) == (SubmissionState.FAILED, Culprit.CONFIGURATION)
    assert "this server does not allow the flag" in str(ending.reason)


def test_a_driver_checks_what_a_space_writes(store: ServiceStore, tmp_path: Path) -> None:
    own = "parameters:\n  own:\n    description: x\n    type: bool\n    flag: --trust-remote-code\n"
    ending = run_it(store, tmp_path, space=own)
    assert (ending.state, ending.culprit) == (SubmissionState.FAILED, Culprit.CONFIGURATION)
    assert str(ending.reason).startswith("space='--trust-remote-code': this server does not allow the flag")


@pytest.mark.parametrize("name", ["theirs", "nobodys"])
def test_a_source_study_is_checked_again_when_the_study_runs(store: ServiceStore, tmp_path: Path, name: str) -> None:
    """Its owner may have stopped to share it, or have deleted it, and somebody else has the name now."""
    store.submit(Submission("theirs", "ben", {}, "simulated", 1, 0, NOW, NOW))
    ending = run_it(store, tmp_path, learn_from=[name])
    assert (ending.state, ending.culprit) == (SubmissionState.FAILED, Culprit.CONFIGURATION)
    assert f"learn_from='{name}': there is no study of this name that you may read" in str(ending.reason)


@pytest.mark.parametrize(
    ("request_", "wish"), [(Request.STOP, "conclude"), (Request.CANCEL, "stop"), (Request.YIELD, "pause")]
)
def test_a_request_is_a_wish(store: ServiceStore, request_: Request, wish: str) -> None:
    _, driver = started(store, {})
    wishes = Wishes()
    heartbeat = Heartbeat(store, ID, driver, wishes)
    heartbeat.obey(None)
    heartbeat.obey(request_)
    heartbeat.close()
    assert [name for name in ("conclude", "stop", "pause") if getattr(wishes, name).is_set()] == [wish]
