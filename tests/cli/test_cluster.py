"""`--ray-address`: the cluster is probed before the engine is chosen, and `tuner doctor` shows its nodes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from storage import normalise_url, open_store
from tests.cli.command import CommandOutput, run_apart, run_here
from tests.clusters import kill_node, node_without, running_cluster
from tests.fakes import install_fake_vllm
from tests.faults.command import Study, until
from tuner import __version__
from tuner.executors.ray_worker import MARKER

TRIALS = 8
STUDY = (
    *("--trials", str(TRIALS), "--space", "cpu", "--baseline-repeats", "1", "--confirm-rounds", "0", "--plain"),
    *("--input-len", "64", "--output-len", "32", "--prompts", "20", "--users", "10"),
)


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


@pytest.mark.slow
def test_an_address_of_another_program(dead: str, tmp_path: Path) -> None:
    rule = f"--ray-address '{dead}': no Ray cluster answers at this address within 20 s; check host and port"
    refused_by(run_here(tmp_path, "optimize", "--ray-address", dead), tmp_path, rule)


@pytest.mark.parametrize("engine", [[], ["--engine", "vllm"]])
@pytest.mark.parametrize("address", ["no-such-host.invalid:6379", "127.0.0.1:1", "127.0.0.1", "host:port"])
def test_an_address_without_a_listener(address: str, engine: list[str], tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--ray-address", address, *engine)
    refused_by(printed, tmp_path, f"--ray-address '{address}': no Ray cluster answers at this address (")


def test_a_simulation_needs_no_cluster(tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--engine", "simulated", "--ray-address", "host:1")
    refused_by(printed, tmp_path, "--ray-address 'host:1': a simulated study runs in this process")


@pytest.mark.slow
def test_a_node_without_vllm(cluster: str, tmp_path: Path) -> None:
    printed = run_apart(tmp_path, "optimize", "--ray-address", cluster, "--vllm", "/nowhere/vllm", TUNER_VLLM="")
    refused_by(printed, tmp_path, f"--vllm '/nowhere/vllm': node {os.uname().nodename} has no vLLM")


@pytest.mark.slow
def test_more_nodes_than_the_cluster_has(cluster: str, tmp_path: Path) -> None:
    vllm, folder = install_fake_vllm(tmp_path / "bin"), tmp_path / "empty"
    folder.mkdir()
    printed = run_here(folder, "optimize", "--ray-address", cluster, "--vllm", str(vllm), "--nodes-per-trial", "2")
    refused_by(printed, folder, "--nodes-per-trial 2: the cluster has 1 node, and a trial needs 2; lower it")
    assert not ray.is_initialized()  # Ray aborts a process that is connected when the cluster ends


@pytest.mark.slow
def test_doctor_shows_every_node(cluster: str, tmp_path: Path) -> None:
    vllm = install_fake_vllm(tmp_path / "bin")
    printed = run_apart(tmp_path, "doctor", "--ray-address", cluster, "--vllm", str(vllm), "--json")
    assert printed.code == 0, printed.err
    [node] = json.loads(printed.out)["nodes"]
    assert (node["host"], node["tuner"]) == (os.uname().nodename, __version__)
    assert (node["vllm"], node["vllm_version"]) == (str(vllm), "0.32.0+fake")
    assert node["problems"] == []


@pytest.mark.slow
def test_doctor_names_the_problem_of_a_node(cluster: str, tmp_path: Path) -> None:
    printed = run_apart(tmp_path, "doctor", "--ray-address", cluster, "--vllm", str(tmp_path / "none"))
    assert printed.code == 1
    assert f"node {os.uname().nodename}" in printed.out.splitlines()
    assert "  problem      no vLLM:" in printed.out


@dataclass
class TwoNodes:
    """A study on two nodes that share no folder, one of which was lost."""

    doctor: CommandOutput
    output: CommandOutput
    folder: Path
    lost_trial: int


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("study")
    vllm = install_fake_vllm(tmp_path_factory.mktemp("bin"), bench_s=1.0)
    log = tmp_path_factory.mktemp("log") / "node.txt"
    with running_cluster(cpus=1) as address, node_without(folder, address, 1, log) as second:
        at = ("--ray-address", address, "--vllm", str(vllm))
        doctor = doctor_of_two(folder, at, log)
        study = Study(folder, vllm, model, (*STUDY, "--ray-address", address, "--workers", "2"))
        command = study.start()
        try:
            lost = until(lambda: elsewhere(study), "a trial on the second node", command)
            assert lost is not None
            kill_node(second)
            code = command.wait()
            yield TwoNodes(doctor, CommandOutput(code, "", command.output()), folder, lost)
        finally:
            study.close()


def doctor_of_two(folder: Path, at: tuple[str, ...], log: Path) -> CommandOutput:
    """Return the answer of `tuner doctor` once it shows two nodes."""
    deadline = time.monotonic() + 120
    while True:
        answer = run_apart(folder, "doctor", *at, "--json")
        if answer.code == 0 and len(json.loads(answer.out)["nodes"]) == 2:
            return answer
        assert time.monotonic() < deadline, (answer, log.read_text())


def elsewhere(study: Study) -> int | None:
    """Return the trial that runs on the other node; None unless three have ended and two run, one of them seen here."""
    if len(study.finished()) < 3:
        return None
    folders = {r.number: study.artifacts(str(r.number)) for r in study.records().values() if r.outcome is None}
    here = [number for number, folder in folders.items() if (folder / "server.log").exists()]
    hidden = [number for number, folder in folders.items() if is_on_other_node(folder)]
    return hidden[0] if len(here) == 1 and len(hidden) == 1 else None


def is_on_other_node(folder: Path) -> bool:
    """Return whether the folder has nothing but the driver's marker, which a worker without the folder cannot see."""
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [MARKER]


@pytest.mark.slow
def test_doctor_shows_both_nodes(two_nodes: TwoNodes) -> None:
    nodes = json.loads(two_nodes.doctor.out)["nodes"]
    assert [node["problems"] for node in nodes] == [[], []]


@pytest.mark.slow
def test_a_study_survives_the_loss_of_a_node(two_nodes: TwoNodes) -> None:
    assert two_nodes.output.code == 0, two_nodes.output.err
    store = open_store(normalise_url(str(two_nodes.folder / "tuner_study" / "tuner.db")))
    try:
        trials = store.trials("faults")
    finally:
        store.close()
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert {trial.state for trial in trials} <= {"ok", "infeasible"}
    assert trials[two_nodes.lost_trial].attempts == 2


@pytest.mark.slow
def test_the_files_of_both_nodes_are_complete(two_nodes: TwoNodes) -> None:
    artifacts = two_nodes.folder / "tuner_study" / "artifacts" / "faults"
    for number in range(TRIALS):
        name = f"{number}-a2" if number == two_nodes.lost_trial else str(number)
        names = {path.name for path in (artifacts / name).iterdir()}
        assert {"command.txt", "bench-0.json"} <= names, number
        assert MARKER not in names
