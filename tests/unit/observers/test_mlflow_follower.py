"""The wait for MLflow, which lasts as long as there is progress."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from storage import normalise_url, open_store
from storage.store import Store
from tests import store_samples as samples
from tuner.observers import mlflow_follower
from tuner.observers.mlflow_follower import RESTARTS, STALL_S, MlflowFollower, _ProgressWatch, unreachable
from tuner.study.protocols import MlflowLacks, SyncStatus

Start = Callable[[str], MlflowFollower]

FINISHES = "import sys; sys.stdin.read(); print('{}', flush=True)"
FAILS = """
import json, sys
sys.stdin.readline()
print(json.dumps({"error": "no route to host"}), flush=True)
sys.stdin.read()
sys.exit(1)
"""
ENDS_BY_A_SIGNAL = """
import os, pathlib, signal, sys
seen = pathlib.Path("{folder}") / str(os.getpid())
seen.touch()
sys.stdin.readline()
if len(list(seen.parent.iterdir())) <= {times}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
HANGS = "import time; time.sleep(3600)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A study of three finished trials, of which one is logged."""
    with closing(open_store(normalise_url(str(tmp_path / "t.db")))) as found:
        found.create_study(samples.study("s"))
        for number in range(3):
            found.add_trial(samples.pending(number))
            found.finish_trial("s", number, 0, samples.success(), None)
        found.mark_synced("s", 0, 0, "r")
        yield found


@pytest.fixture
def reports() -> list[SyncStatus]:
    return []


@pytest.fixture
def start(store: Store, tmp_path: Path, reports: list[SyncStatus], monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a follower whose process runs a given program instead of the real one."""
    started: list[MlflowFollower] = []

    def begin(program: str) -> MlflowFollower:
        real = MlflowFollower._start

        def started_as(follower: MlflowFollower) -> subprocess.Popen[bytes]:
            follower._command = [sys.executable, "-c", program]
            return real(follower)

        monkeypatch.setattr(MlflowFollower, "_start", started_as)
        follower = MlflowFollower(store, "sqlite:///t.db", "s", "sqlite:///m.db", tmp_path / "log", reports.append)
        started.append(follower)
        return follower

    yield begin
    for follower in started:
        follower.close()


def test_a_follower_with_exit_code_0_is_complete(start: Start, reports: list[SyncStatus]) -> None:
    assert start(FINISHES).wait(threading.Event()) is MlflowLacks.NOTHING
    assert reports[0] == SyncStatus(1, 3, None, waiting=True)


def test_a_follower_that_fails_is_reported_and_not_waited_for(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps({"error": "of an earlier run"}) + "\n")
    follower = start(FAILS)
    while (status := follower.status()).problem is None:
        time.sleep(0.01)
    assert status == SyncStatus(1, 3, "no route to host")
    assert follower.wait(threading.Event()) is MlflowLacks.TRIALS


def test_a_killed_follower_is_started_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    follower = start(ENDS_BY_A_SIGNAL.format(folder=tmp_path / "seen", times=2))
    assert follower.wait(threading.Event()) is MlflowLacks.NOTHING
    assert len(list((tmp_path / "seen").iterdir())) == 3


def test_a_follower_that_is_killed_each_time_is_given_up(start: Start, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    follower = start(ENDS_BY_A_SIGNAL.format(folder=tmp_path / "seen", times=100))
    assert follower.wait(threading.Event()) is MlflowLacks.TRIALS
    assert len(list((tmp_path / "seen").iterdir())) == 1 + RESTARTS


def test_a_follower_that_is_killed_in_mid_study_is_started_again(start: Start) -> None:
    follower = start(HANGS)
    first = follower._process
    first.kill()
    first.wait()
    follower.tick([])
    assert follower._process.pid != first.pid
    assert follower._process.poll() is None


def test_trials_that_are_all_logged_do_not_count_as_lacking(start: Start, store: Store) -> None:
    follower = start(FAILS)
    for number in (1, 2):
        store.mark_synced("s", number, 0, "r")
    assert follower.wait(threading.Event()) is MlflowLacks.CONCLUSION


def test_a_later_sync_without_an_error_clears_the_problem(start: Start, tmp_path: Path) -> None:
    follower = start(HANGS)
    with (tmp_path / "log").open("a") as log:
        log.write('{"error": "down"}\nTraceback: not JSON\n')
    assert follower.status().problem == "down"
    with (tmp_path / "log").open("a") as log:
        log.write('{"logged": 2, "already": 0, "failed": []}\n')
    assert follower.status().problem is None
    with (tmp_path / "log").open("a") as log:
        log.write('{"logged": 1, "already": 0, "failed": ["trial 2 of s: no"]}\n')
    assert follower.status().problem == "trial 2 of s: no"


def test_the_wait_ends_when_it_is_skipped(start: Start) -> None:
    skip = threading.Event()
    skip.set()
    assert start(HANGS).wait(skip) is MlflowLacks.TRIALS


def test_ctrl_c_skips_the_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = start(HANGS)

    def interrupted() -> SyncStatus:
        raise KeyboardInterrupt

    monkeypatch.setattr(follower, "status", interrupted)
    assert follower.wait(threading.Event()) is MlflowLacks.TRIALS


def test_a_follower_without_progress_is_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_follower, "STALL_S", -1.0)
    assert start(HANGS).wait(threading.Event()) is MlflowLacks.TRIALS


def test_a_logged_trial_and_used_processor_time_are_progress() -> None:
    watch = _ProgressWatch(0.0)
    assert not watch.stalled(STALL_S, 1, 0.0)  # the first trial is logged
    assert not watch.stalled(2 * STALL_S, 1, 5.0)  # the processor worked
    assert not watch.stalled(3 * STALL_S, 1, 5.05)
    assert watch.stalled(3 * STALL_S + 1, 1, 5.05)
    assert not watch.stalled(4 * STALL_S, 2, 5.05)


def test_only_a_server_can_be_unreachable() -> None:
    assert unreachable("sqlite:///m.db") is None
    assert unreachable("http://127.0.0.1:9") is not None
    assert unreachable("http://[::1") is not None
