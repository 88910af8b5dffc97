"""The lock of a study in its database, on SQLite and on a real PostgreSQL that is restarted."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage import StorageError, open_store
from storage.locks import FileLock, Holder, LockHeld, LockLost, study_lock, sync_lock
from tests import store_samples as samples
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
