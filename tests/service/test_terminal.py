"""A simulated study from the terminal, in the real service: submit, watch, export, report."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import ran, run_here
from tests.service.running import Service, running_service
from tuner.client.client import Client


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), "--simulated", "1") as found:
        yield found


@pytest.fixture(autouse=True)
def environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_SERVER", service.address)
    monkeypatch.setenv("TUNER_TOKEN", service.token)


def test_a_study_from_submission_to_its_files(service: Service, tmp_path: Path) -> None:
    study = ("--id", "told", "--engine", "simulated", "--trials", "4", "--confirm-rounds", "1")
    printed = ran(tmp_path, "service", "submit", *study, "--prompts", "40", "--users", "10", "--watch")
    lines = printed.err.splitlines()
    assert lines[0] == "queued"
    assert [line for line in lines if line.startswith("[4/4] #3")]
    assert [line for line in lines if line.startswith("confirmation: ")]
    assert [line for line in lines if line.startswith("[round 1 of 1] #0 ok, ")]
    assert printed.out.splitlines()[1].startswith("told is DONE: ")
    assert "all figures are predicted, not measured" in printed.out
    watched = run_here(tmp_path, "service", "watch", "told")
    assert (watched.code, watched.err) == (0, printed.err)
    exported = run_here(tmp_path, "study", "export", "told", "--server", service.address)
    assert (exported.code, exported.out) == (0, "wrote best_serve.sh, a bash script\n")
    assert subprocess.run(["bash", "-n", "best_serve.sh"], cwd=tmp_path, check=False).returncode == 0
    reported = run_here(tmp_path, "study", "report", "told", "--server", service.address)
    assert (reported.code, (tmp_path / "report.html").read_text()[:15]) == (0, "<!doctype html>")
    with Client() as client:
        assert client.export("told", tmp_path / "p.sh").read_bytes().startswith(b"#!/usr/bin/env bash")
        assert (tmp_path / "p.sh").stat().st_mode & 0o111
        assert {*client.chart("told", "progress")} >= {"data", "layout"}
        assert client.wait("told").progress is not None
        conclusion = client.conclusion("told")
        assert conclusion is not None
        assert conclusion["reason"] == client.study("told").reason
