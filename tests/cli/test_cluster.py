"""`tuner` with clusters: nodes that cannot work, and two of them."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray

from records.trials import FailureKind, TrialRecord
from storage import normalise_url, open_store
from tests.cli.command import CommandOutput, run_apart, run_here
from tests.clusters import kill_each, kill_node, node_without, running_cluster
from tests.fakes import WITHOUT_MLFLOW, install_fake_vllm
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
        study = Study(folder, vllm, model, (*STUDY, "--ray-address", address, "--workers", "2"), **WITHOUT_MLFLOW)
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


NODES_TRIALS = 3
NODES_STUDY = (
    *("--trials", str(NODES_TRIALS), "--space", "cpu", "--baseline-repeats", "1", "--confirm-rounds", "0", "--plain"),
    *("--input-len", "64", "--output-len", "32", "--prompts", "20", "--users", "10", "--nodes-per-trial", "2"),
)
TWO_GPUS = ("--", "--tensor-parallel-size", "2")


def ranks(*, headless: bool = True) -> list[psutil.Process]:
    """Return the ranks of fake servers that run without an API server, or those that have one: rank 0."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--nnodes" in words and any("fake_vllm" in word for word in words) and ("--headless" in words) is headless:
            found.append(process)
    return found


@dataclass
class Deployed:
    """A study of deployments over two nodes, one of which was lost in a trial and replaced."""

    code: int
    output: str
    trials: list[TrialRecord]
    lost_trial: int
    failures: list[FailureKind]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Deployed]:
    folder, logs = tmp_path_factory.mktemp("study"), tmp_path_factory.mktemp("log")
    vllm = install_fake_vllm(tmp_path_factory.mktemp("bin"), bench_s=2.0, lost_rank="hang")
    with running_cluster(cpus=1) as address, node_without(folder, address, 1, logs / "second.txt") as second:
        doctor_of_two(folder, ("--ray-address", address, "--vllm", str(vllm)), logs / "second.txt")
        study = Study(folder, vllm, model, (*NODES_STUDY, "--ray-address", address, *TWO_GPUS), **WITHOUT_MLFLOW)
        command = study.start()
        try:
            lost = until(lambda: running_trial(study), "a trial after the defaults", command)
            assert lost is not None
            kill_node(second)
            with node_without(folder, address, 1, logs / "third.txt"):
                code = command.wait()
            with closing(open_store(normalise_url(str(folder / "tuner_study" / "tuner.db")))) as store:
                trials = store.trials("faults")
            failures = [each.failure.kind for each in study.failed_attempts()]
            yield Deployed(code, command.output(), trials, lost, failures)
        finally:
            study.close()


def running_trial(study: Study) -> int | None:
    """Return the trial that runs after the defaults, once its ranks run."""
    running = [record.number for record in study.records().values() if record.outcome is None]
    return running[0] if running and running[0] > 0 and ranks() else None


@pytest.mark.release
def test_the_trial_of_a_lost_node_is_attempted_again(deployed: Deployed) -> None:
    assert deployed.code == 0, deployed.output
    assert [trial.number for trial in deployed.trials] == list(range(NODES_TRIALS))
    assert [trial.state for trial in deployed.trials] == ["ok"] * NODES_TRIALS
    attempts = [trial.attempts for trial in deployed.trials]
    assert attempts == [2 if number == deployed.lost_trial else 1 for number in range(NODES_TRIALS)]
    assert deployed.failures == [FailureKind.WORKER_LOST]
    assert ranks() == []


@pytest.mark.release
def test_the_logs_of_both_nodes_come_home(deployed: Deployed) -> None:
    for trial in deployed.trials:
        assert trial.outcome is not None
        folder = Path(trial.outcome.artifacts)
        assert "rank=0" in (folder / "server.log").read_text()
        assert "rank=1" in (folder / "server-rank1.log").read_text()
        assert trial.outcome.device == "2 nodes of cpu"


@pytest.mark.release
def test_a_killed_rank_0_ends_the_others(tmp_path: Path, model: Path) -> None:
    """The headless rank of this fake, as vLLM's may, does not notice the loss of rank 0."""
    vllm = install_fake_vllm(tmp_path / "bin", bench_s=2.0, lost_rank="hang")
    folder, log = tmp_path / "study", tmp_path / "second.txt"
    folder.mkdir()
    with running_cluster(cpus=1) as address, node_without(folder, address, 1, log):
        doctor_of_two(folder, ("--ray-address", address, "--vllm", str(vllm)), log)
        study = Study(folder, vllm, model, (*NODES_STUDY, "--ray-address", address, *TWO_GPUS), **WITHOUT_MLFLOW)
        command = study.start()
        try:
            lost = until(lambda: running_trial(study), "a trial after the defaults", command)
            kill_each(ranks(headless=False))
            assert command.wait() == 0, command.output()
            attempts = {number: trial.attempts for (number, _), trial in study.records().items()}
            failures = [each.failure.kind for each in study.failed_attempts()]
        finally:
            study.close()
    assert attempts == {number: 2 if number == lost else 1 for number in range(NODES_TRIALS)}
    assert failures == [FailureKind.SERVER_KILLED]
    assert ranks() == []


@pytest.mark.parametrize("engine", [[], ["--engine", "llama.cpp"], ["--engine", "simulated"]])
def test_several_nodes_need_a_cluster(engine: list[str], tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--nodes-per-trial", "2", *engine)
    refused_by(printed, tmp_path, "--nodes-per-trial 2: this study runs on one machine, and its trials have one node")
