"""The service's store: its contract, new events, and how it waits for a database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.service.errors import NotYours
from storage.service.records import Lease, SubmissionState
from storage.service.rows import add_event, locked
from storage.service.store import ServiceStore, open_service_store
from storage.waiting import DatabaseWait
from tests.contracts.service_contract import (
    AccessContract,
    DeleteContract,
    ListContract,
    RequestContract,
    SubmitContract,
)
from tests.contracts.service_events_contract import (
    EventContract,
    FigureContract,
    MessageContract,
    RaceContract,
)
from tests.contracts.service_runs_contract import DriverContract, LeaseContract, LossContract, StartContract
from tests.empty_database import write_empty_database
from tests.lost_commits import losing_one
from tests.service_samples import DRIVER, OTHER, START, at, run, submission, token


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        write_empty_database(tmp_path / "tuner.db")
        return str(tmp_path / "tuner.db")
    empty: str = request.getfixturevalue("empty_database")
    return empty


class TestSubmissions(SubmitContract, ListContract, RequestContract, DeleteContract):
    """Submissions as people see them."""


class TestRuns(LeaseContract, StartContract, DriverContract, LossContract):
    """What schedulers and drivers do."""


class TestAccess(AccessContract):
    """Owners, tokens and the audit log."""


class TestEvents(EventContract, RaceContract, FigureContract, MessageContract):
    """What those who watch see."""


S = SubmissionState
LEASE = Lease("scheduler", "a", 1, at(3600))


def prepared(folder: Path, wait: DatabaseWait | None) -> ServiceStore:
    """Return a store with a running, a waiting, a stopped and a started submission without a driver."""
    folder.mkdir()
    write_empty_database(folder / "tuner.db")
    store = open_service_store(str(folder / "tuner.db"), wait)
    for id in ("running", "stopped"):
        run(store, id)
    store.end("stopped", DRIVER, S.STOPPED, None, None, at(9))
    store.submit(submission("waiting"))
    store.submit(submission("started"))
    store.start("started", ["d5"], LEASE, START)
    store.add_token(token())
    return store


WRITES: dict[str, Callable[[ServiceStore], object]] = {
    "set_driver": lambda store: store.set_driver("started", OTHER, at(20), run=1),
    "beat": lambda store: store.beat("running", DRIVER, at(20)),
    "event": lambda store: store.event("running", "trial", {"number": (1, 2)}, at(20)),
    "concluding": lambda store: store.concluding("running", DRIVER, at(20)),
    "measured_all": lambda store: store.measured_all("running", DRIVER, at(20)),
    "set_answer": lambda store: store.set_answer("running", DRIVER, {"answer": 1}),
    "end": lambda store: store.end("running", DRIVER, S.FAILED, "why", "tuner", at(20)),
    "end of a yield": lambda store: store.end("running", DRIVER, S.QUEUED, "why", None, at(20)),
}
"""What a driver writes; its store alone waits for the database."""


def content(store: ServiceStore) -> tuple[object, ...]:
    """Return what a store has, the audit log excepted."""
    submissions = store.submissions().submissions
    events = [store.events_after(each.id, 0) for each in submissions]
    return submissions, events, store.uses(START), store.owners(), store.tokens(), store.take_lease(*PROBE)


PROBE = ("scheduler", "probe", 10.0, at(30))


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_acknowledgement_is_lost_happens_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(prepared(tmp_path / "waits", DatabaseWait(first_delay_s=0))) as store:
        result = losing_one(store._engine, lambda: WRITES[name](store), monkeypatch)
        with closing(prepared(tmp_path / "other", None)) as other:
            assert WRITES[name](other) == result
            assert content(store) == content(other)


def test_what_is_refused_is_refused_at_once(tmp_path: Path) -> None:
    with closing(prepared(tmp_path / "waits", DatabaseWait(first_delay_s=0))) as store:
        with pytest.raises(NotYours):
            store.end("stopped", DRIVER, S.STOPPED, None, None, at(9))
        assert store.event("running", "note", {}, START) == 3
        assert store.event("running", "note", {}, START) == 4


def test_every_method_waits() -> None:
    parts = [part for part in ServiceStore.__mro__ if part.__module__.startswith("storage.service")]
    methods = {name: each for part in parts for name, each in vars(part).items() if not name.startswith("_")}
    assert len(methods) > 30
    assert {name for name, each in methods.items() if not hasattr(each, "__wrapped__")} == set()


@pytest.fixture
def store(empty_database: str) -> Iterator[ServiceStore]:
    """A store on PostgreSQL."""
    store = open_service_store(empty_database)
    yield store
    store.close()


def test_a_stalled_program_loses_its_locks(store: ServiceStore) -> None:
    with store._session(store._writer) as session:
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "1min"


def test_an_event_is_visible_after_those_with_smaller_numbers(store: ServiceStore) -> None:
    """The order of commits is that of numbers only if no other writer of the submission gets the row before."""
    lease = run(store, "d")
    with store._session(store._writer) as writer, store._session(store._writer) as rival:
        assert add_event(writer, locked(writer, "d"), "trial", {}, START) == 3
        writer.flush()
        assert store.last_events([]) == {"d": (2, False)}
        rival.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            locked(rival, "d")
        rival.rollback()
    assert store.last_events([]) == {"d": (3, False)}
    assert store.lost("d", DRIVER, lease, START, 3).state is SubmissionState.QUEUED
