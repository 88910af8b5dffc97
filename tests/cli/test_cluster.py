"""`--ray-address`: the cluster is looked at before the engine is chosen, and `tuner doctor` shows its nodes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import CommandOutput, run_apart, run_here
from tests.clusters import running_cluster
from tests.fakes import install_fake_vllm
from tuner import __version__


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with running_cluster(cpus=2) as address:
        yield address


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which a program listens that is no Ray."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def refused_by(printed: CommandOutput, folder: Path, *parts: str) -> None:
    assert printed.code == 2
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert [part for part in parts if part not in printed.err] == [], printed.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("engine", [[], ["--engine", "vllm"]])
def test_an_address_without_a_cluster(engine: list[str], dead: str, tmp_path: Path) -> None:
    rule = f"--ray-address '{dead}': no Ray cluster answers at this address within 30 s; check host and port"
    refused_by(run_here(tmp_path, "optimize", "--ray-address", dead, *engine), tmp_path, rule)


def test_an_unknown_host(tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--ray-address", "no-such-host.invalid:6379")
    refused_by(printed, tmp_path, "--ray-address 'no-such-host.invalid:6379': no Ray cluster answers")


def test_a_simulation_needs_no_cluster(tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--engine", "simulated", "--ray-address", "host:1")
    refused_by(printed, tmp_path, "--ray-address 'host:1': a simulated study runs in this process")


def test_a_node_without_vllm(cluster: str, tmp_path: Path) -> None:
    printed = run_apart(tmp_path, "optimize", "--ray-address", cluster, "--vllm", "/nowhere/vllm", TUNER_VLLM="")
    refused_by(printed, tmp_path, f"--vllm '/nowhere/vllm': node {os.uname().nodename} has no vLLM")


def test_doctor_shows_every_node(cluster: str, tmp_path: Path) -> None:
    vllm = install_fake_vllm(tmp_path / "bin")
    printed = run_apart(tmp_path, "doctor", "--ray-address", cluster, "--vllm", str(vllm), "--json")
    assert printed.code == 0, printed.err
    [node] = json.loads(printed.out)["nodes"]
    assert (node["host"], node["tuner"]) == (os.uname().nodename, __version__)
    assert (node["vllm"], node["vllm_version"]) == (str(vllm), "0.32.0+fake")
    assert node["problems"] == []


def test_doctor_names_the_problem_of_a_node(cluster: str, tmp_path: Path) -> None:
    printed = run_apart(tmp_path, "doctor", "--ray-address", cluster, "--vllm", str(tmp_path / "none"))
    assert printed.code == 1
    assert f"node {os.uname().nodename}" in printed.out.splitlines()
    assert "  problem      no vLLM: " in printed.out
