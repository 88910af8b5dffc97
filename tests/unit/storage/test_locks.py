"""Locks of studies, and how the store waits for a database."""

import dataclasses
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from records.trials import Provenance, TrialKind
from storage import StorageError, Store, open_store
from storage.errors import NotYetAvailable, StorageUnavailable, WaitInterrupted
from storage.locks import FileLock, Holder, LockHeld, LockLost, study_lock, sync_lock
from storage.waiting import DatabaseWait, may_pass
from tests import store_samples as samples
from tests.lost_commits import losing_one
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[3]
HOLDS = """
import sys
from storage.locks import study_lock
study_lock(sys.argv[1], "s").take()
print("held", flush=True)
sys.stdin.read()
"""
ME = Holder(str(os.getpid()), socket.gethostname())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tuner.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@contextmanager
def another_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of study `s`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_refusal_names_process_and_host_of_the_holder(url: str) -> None:
    with another_process(url) as process:
        holder = Holder(str(process.pid), socket.gethostname())
        lock = study_lock(url, "s")
        assert lock.holder() == holder
        with pytest.raises(LockHeld) as raised:
            lock.take()
        assert raised.value.holder == holder
        study_lock(url, "t").take()


def test_the_lock_of_a_killed_process_is_free(url: str) -> None:
    with another_process(url) as process:
        process.kill()
        process.wait()
    lock = study_lock(url, "s")
    until_taken(url)
    assert lock.holder() is None


def until_taken(url: str) -> None:
    """Take the lock and release it; the server notices the end of a process within a moment."""
    lock = study_lock(url, "s")
    while True:
        try:
            lock.take()
        except LockHeld:
            continue
        return lock.release()


def test_a_released_lock_is_free(url: str, tmp_path: Path) -> None:
    lock = study_lock(url, "s")
    lock.take()
    lock.check()
    assert study_lock(url, "s").holder() == ME
    lock.release()
    assert study_lock(url, "s").holder() is None
    assert list(tmp_path.glob("*.lock")) == []


def test_all_paths_of_an_sqlite_file_have_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "real")
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "t.db")
    monkeypatch.chdir(tmp_path)
    lock = study_lock("real/t.db", "s")
    lock.take()
    for path in ("other/t.db", "link.db", f"sqlite:///{tmp_path / 'real' / 't.db'}"):
        assert study_lock(path, "s").holder() == ME, path
    lock.release()


def test_a_lock_file_is_private_and_follows_no_symbolic_link(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "t.db", "sync", "")
    lock.take()
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
    lock.release()
    target = tmp_path / "target"
    target.write_text("precious")
    lock.path.symlink_to(target)
    with pytest.raises(StorageError, match=r"t\.db\.sync\.lock: it is a symbolic link; remove it"):
        lock.take()
    assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_lock_file_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    lock = FileLock(tmp_path / "t.db", "sync", "")
    os.mkfifo(lock.path) if kind == "fifo" else lock.path.mkdir()
    with pytest.raises(StorageError, match=r"cannot use the lock file .*; remove it"):
        lock.take()


def test_a_lock_file_that_its_holder_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (FileLock(tmp_path / "t.db", "sync", "") for _ in range(2))
    first.take()
    opened = FileLock._open

    def released_meanwhile(lock: FileLock, flags: int) -> int:
        file = opened(lock, flags)
        first.release()
        return file

    monkeypatch.setattr(FileLock, "_open", released_meanwhile)
    second.take()
    assert sync_lock(str(tmp_path / "t.db")).holder() == ME
    second.release()


def test_a_lock_lost_by_a_restart_is_taken_again_before_a_write(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    lock = study_lock(url, "s")
    with closing(open_store(url)) as store:
        lock.take()
        store.check_before_writes(lock.check)
        store.create_study(samples.study())
        postgres.restart()
        assert study_lock(url, "s").holder() is None
        store.add_trial(samples.pending(0))
        assert study_lock(url, "s").holder() == ME
        assert len(store.trials("s")) == 1
    lock.release()


def test_nothing_is_written_when_another_process_took_a_lost_lock(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    lock = study_lock(url, "s")
    with closing(open_store(url)) as store:
        lock.take()
        store.check_before_writes(lock.check)
        store.create_study(samples.study())
        postgres.restart()
        with another_process(url) as process:
            rule = rf"the lock of the study 's' was lost, and process {process.pid} on host .* has taken the lock; this"
            with pytest.raises(LockLost, match=rule):
                store.add_trial(samples.pending(0))
        assert store.trials("s") == []
    lock.release()


def test_a_former_session_that_the_server_still_has_is_ended(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    lock = study_lock(url, "s")
    lock.take()
    kept = lock._connection  # type: ignore[attr-defined]
    lock._connection = None  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="the server still holds the former connection"):
        lock.check()
    while True:
        try:
            lock.check()
            break
        except StorageError:
            continue
    assert study_lock(url, "s").holder() == ME
    kept.invalidate()
    lock.release()


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
