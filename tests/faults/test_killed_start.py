"""A command that is killed while its Ray starts leaves no process and no temporary folder."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.command import Command, described, until
from tests.faults.conftest import MakeStudy

END_S = 15.0
"""How long what a killed command started may take to end."""


def below(command: Command, part: str) -> bool:
    """Return whether a process with a part of its command line runs below the command."""
    found = []
    for process in psutil.Process(command.popen.pid).children(recursive=True):
        try:
            found.append(part in " ".join(process.cmdline()))
        except psutil.Error:
            continue
    return any(found)


@pytest.mark.parametrize("latest", ["gcs_server", "/raylet/raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"])
def test_nothing_is_left(latest: str, make_study: MakeStudy) -> None:
    study = make_study(1, 0.05)
    command = study.start()
    until(lambda: below(command, latest), f"{latest} to run", command)
    command.kill()
    begun = time.monotonic()
    until(lambda: not study.running() and study.servers() == [], f"the end of {described(study.running())}")
    assert time.monotonic() - begun < END_S
    assert list(Path(tempfile.gettempdir()).glob(f"tuner-*-{command.popen.pid}-*")) == []
