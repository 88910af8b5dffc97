"""One run of a submission: which culprit a failure has, and what a request does."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from records.trials import Culprit, Provenance, Repeat, TrialOutcome
from search_spaces import hardware_named
from storage import normalise_url
from storage.service.records import Driver, Request, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.cli.conftest import NoMlflow
from tests.empty_database import write_empty_database
from tests.service_samples import SIZED_TRAFFIC
from tests.unit.service.scheduler.test_scheduler import FakeLauncher
from tests.unit.storage.test_locks import another_process
from tests.unit.use_cases.size.test_page import SIZING
from tuner.cancellation import Wishes
from tuner.service.asked.rules import ServerRules
from tuner.service.driver import run
from tuner.service.driver import size as size_run
from tuner.service.driver.job import Ending, Job, this_driver
from tuner.service.driver.run import Heartbeat, run_submission
from tuner.service.scheduler.scheduler import Scheduler
from tuner.settings.study import StudySettings
from tuner.study.finals import Finals
from tuner.use_cases import optimize as optimize_run
from tuner.use_cases.capacity import CapacityObserver, CapacityResult
from tuner.use_cases.size import confirm as confirmation

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
    ("owner", "name"), [(Finals, "with_estimated_effects"), (optimize_run, "write_files")], ids=["effects", "report"]
)
def test_a_device_is_free_for_the_next_study_before_effects_and_report_are_computed(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    reached, gate, original = threading.Event(), threading.Event(), getattr(owner, name)

    def held(*arguments: Any) -> Any:
        reached.set()
        gate.wait()
        return original(*arguments)

    monkeypatch.setattr(owner, name, held)
    first = threading.Thread(target=run_it, args=(store, tmp_path))
    first.start()
    try:
        store.submit(Submission("next", "ben", {}, "simulated", 1, 0, NOW, NOW))
        while not reached.wait(0.1):
            assert first.is_alive()
        launcher = FakeLauncher(alive={this_driver(): True})
        devices = {"simulated": ("simulated:0",)}
        later = NOW + timedelta(seconds=60)  # the lease of `started` is over
        Scheduler(store, launcher, devices, lambda *_: None, timedelta(days=90), now=lambda: later).step()
        assert launcher.launched == [("next", ("simulated:0",))]
        assert first.is_alive()
    finally:
        gate.set()
        first.join()


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


SIZED = {"size": True, "card": ["l4", "h100"], "model": "Qwen/Qwen2.5-7B-Instruct", "workload": [SIZED_TRAFFIC]}


def size_it(
    store: ServiceStore, folder: Path, monkeypatch: pytest.MonkeyPatch, wishes: Wishes, **more: object
) -> Ending:
    """Run a study of servers for a load whose predictions are made by hand: h100 alone, and l4 with two GPUs."""
    submission, driver = started(store, {**SIZED, **more})
    monkeypatch.setattr(size_run, "size", lambda settings: replace(SIZING, settings=settings))
    job = Job(normalise_url(str(folder / "t.db")), ID, 1, folder)
    return run_submission(job, submission, store, driver, wishes)


def test_an_answer_is_kept_for_its_readers(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = size_it(store, tmp_path, monkeypatch, Wishes(), headroom=0.5)
    assert (ending.state, ending.culprit) == (SubmissionState.DONE, None)
    assert str(ending.reason).startswith("3 servers of NVIDIA H100 80GB HBM3, one GPU, 8,760 a month")
    answer = store.answer(ID)
    assert answer is not None
    assert answer[size_run.ANSWER]["headroom"] == 0.5
    assert answer[size_run.PAGE]["verdict"] == f"{ending.reason}."
    assert [event.data["text"] for event in store.events_after(ID, 0) if event.kind == "note"] == [
        "predicts each card and shape"
    ]


def measuring(monkeypatch: pytest.MonkeyPatch, wishes: Wishes, asked: str | None = None) -> list[StudySettings]:
    """Let this process have an H100 and two L4, on which a server holds 48 requests/s; return what is searched."""
    searched: list[StudySettings] = []

    def search(settings: StudySettings, observer: CapacityObserver, stop: threading.Event) -> CapacityResult:
        searched.append(settings)
        if asked is not None:
            getattr(wishes, asked).set()
        folder = Path(settings.output)
        (folder / "capacity.csv").write_text("rate,held\n")
        repeat = Repeat(0, 0, 1, 1, 0, 1.0, {"capacity": 48.0})
        return CapacityResult(
            TrialOutcome(NOW, NOW, Provenance.MEASURED, "w0", "d", {}, str(folder), repeats=(repeat,)), (), folder
        )

    cards = [hardware_named(name) for name in ("h100", "l4", "l4")]
    monkeypatch.setattr(confirmation, "_profiles", lambda: cards)
    monkeypatch.setattr(size_run, "check_machine", lambda settings: None)
    monkeypatch.setattr(confirmation, "search_capacity", search)
    return searched


@pytest.mark.parametrize(
    ("asked", "searches", "state"),
    [
        (None, 2, SubmissionState.DONE),
        ("pause", 1, SubmissionState.DONE),
        ("conclude", 1, SubmissionState.STOPPED),
        ("stop", 1, SubmissionState.QUEUED),
    ],
)
def test_shapes_are_measured_until_a_person_or_the_queue_asks(
    store: ServiceStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
    searches: int,
    state: SubmissionState,
) -> None:
    wishes = Wishes()
    searched = measuring(monkeypatch, wishes, asked)
    ending = size_it(store, tmp_path, monkeypatch, wishes, confirm=2)
    assert (ending.state, len(searched)) == (state, searches)
    answer = store.answer(ID)
    assert (answer is None) == (asked == "stop")
    if answer is not None:
        measured = [each for each in answer[size_run.ANSWER]["shapes"] if each["origin"] == "measured"]
        assert [each["rate"] for each in measured] == [pytest.approx(48.0)] * searches


def test_a_server_that_is_measured_is_checked_as_it_would_be_started(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = SIZING.shapes
    hostile = replace(first, prediction=replace(first.prediction, arguments=("--chat-template", "/etc/passwd")))
    wishes = Wishes()
    searched = measuring(monkeypatch, wishes)
    submission, driver = started(store, {**SIZED, "confirm": 1})
    found = replace(SIZING, shapes=(hostile, *others))
    monkeypatch.setattr(size_run, "size", lambda settings: replace(found, settings=settings))
    job = Job(normalise_url(str(tmp_path / "t.db")), ID, 1, tmp_path)
    ending = run_submission(job, submission, store, driver, wishes)
    assert (ending.state, ending.culprit, searched) == (SubmissionState.FAILED, Culprit.CONFIGURATION, [])
    assert "this server does not allow the flag" in str(ending.reason)
