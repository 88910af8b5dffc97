"""What a study records of the machine that runs it."""

from __future__ import annotations

import platform

import pytest

from tuner import __version__, gpu
from tuner.use_cases.devices import this_machine


def test_versions_are_recorded_and_the_host_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"PRETTY_NAME": "Ubuntu 22.04.5 LTS"})
    found = this_machine()
    assert (found["tuner"], found["os"]) == (__version__, "Ubuntu 22.04.5 LTS")
    assert found["python"] == platform.python_version()
    assert platform.node() not in found.values()
    assert found["cores"] == gpu.host_facts()["cores"]


def test_a_system_without_a_name_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert this_machine()["os"] is None
