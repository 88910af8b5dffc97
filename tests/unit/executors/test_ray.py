"""Ray: the start of its processes, and the watch over them."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import ray

from tuner.errors import InfrastructureError
from tuner.executors import ray_environment, ray_start
from tuner.executors.ray_start import CENTRAL_PROCESSES, MESSAGE, Watch, start_local
from tuner.processes.family import read_process

HEAD = """\
import pathlib, subprocess, sys, time
programs, folder = map(pathlib.Path, sys.argv[1:3])
attempts = programs / "attempts"
with attempts.open("a") as file:
    print(folder, file=file)
number = len(attempts.read_text().splitlines())
BODY
(folder / "address").write_text("127.0.0.1:6379")
time.sleep(600)
"""
"""A program that plays `ray_head`; `number` counts the attempts from 1."""
TIMED_OUT = "The current node timed out during startup"
LEAVES_A_RAYLET = f"""
if number <= FAILURES:
    child = subprocess.Popen([programs / "raylet", "600"])
    (programs / f"raylet-{{number}}").write_text(str(child.pid))
    sys.exit("{TIMED_OUT}")
"""
ENDS = """
if number == 1:
    kept = [subprocess.Popen([programs / "raylet", "600"]), subprocess.Popen([programs / "NAME", "SECONDS"])]
    time.sleep(600)
"""
"""Both objects are kept, as Ray keeps its own: one that is dropped takes the exit code of a process that has ended."""


class Heads:
    """The folders of the attempts, as the played program was given them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        for name in CENTRAL_PROCESSES:
            shutil.copy("/bin/sleep", folder / name)

    def play(self, body: str) -> None:
        """Let each attempt run these lines before Ray counts as started."""
        program = self._folder / "head.py"
        program.write_text(HEAD.replace("BODY", body))
        words = (sys.executable, str(program), str(self._folder))
        self._monkeypatch.setattr(ray_start, "HEAD", words)

    @property
    def folders(self) -> list[Path]:
        return [Path(line) for line in (self._folder / "attempts").read_text().splitlines()]


@pytest.fixture
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Heads:
    """A played `ray_head`, to which the driver connects at once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "init", lambda **options: None)
    return Heads(tmp_path, monkeypatch)


def test_a_failed_start_is_repeated_and_its_processes_are_ended(
    heads: Heads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heads.play(LEAVES_A_RAYLET.replace("FAILURES", "1"))
    local = start_local(1, 0, tmp_path / "records")
    first, second = heads.folders
    assert (local.folder, first.exists(), second.is_dir()) == (second, False, True)
    left = read_process(int((tmp_path / "raylet-1").read_text()))
    assert left is None or not left.alive
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"Ray did not start ({TIMED_OUT}); starting it once more"
    ]
    local.stop()
    assert not second.exists()
    assert list((tmp_path / "records").glob("*.json")) == []


@pytest.mark.parametrize("seconds", ["0", "1"])
@pytest.mark.parametrize("name", CENTRAL_PROCESSES)
def test_a_central_process_that_ends_while_ray_starts_ends_the_attempt_at_once(
    heads: Heads, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, seconds: str
) -> None:
    """Also one that was never seen alive. The attempt itself would take ten minutes."""
    heads.play(ENDS.replace("NAME", name).replace("SECONDS", seconds))
    local = start_local(1, 0, tmp_path / "records")
    assert local.folder == heads.folders[1]
    assert f"Ray did not start (its {name} ended while it started); starting it once more" in caplog.text
    local.stop()


def test_quick_failures_are_repeated_more_often(heads: Heads, tmp_path: Path) -> None:
    heads.play(LEAVES_A_RAYLET.replace("FAILURES", "5"))
    local = start_local(1, 0, tmp_path / "records")
    assert local.folder == heads.folders[5]
    local.stop()


def test_two_slow_failures_are_an_infrastructure_failure_in_one_line(
    heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads.play("time.sleep(600)")
    monkeypatch.setattr(ray_start, "START_S", 1)
    with pytest.raises(InfrastructureError) as raised:
        start_local(1, 0, tmp_path / "records")
    reason = "it did not start within 1 s; the machine may be overloaded or short of memory"
    assert str(raised.value) == f"Ray did not start in 2 attempts: {reason}"
    assert [folder.exists() for folder in heads.folders] == [False] * len(heads.folders)


def test_a_ray_that_cannot_be_joined_is_started_again(
    heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    addresses: list[object] = []

    def join(address: str, **options: object) -> None:
        addresses.append(address)
        if len(addresses) == 1:
            raise Exception("Can't find a node\nand more")

    monkeypatch.setattr(ray, "init", join)
    heads.play("")
    local = start_local(1, 0, tmp_path / "records")
    assert addresses == ["127.0.0.1:6379"] * 2
    assert "Ray did not start (Can't find a node); starting it once more" in caplog.text
    local.stop()


def test_a_slow_start_is_reported(
    heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_start, "NOTICE_S", 0.01)
    heads.play("time.sleep(1)")
    start_local(1, 0, tmp_path / "records").stop()
    assert "waiting for Ray to start (" in caplog.text
    assert f"s of at most {ray_environment.START_S} s)" in caplog.text


def test_a_local_ray_gets_long_timeouts_and_a_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "7")
    monkeypatch.delenv("RAY_gcs_server_port_wait_time_s", raising=False)
    ray_environment.set_ray_environment(None)
    names = ("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s")
    assert [os.environ[name] for name in names] == ["7", "300"]


JOINS = """\
from tuner.errors import SettingError
from tuner.executors.ray_environment import set_ray_environment

set_ray_environment("127.0.0.1:9")
from tuner.executors.ray_start import join_cluster

try:
    join_cluster("127.0.0.1:9")
except SettingError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cluster_whose_control_store_does_not_answer_is_tried_once() -> None:
    """The limits shorten a try from 40 s to 3 s: Ray's own twenty tries would exceed the timeout."""
    limits = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "RAY_py_gcs_connect_timeout_s": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | limits
    command = [sys.executable, "-c", JOINS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "the Ray cluster cannot be joined: Failed to connect" in done.stdout


class ControlStore:
    """Runs, or does not; `looks` counts how often it was looked at."""

    def __init__(self, running: bool) -> None:
        self.running = running
        self.looks = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.looks.release()
        return self.running


def test_a_watch_that_is_ended_gives_nothing_up() -> None:
    given_up = threading.Event()
    store = ControlStore(True)
    watch = Watch(store, given_up.set, grace_s=60, poll_s=0.001)
    assert store.looks.acquire(timeout=60)
    store.running = False
    while store.looks.acquire(timeout=0.1):  # until the watch waits out its grace
        pass
    watch.end()
    assert not given_up.wait(0.1)


def test_a_driver_that_goes_on_without_ray_is_given_up() -> None:
    store, given_up = ControlStore(True), threading.Event()
    Watch(store, given_up.set, grace_s=0.001, poll_s=0.001)
    assert store.looks.acquire(timeout=60)
    assert not given_up.is_set()
    store.running = False
    assert given_up.wait(60)


def test_the_grace_may_be_changed_while_it_lasts() -> None:
    store, given_up = ControlStore(False), threading.Event()
    watch = Watch(store, given_up.set, grace_s=600, poll_s=0.001)
    assert not given_up.wait(0.1)
    watch.grace_s = 0.0
    assert given_up.wait(60)


def test_the_process_cleans_up_and_ends_with_one_line() -> None:
    program = (
        "from tuner.executors.ray_start import end_this_process; end_this_process(lambda: print('clean', flush=True))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "clean\n", MESSAGE + "\n")
