"""`--nodes-per-trial`: a deployment over two nodes is one trial, and one of the nodes is killed while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from records.trials import FailureKind, TrialRecord
from storage import normalise_url, open_store
from tests.cli.command import run_here
from tests.cli.test_cluster import doctor_of_two, refused_by
from tests.clusters import kill_each, kill_node, node_without, running_cluster
from tests.fakes import install_fake_vllm
from tests.faults.command import Study, until

TRIALS = 3
STUDY = (
    *("--trials", str(TRIALS), "--space", "cpu", "--baseline-repeats", "1", "--confirm-rounds", "0", "--plain"),
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
        study = Study(folder, vllm, model, (*STUDY, "--ray-address", address, *TWO_GPUS))
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
    assert [trial.number for trial in deployed.trials] == list(range(TRIALS))
    assert [trial.state for trial in deployed.trials] == ["ok"] * TRIALS
    attempts = [trial.attempts for trial in deployed.trials]
    assert attempts == [2 if number == deployed.lost_trial else 1 for number in range(TRIALS)]
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
        study = Study(folder, vllm, model, (*STUDY, "--ray-address", address, *TWO_GPUS))
        command = study.start()
        try:
            lost = until(lambda: running_trial(study), "a trial after the defaults", command)
            kill_each(ranks(headless=False))
            assert command.wait() == 0, command.output()
            attempts = {number: trial.attempts for (number, _), trial in study.records().items()}
            failures = [each.failure.kind for each in study.failed_attempts()]
        finally:
            study.close()
    assert attempts == {number: 2 if number == lost else 1 for number in range(TRIALS)}
    assert failures == [FailureKind.SERVER_KILLED]
    assert ranks() == []


@pytest.mark.parametrize("engine", [[], ["--engine", "llama.cpp"], ["--engine", "simulated"]])
def test_several_nodes_need_a_cluster(engine: list[str], tmp_path: Path) -> None:
    printed = run_here(tmp_path, "optimize", "--nodes-per-trial", "2", *engine)
    refused_by(printed, tmp_path, "--nodes-per-trial 2: this study runs on one machine, and its trials have one node")
