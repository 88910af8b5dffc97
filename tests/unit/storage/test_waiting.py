"""The wait for a database: which errors are repeated, for how long, and writes whose acknowledgement is lost."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from records.trials import Provenance, TrialKind
from storage import StorageError, Store, open_store
from storage.errors import NotYetAvailable, StorageUnavailable, WaitInterrupted
from storage.locks import LockLost, study_lock
from storage.waiting import DatabaseWait, may_pass
from tests import store_samples as samples
from tests.lost_commits import losing_one
from tests.postgres import PostgresServer


def sqlite_error(code: int) -> OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return OperationalError("COMMIT", {}, error)


def caused_by(error: Exception) -> StorageError:
    """Return an error as the store raises it."""
    wrapped = StorageError("cannot use the database")
    wrapped.__cause__ = error
    return wrapped


def of_postgresql(error: Exception) -> StorageError:
    return caused_by(OperationalError("SELECT 1", {}, error))


@pytest.mark.parametrize(
    ("error", "repeated"),
    [
        (caused_by(sqlite_error(sqlite3.SQLITE_BUSY)), True),
        (caused_by(sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT)), True),
        (caused_by(sqlite_error(sqlite3.SQLITE_FULL)), True),
        (caused_by(sqlite_error(sqlite3.SQLITE_READONLY)), False),
        (of_postgresql(psycopg.OperationalError("connection refused")), True),
        (of_postgresql(psycopg.errors.AdminShutdown("restart")), True),
        (of_postgresql(psycopg.errors.CannotConnectNow("starting up")), True),
        (of_postgresql(psycopg.errors.TooManyConnections("none free")), True),
        (of_postgresql(psycopg.errors.ConnectionFailure("lost")), True),
        (of_postgresql(psycopg.errors.DiskFull("no space")), True),
        (of_postgresql(psycopg.errors.InsufficientPrivilege("no")), False),
        (NotYetAvailable("soon"), True),
        (LockLost("taken"), False),
        (StorageError("trial 1 is finished already"), False),
    ],
)
def test_only_errors_that_may_pass_are_repeated(error: Exception, repeated: bool) -> None:
    assert may_pass(error) is repeated


class Locked:
    """An operation that fails a number of times; `tries` are its arguments."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.tries: list[bool] = []

    def __call__(self, again: bool) -> str:
        self.tries.append(again)
        if len(self.tries) <= self._failures:
            raise sqlite_error(sqlite3.SQLITE_BUSY)
        return "done"


def test_a_reconnection_is_silent_and_a_wait_shows_two_lines() -> None:
    lines: list[str] = []
    wait = DatabaseWait(lines.append, limit_s=90, first_delay_s=0)
    for failures in (0, 1):
        assert wait.run(Locked(failures)) == "done"
    assert lines == []
    operation = Locked(3)
    assert wait.run(operation) == "done"
    assert operation.tries == [False, True, True, True]
    assert lines == [
        "waiting at most 2 min for the database (database is locked); Ctrl-C ends the wait",
        "the database answers again after 0 s",
    ]


def test_the_wait_has_an_end_and_ctrl_c_ends_it_earlier() -> None:
    ending = "did not answer: database is locked; run the same command again, no finished trial is lost$"
    with pytest.raises(StorageUnavailable, match=rf"^for \d s the database {ending}") as raised:
        DatabaseWait(limit_s=0.05, first_delay_s=0.01).run(Locked(10**9))
    assert not isinstance(raised.value, WaitInterrupted)
    stop = threading.Event()
    with pytest.raises(WaitInterrupted, match=f"^interrupted while the database {ending}"):
        DatabaseWait(lambda _: stop.set(), stop, first_delay_s=0).run(Locked(10**9))


def test_without_a_wait_the_error_passes_unchanged() -> None:
    with pytest.raises(OperationalError):
        DatabaseWait(limit_s=0).run(Locked(1))


def begun(folder: Path, wait: DatabaseWait | None) -> Store:
    """Return a store with study `s` and its pending trial 0, begun once."""
    folder.mkdir()
    store = open_store(f"sqlite:///{folder / 't.db'}", wait)
    store.create_study(samples.study())
    store.add_trial(samples.pending(0))
    store.begin_attempt("s", 0)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(begun(tmp_path / "waits", DatabaseWait(first_delay_s=0))) as store:
        yield store


WRITES: dict[str, Callable[[Store], object]] = {
    "create_study": lambda store: store.create_study(samples.study("t")),
    "update_study": lambda store: store.update_study("s", {"a": 1}, {"winner": 0}),
    "add_trial": lambda store: store.add_trial(samples.pending(1)),
    "begin_attempt": lambda store: store.begin_attempt("s", 0),
    "finish_trial": lambda store: store.finish_trial("s", 0, 0, samples.success(), samples.verdict()),
    "record_failed_attempt": lambda store: store.record_failed_attempt("s", 0, 0, 1, samples.failed()),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_acknowledgement_is_lost_happens_once(
    store: Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = losing_one(store._engine, lambda: WRITES[name](store), monkeypatch)
    with closing(begun(tmp_path / "other", None)) as other:
        assert WRITES[name](other) == result
        assert content(store) == content(other)


def content(store: Store) -> tuple[object, ...]:
    return store.studies(), store.trials("s"), store.failed_attempts("s")


def losing_first_connection(store: Store) -> list[int]:
    """Let the first transaction that writes lose its connection; return the list of tries."""
    tries: list[int] = []

    def lose() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise sqlite_error(sqlite3.SQLITE_BUSY)

    store.check_before_writes(lose)
    return tries


REFUSED: dict[str, Callable[[Store], object]] = {
    "there is already a study": lambda store: store.create_study(samples.study("s", Provenance.SIMULATED)),
    "exists already": lambda store: store.add_trial(samples.pending(0, kind=TrialKind.BASELINE)),
    "is finished already": lambda store: store.finish_trial("s", 0, 0, samples.failed(), None),
    "is stored already": lambda store: store.record_failed_attempt(
        "s", 1, 0, 1, dataclasses.replace(samples.failed(), worker="another")
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_another_value_of_the_same_key_is_refused_after_a_lost_connection(store: Store, rule: str) -> None:
    store.finish_trial("s", 0, 0, samples.success(), samples.verdict())
    store.add_trial(samples.pending(1))
    store.begin_attempt("s", 1)
    store.record_failed_attempt("s", 1, 0, 1, samples.failed())
    tries = losing_first_connection(store)
    with pytest.raises(StorageError, match=rule):
        REFUSED[rule](store)
    assert len(tries) == 2


def test_every_method_of_the_store_waits() -> None:
    methods = {name for name in vars(Store) if not name.startswith("_")}
    assert {name for name in methods if not hasattr(getattr(Store, name), "__wrapped__")} == set()


def test_the_lock_is_taken_again_by_a_store_that_waits(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting"):
            postgres.start()

    lock = study_lock(url, "s")
    with closing(open_store(url, DatabaseWait(report, first_delay_s=0.01))) as store:
        lock.take()
        store.check_before_writes(lock.check)
        store.create_study(samples.study())
        postgres.stop()
        store.add_trial(samples.pending(0))
        assert study_lock(url, "s").holder() is not None
        assert len(store.trials("s")) == 1
    lock.release()
    assert len(lines) == 2
