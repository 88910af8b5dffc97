"""A command that is killed while its Ray starts leaves no process; one whose Ray is killed then goes on, or says so."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.fakes import WITHOUT_MLFLOW
from tests.faults.command import Command, described, until
from tests.faults.conftest import MakeStudy
from tuner.executors.ray_start import MESSAGE

END_S = 15.0
"""How long what a killed command started may take to end, and a command that has lost its Ray while it connected."""


@pytest.fixture(autouse=True)
def without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WITHOUT_MLFLOW.items():
        monkeypatch.setenv(name, value)


def below(command: Command, part: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(command.popen.pid).children(recursive=True):
        with suppress(psutil.Error):
            if part in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("latest", ["gcs_server", "/raylet/raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"])
def test_nothing_is_left(latest: str, make_study: MakeStudy) -> None:
    study = make_study(1, bench_s=0.05)
    command = study.start()
    until(lambda: below(command, latest), f"{latest} to run", command)
    command.kill()
    begun = time.monotonic()
    until(lambda: not study.running() and study.servers() == [], f"the end of {described(study.running())}")
    assert time.monotonic() - begun < END_S
    assert list(Path(tempfile.gettempdir()).glob(f"tuner-*-{command.popen.pid}-*")) == []


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.3, marks=pytest.mark.release), 1.0, 3.0])
def test_a_lost_control_store_costs_another_start_or_is_said_at_once(after_s: float, make_study: MakeStudy) -> None:
    study = make_study(1, bench_s=0.05)
    command = study.start()
    [store] = until(lambda: below(command, "/gcs/gcs_server"), "the control store", command)
    time.sleep(after_s)  # Ray is in another step of its start each time
    store.kill()
    begun = time.monotonic()
    until(lambda: study.finished() or command.popen.poll() is not None, "a trial or the end")
    if command.wait() != 0:
        assert time.monotonic() - begun < END_S
        assert (command.popen.returncode, command.output().splitlines()[-1]) == (1, MESSAGE)
    assert study.leftovers() == []
