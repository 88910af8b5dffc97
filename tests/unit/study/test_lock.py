"""The wait for a study that another process runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.storage.test_locks import another_process
from tuner.errors import InfrastructureError
from tuner.study.study_folder import StudyIsRunning, refuse_running, wait_until_free


def test_a_study_that_another_process_runs_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process, pytest.raises(StudyIsRunning, match=f"process {process.pid} on host"):
        refuse_running(url, "s")


def test_the_wait_ends_when_the_other_process_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process:
        waits = threading.Thread(target=wait_until_free, args=(url, "s", 600.0, threading.Event()))
        waits.start()
        assert waits.is_alive()
        process.kill()
        waits.join()
    refuse_running(url, "s")


def test_a_wait_without_an_end_is_a_failure_of_the_infrastructure(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with another_process(url) as process:
        rule = f"process {process.pid} on host .* is running the study 's', and did not end within 0 s"
        with pytest.raises(InfrastructureError, match=rule):
            wait_until_free(url, "s", 0.0, threading.Event())


def test_a_request_to_stop_ends_the_wait(tmp_path: Path) -> None:
    url, stop = f"sqlite:///{tmp_path / 't.db'}", threading.Event()
    stop.set()
    with another_process(url):
        wait_until_free(url, "s", 600.0, stop)
