"""The scheduler: what it starts, what it finds lost, and that two of them never start one study."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from storage import normalise_url
from storage.service.records import AuditEntry, Driver, Owner, Request, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.empty_database import write_empty_database
from tests.some import some
from tuner.service.scheduler.launcher import Launcher
from tuner.service.scheduler.scheduler import LEASE_S, MOST_LOSSES, SILENT_S, START_S, Scheduler

START = datetime(2026, 11, 25, 12, tzinfo=UTC)
HERE = Driver("here", 100, 1, "boot")


@dataclass
class FakeLauncher(Launcher):
    """Remembers what it started; drivers run until a test ends them."""

    launched: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    ended_now: set[tuple[str, int]] = field(default_factory=set)
    alive: dict[Driver, bool | None] = field(default_factory=dict)
    abandoned: list[tuple[str, int]] = field(default_factory=list)
    fails: bool = False
    is_own: bool = True

    def launch(self, submission: Submission) -> None:
        if self.fails:
            raise OSError("no more processes")
        self.launched.append((submission.id, submission.granted))

    def is_running(self, driver: Driver) -> bool | None:
        return self.alive.get(driver, True)

    def reap(self) -> set[tuple[str, int]]:
        found, self.ended_now = self.ended_now, set()
        return found

    def abandon(self, submission: str, run: int) -> bool:
        self.abandoned.append((submission, run))
        return self.is_own


@dataclass
class Clock:
    """A time that tests move."""

    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Bench:
    """A store, and schedulers of it."""

    store: ServiceStore
    clock: Clock = field(default_factory=Clock)
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    notes: list[str] = field(default_factory=list)

    def scheduler(self, launcher: FakeLauncher | None = None, gpus: int = 2) -> Scheduler:
        devices = {"h200": tuple(f"h200:{index}" for index in range(gpus))}
        launcher, days = launcher or self.launcher, timedelta(days=90)
        return Scheduler(self.store, launcher, devices, lambda text, _: self.notes.append(text), days, now=self.clock)

    def submit(self, id: str, owner: str = "ada", gpus: int = 1, **settings: object) -> None:
        self.store.submit(Submission(id, owner, settings, "h200", gpus, 0, self.clock.now, self.clock.now))

    def state(self, id: str) -> SubmissionState:
        return some(self.store.submission(id)).state


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    write_empty_database(tmp_path / "t.db")
    store = open_service_store(normalise_url(str(tmp_path / "t.db")))
    yield Bench(store)
    store.close()


def test_a_study_gets_its_devices_and_a_driver(bench: Bench) -> None:
    bench.submit("a", gpus=2)
    bench.submit("b")
    scheduler = bench.scheduler()
    scheduler.step()
    assert bench.launcher.launched == [("a", ("h200:0", "h200:1"))]
    assert bench.state("a") is SubmissionState.RUNNING
    assert bench.state("b") is SubmissionState.QUEUED
    assert set(scheduler.state.waits) == {"b"}
    scheduler.step()
    assert len(bench.launcher.launched) == 1


def test_the_device_of_a_study_that_writes_its_report_goes_to_the_next(bench: Bench) -> None:
    bench.submit("a")
    bench.submit("b", owner="bob")
    scheduler = bench.scheduler(gpus=1)
    scheduler.step()
    bench.store.set_driver("a", HERE, bench.clock.now)
    bench.store.measured_all("a", HERE, bench.clock.now)
    scheduler.step()
    assert bench.launcher.launched == [("a", ("h200:0",)), ("b", ("h200:0",))]
    assert (bench.state("a"), bench.state("b")) == (SubmissionState.RUNNING, SubmissionState.RUNNING)


def test_a_study_waits_for_all_devices_of_a_trial(bench: Bench) -> None:
    bench.submit("a")
    scheduler = bench.scheduler(gpus=2)
    scheduler.step()
    bench.submit("b", gpus=2, server_arguments=["--tensor-parallel-size", "2"])
    scheduler.step()
    assert bench.launcher.launched == [("a", ("h200:0",))]
    assert scheduler.state.waits == {"b": "1 of 2 h200 is free, 2 are asked"}


def test_a_freed_device_goes_to_the_next(bench: Bench) -> None:
    bench.submit("a")
    bench.submit("b")
    scheduler = bench.scheduler(gpus=1)
    scheduler.step()
    bench.store.set_driver("a", HERE, bench.clock.now)
    bench.store.end("a", HERE, SubmissionState.DONE, None, None, bench.clock.now)
    scheduler.step()
    assert [id for id, _ in bench.launcher.launched] == ["a", "b"]


def test_two_schedulers_never_start_one_study(bench: Bench) -> None:
    first, second = bench.scheduler(), bench.scheduler(FakeLauncher())
    assert first.step() is not None
    bench.submit("a")
    assert second.step() is None
    bench.clock.pass_s(LEASE_S + 1)
    assert second.step() is not None
    first.step()
    started = bench.launcher.launched, second._launcher.launched  # type: ignore[attr-defined]
    assert [len(each) for each in started] == [0, 1]


def test_a_dead_driver_is_found_and_its_study_queued_again(bench: Bench) -> None:
    bench.submit("a")
    scheduler = bench.scheduler()
    scheduler.step()
    bench.store.set_driver("a", HERE, bench.clock.now)
    bench.launcher.alive[HERE] = False
    scheduler.step()
    assert [id for id, _ in bench.launcher.launched] == ["a", "a"]
    found = some(bench.store.submission("a"))
    assert (found.state, found.runs, found.losses) == (SubmissionState.RUNNING, 2, 1)


def test_a_study_whose_drivers_all_die_fails_by_the_infrastructure(bench: Bench) -> None:
    bench.submit("a")
    scheduler = bench.scheduler()
    scheduler.step()
    for run in range(1, MOST_LOSSES + 1):
        bench.launcher.ended_now = {("a", run)}
        scheduler.step()
    found = some(bench.store.submission("a"))
    assert (found.state, found.culprit) == (SubmissionState.FAILED, "infrastructure")
    assert len(bench.launcher.launched) == MOST_LOSSES


def test_a_driver_that_never_says_who_it_is_is_lost_after_a_while(bench: Bench) -> None:
    bench.submit("a")
    scheduler = bench.scheduler()
    scheduler.step()
    bench.clock.pass_s(START_S)
    scheduler.step()
    assert bench.state("a") is SubmissionState.RUNNING
    assert bench.launcher.abandoned == []
    bench.clock.pass_s(1)
    scheduler.step()
    found = some(bench.store.submission("a"))
    assert found.runs == 2
    assert bench.launcher.abandoned == [("a", 1)]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_driver_that_has_not_registered_is_killed_on_request(bench: Bench, is_own: bool) -> None:
    """It imports for seconds before it reads the request. That of another process may still register."""
    bench.launcher.is_own = is_own
    bench.submit("a")
    scheduler = bench.scheduler()
    scheduler.step()
    bench.store.request("a", Request.CANCEL, bench.clock.now)
    scheduler.step()
    assert bench.state("a") is (SubmissionState.CANCELLED if is_own else SubmissionState.RUNNING)
    bench.clock.pass_s(START_S + 1)
    scheduler.step()
    assert bench.state("a") is SubmissionState.CANCELLED


def test_a_silent_driver_of_another_host_is_lost_after_a_while(bench: Bench) -> None:
    bench.submit("a")
    scheduler = bench.scheduler()
    scheduler.step()
    there = Driver("there", 7, 7, "boot")
    bench.store.set_driver("a", there, bench.clock.now)
    bench.launcher.alive[there] = None
    bench.clock.pass_s(SILENT_S)
    scheduler.step()
    assert bench.state("a") is SubmissionState.RUNNING
    bench.clock.pass_s(1)
    scheduler.step()
    found = some(bench.store.submission("a"))
    assert (found.runs, found.losses) == (2, 1)


def test_a_process_that_cannot_be_started_is_a_loss(bench: Bench) -> None:
    bench.submit("a")
    bench.launcher.fails = True
    scheduler = bench.scheduler()
    scheduler.step()
    assert bench.state("a") is SubmissionState.QUEUED
    assert bench.notes == ["no driver for a can be started: no more processes"]


def test_an_owner_beyond_a_fair_share_is_asked_to_yield(bench: Bench) -> None:
    bench.submit("a", "ada")
    bench.submit("b", "ada")
    scheduler = bench.scheduler()
    scheduler.step()
    for id in ("a", "b"):
        bench.store.set_driver(id, Driver("here", len(id), 1, id), bench.clock.now)
    bench.clock.pass_s(3600)
    bench.submit("c", "ben")
    scheduler.step()
    requests = [found.request for id in ("a", "b") if (found := bench.store.submission(id)) is not None]
    assert sorted(requests, key=str) == [None, Request.YIELD]


def test_a_quota_of_devices_holds(bench: Bench) -> None:
    bench.store.set_owner(Owner("ada", most_gpus=1))
    bench.submit("a")
    bench.submit("b")
    scheduler = bench.scheduler()
    scheduler.step()
    assert [id for id, _ in bench.launcher.launched] == ["a"]
    assert "quota" in scheduler.state.waits["b"]


def test_old_lines_of_the_audit_log_are_deleted_once_an_hour(bench: Bench) -> None:
    begin = bench.clock.now
    scheduler = bench.scheduler()
    bench.store.audit(AuditEntry(begin, "laptop", "ada", "submit", "a", "created"))
    for days, hours, left in ((89, 0, 1), (90, 0, 1), (90, 1, 0)):
        bench.clock.now = begin + timedelta(days=days, hours=hours)
        scheduler.step()
        assert len(bench.store.audit_log()) == left
