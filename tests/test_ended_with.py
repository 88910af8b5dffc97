"""What tests start ends with them, also if pytest is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.ended_with import living

ROOT = Path(__file__).parents[1]
PATIENCE_S = 300.0
END_S = 30.0
"""A quiet machine takes two seconds."""

TESTS = """
import subprocess, sys, time
from pathlib import Path

def test_processes():
    daemon = "import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", daemon])  # its parent has ended
    (Path(__file__).parent / "ready").touch()
    time.sleep(600)
"""


def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def of_the_run(place: Path) -> list[psutil.Process]:
    """Return the living processes that inherited this run's own variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PLACE_OF_THE_RUN") == str(place):
                found.append(process)
        except psutil.Error:
            continue
    return living(found)


def test_a_process_that_lost_its_parent_ends_with_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import end_what_tests_start, pytest_configure\n")
    (tmp_path / "test_waiting.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--rootdir", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PLACE_OF_THE_RUN": str(tmp_path)}
    variables.pop("PYTEST_ADDOPTS", None)
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*words, "--basetemp", str(tmp_path / "t"), str(tmp_path)],
            cwd=tmp_path,
            env=variables,
            stdout=log,
            stderr=log,
        ) as run,
    ):
        try:
            assert until(lambda: run.poll() is not None or (tmp_path / "ready").exists(), PATIENCE_S)
            assert run.poll() is None, (tmp_path / "log").read_text()
            seen = of_the_run(tmp_path)
            assert any(process.name() == "sleep" for process in seen)
        finally:
            run.kill()
    assert until(lambda: living(seen) == [] == of_the_run(tmp_path), END_S), (living(seen), of_the_run(tmp_path))
