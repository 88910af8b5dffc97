"""The start of a local Ray on a machine that is too slow for it."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import services

from tuner.errors import InfrastructureError
from tuner.executors import ray_environment, ray_start

TIMED_OUT = "The current node timed out during startup. This could happen because the GCS has become overloaded"
RAYLET = "import sys, time\nprint('running', flush=True)\ntime.sleep(600)"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that has the temporary folders of each attempt."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class FailingRay:
    """A `ray.init` that fails a given number of times and leaves a raylet each time."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.folders: list[Path] = []
        self.raylets: list[subprocess.Popen[str]] = []

    def init(self, **options: object) -> None:
        self.folders.append(Path(str(options["_temp_dir"])).parent)
        if len(self.folders) <= self.failures:
            self.raylets.append(start_raylet(self.folders[-1]))
            raise Exception(TIMED_OUT)


def start_raylet(folder: Path) -> subprocess.Popen[str]:
    """Start a process that looks like the raylet of a Ray in the folder."""
    argv = ["/usr/lib/raylet", "-c", RAYLET, f"--session-dir={folder}/session"]
    process = subprocess.Popen(argv, executable=sys.executable, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.stdout.close()
    return process


def test_a_failed_start_is_repeated_and_its_processes_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailingRay(1)
    monkeypatch.setattr(ray, "init", failing.init)
    assert ray_start.start_local(1, False, tmp_path / "records").folder == failing.folders[1]
    assert not failing.folders[0].exists()
    assert failing.folders[1].is_dir()
    assert not psutil.pid_exists(failing.raylets[0].pid)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"Ray did not start ({TIMED_OUT}); starting it once more"
    ]


def test_quick_failures_are_repeated_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingRay(5)
    monkeypatch.setattr(ray, "init", failing.init)
    assert ray_start.start_local(1, False, tmp_path / "records").folder == failing.folders[5]
    assert len(failing.folders) == 6


def test_two_slow_failures_are_an_infrastructure_failure_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingRay(2)
    monkeypatch.setattr(ray, "init", failing.init)
    monkeypatch.setattr(ray_start, "START_S", 0)
    with pytest.raises(
        InfrastructureError, match=r"Ray did not start in 2 attempts: The current node .* overloaded"
    ) as e:
        ray_start.start_local(1, False, tmp_path / "records")
    assert "\n" not in str(e.value)
    assert not any(folder.exists() for folder in failing.folders)
    assert not any(psutil.pid_exists(raylet.pid) for raylet in failing.raylets)


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_raylet(tmp_path)
    yield process
    process.kill()
    process.wait()


def test_ray_waits_for_a_slow_raylet_as_long_as_it_runs(
    raylet: subprocess.Popen[str], temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[object] = [RuntimeError("not there yet")] * 5 + ["the node"]

    def get_node(address: str, node: str) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray_start, "_POLL_S", 0.01)
    monkeypatch.setattr(ray_start, "NOTICE_S", 0.02)
    with ray_start._patient_registration(temporary):
        assert services.get_node("address", "id") == "the node"  # type: ignore[no-untyped-call]
    assert answers == []
    assert "waiting for Ray to start" in caplog.text
    assert services.get_node is get_node


def test_ray_does_not_wait_for_a_raylet_that_ended(
    raylet: subprocess.Popen[str], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_node(address: str, node: str) -> object:
        raylet.kill()
        raylet.wait()
        raise RuntimeError("not there yet")

    monkeypatch.setattr(services, "get_node", get_node)
    ended = pytest.raises(InfrastructureError, match="its raylet ended while it started")  # Ray waits for RuntimeErrors
    with ray_start._patient_registration(temporary), ended:
        services.get_node("address", "id")  # type: ignore[no-untyped-call]


def test_the_installed_ray_has_the_function_that_is_replaced() -> None:
    """Without it, Ray's own limit of 30 s would apply on a busy machine."""
    assert list(inspect.signature(services.get_node).parameters) == ["gcs_address", "node_id"]
    source = inspect.getsource(ray._private.node.Node.__init__)
    assert "ray._private.services.get_node(" in source


def test_a_local_ray_gets_long_timeouts_and_a_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "7")
    monkeypatch.delenv("RAY_gcs_server_port_wait_time_s", raising=False)
    ray_environment.set_ray_environment(None)
    names = ("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s")
    assert [os.environ[name] for name in names] == ["7", "120"]
