"""What tests start ends with them, also if pytest or one of its workers is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.ended_with import living

ROOT = Path(__file__).parents[1]
PATIENCE_S = 300.0
END_S = 30.0
"""A quiet machine takes two seconds."""

TESTS = """
import subprocess, sys, time
from pathlib import Path
import pytest
from tests.clusters import running_cluster

HERE = Path(__file__).parent

def test_processes():
    daemon = "import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", daemon])  # its parent has ended
    (HERE / "ready-1").touch()
    time.sleep(600)

def test_cluster():
    with running_cluster(1):
        (HERE / "ready-2").touch()
        time.sleep(600)
"""


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + within_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def wait_until_ready(run: subprocess.Popen[bytes], place: Path, *names: str) -> None:
    """Wait until tests have written these files, or the run has ended."""
    assert until(lambda: run.poll() is not None or all((place / name).exists() for name in names))
    assert run.poll() is None, (place / "log").read_text()


def of_the_run(place: Path) -> list[psutil.Process]:
    """Return the living processes that inherited this run's own variable, or are below one that did.

    Ray's agents overwrite their environment, so they are found only as long as their parent lives.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("PLACE_OF_THE_RUN") == str(place):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except psutil.Error:
            continue
    return living(found.values())


def assert_all_end(place: Path, seen: list[psutil.Process]) -> None:
    """Wait until nothing of the run lives, neither what was seen before nor what has started since."""
    assert until(lambda: living(seen) == [] == of_the_run(place), END_S), (living(seen), of_the_run(place))


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A run of pytest whose tests wait."""
    options: tuple[str, ...] = request.param
    (tmp_path / "conftest.py").write_text("from tests.conftest import end_what_tests_start, pytest_configure\n")
    (tmp_path / "test_waiting.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "t")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PLACE_OF_THE_RUN": str(tmp_path)}
    variables.pop("PYTEST_ADDOPTS", None)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*words, tmp_path], cwd=tmp_path, env=variables, stdout=log, stderr=log)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("run", [("-p", "no:xdist", "-k", "processes")], indirect=True)
def test_a_process_that_lost_its_parent_ends_with_a_killed_run(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    wait_until_ready(run, tmp_path, "ready-1")
    seen = of_the_run(tmp_path)
    assert any(process.name() == "sleep" for process in seen)
    run.kill()
    assert_all_end(tmp_path, seen)


@pytest.mark.slow
@pytest.mark.parametrize("run", [("-n", "1", "--max-worker-restart=0", "-k", "processes")], indirect=True)
def test_it_ends_with_a_killed_worker(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    wait_until_ready(run, tmp_path, "ready-1")
    seen = of_the_run(tmp_path)
    for worker in psutil.Process(run.pid).children():
        worker.kill()
    run.wait(PATIENCE_S)
    assert_all_end(tmp_path, seen)


@pytest.mark.slow
@pytest.mark.parametrize("run", [("-n", "1", "-k", "cluster")], indirect=True)
def test_a_cluster_ends_with_a_killed_run(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    wait_until_ready(run, tmp_path, "ready-2")
    seen = of_the_run(tmp_path)
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= {process.name() for process in seen}
    run.kill()
    assert_all_end(tmp_path, seen)
