"""Several vLLM servers behind one address: what each gets, and the deployment as one server, with the fake vLLM."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.ended_with import living
from tests.fakes import install_fake_vllm
from tests.unit.processes.started import until
from tuner.engines.server.metrics import parse_metrics
from tuner.engines.vllm import instances
from tuner.engines.vllm.instances import shares_of
from tuner.engines.vllm.kind import LAUNCHER
from tuner.engines.vllm.texts import METRICS
from tuner.files import HOME
from tuner.processes.ports import lease_port

PATIENCE_S = 120.0
"""Longer than anything takes on a busy machine."""
WORDS = ("serve", "m", "--max-num-seqs", "8")


def gpus(visible: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": visible}


def test_instances_have_gpus_of_their_own() -> None:
    found = shares_of(2, (*WORDS, "-tp", "2"), gpus("4,5,6,7"))
    assert [share.environment for share in found] == [gpus("4,5"), gpus("6,7")]
    assert [(share.words, share.alone) for share in found] == [((*WORDS, "-tp", "2"), False)] * 2


@pytest.mark.parametrize(
    ("given", "kept", "part"),
    [
        ((), (), "0.45"),
        (("--gpu-memory-utilization", "0.8"), (), "0.4"),
        (("--gpu_memory_utilization=0.6", "--seed", "1"), ("--seed", "1"), "0.3"),
    ],
)
def test_instances_on_one_gpu_share_its_memory(given: tuple[str, ...], kept: tuple[str, ...], part: str) -> None:
    found = shares_of(2, (*WORDS, *given), gpus("3"))
    assert [share.environment for share in found] == [gpus("3")] * 2
    assert [share.words for share in found] == [(*WORDS, *kept, "--gpu-memory-utilization", part)] * 2
    assert [share.alone for share in found] == [True, True]


def test_three_instances_on_two_gpus() -> None:
    found = shares_of(3, WORDS, gpus("0,1"))
    assert [share.environment for share in found] == [gpus("0"), gpus("1"), gpus("0")]
    assert [share.words[-1] for share in found] == ["0.45", "8", "0.45"]


def test_instances_on_a_cpu_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 8})
    found = shares_of(2, WORDS, {"VLLM_CPU_KVCACHE_SPACE": "7"})
    assert [share.environment["VLLM_CPU_OMP_THREADS_BIND"] for share in found] == ["0,2", "4,6,8"]
    assert [share.environment["VLLM_CPU_KVCACHE_SPACE"] for share in found] == ["4", "4"]
    own = shares_of(2, WORDS, {"VLLM_CPU_OMP_THREADS_BIND": "0-3"})
    assert [share.environment for share in own] == [{"VLLM_CPU_KVCACHE_SPACE": "2"}] * 2


def test_without_a_variable_all_gpus_of_the_machine_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "devices", lambda environment: ["one", "two"])
    assert instances._all_gpus() == gpus("0,1")
    monkeypatch.setattr(instances, "devices", lambda environment: [])
    assert instances._all_gpus() == {}


def test_one_instance_is_vllm_itself() -> None:
    (found,) = shares_of(1, WORDS, gpus("0,1"))
    assert (found.words, found.environment, found.alone) == (WORDS, {}, False)


def test_no_instance_gets_the_port_of_the_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [lease_port(tmp_path) for _ in range(3)]
    found = iter(leases)
    monkeypatch.setattr(instances, "lease_port", lambda folder, host: next(found))
    first, second, third = (lease.port for lease in leases)
    with ExitStack() as stack:
        assert instances._leased_ports(stack, 2, taken=second) == [first, third]
    assert not [*tmp_path.iterdir()]


class Deployment:
    """A running deployment of the fake."""

    def __init__(self, folder: Path, *argv: str) -> None:
        vllm = install_fake_vllm(folder / "bin")
        self.lease = lease_port(folder / "ports")
        self.port = self.lease.port
        program = Path(sys.executable).with_name(LAUNCHER)
        environment = {**os.environ, "TUNER_VLLM": str(vllm), "CUDA_VISIBLE_DEVICES": "0,1", HOME: str(folder)}
        command = [str(program), "serve", "made", "--port", str(self.port), "--instances", "2", *argv]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S)
        except httpx.TransportError:
            return None

    def wait(self) -> None:
        until(lambda: (reply := self.get("/health")) is not None and reply.status_code == 200)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.lease.release()


HAPROXY = pytest.mark.program("haproxy")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.close()


@HAPROXY
def test_requests_are_spread_and_metrics_are_summed(deployment: Deployment) -> None:
    deployment.wait()
    for _ in range(8):
        reply = httpx.post(
            f"http://127.0.0.1:{deployment.port}/v1/completions",
            json={"model": "made", "prompt": [1, 2, 3], "max_tokens": 2},
            timeout=PATIENCE_S,
        )
        assert reply.status_code == 200
    page = deployment.get("/metrics")
    assert page is not None
    assert parse_metrics(page.text, METRICS)["vllm:num_requests_running"] == 0.0
    names = [line.partition("{")[0] for line in page.text.splitlines()]
    assert names.count("vllm:num_requests_running") == 2
    models = deployment.get("/v1/models")
    assert models is not None
    assert [each["id"] for each in models.json()["data"]] == ["made"]


@HAPROXY
def test_all_end_with_the_launcher(deployment: Deployment) -> None:
    deployment.wait()
    children = deployment.children()
    deployment.process.send_signal(signal.SIGTERM)
    assert deployment.process.wait(PATIENCE_S) == 0
    assert len(children) >= 3
    until(lambda: living(children) == [])


@HAPROXY
def test_an_instance_that_ends_ends_all(deployment: Deployment) -> None:
    deployment.wait()
    children = deployment.children()
    next(each for each in children if "fake_vllm.py" in " ".join(each.cmdline())).kill()
    assert deployment.process.wait(PATIENCE_S) == 1
    until(lambda: living(children) == [])


def test_other_commands_are_those_of_vllm(tmp_path: Path) -> None:
    vllm = install_fake_vllm(tmp_path)
    started = Path(sys.executable).with_name(LAUNCHER)
    shown = [
        subprocess.run([program, "--version"], capture_output=True, env={**os.environ, "TUNER_VLLM": str(vllm)})
        for program in (vllm, started)
    ]
    assert shown[0].stdout == shown[1].stdout != b""


@pytest.mark.parametrize(
    ("argv", "path", "message"),
    [
        (["--instances", "0"], None, "--instances 0: at least 1 is needed"),
        (["--instances", "2"], "/nowhere", "there is no vllm on the PATH; install it, or name it by TUNER_VLLM"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, argv: list[str], path: str | None, message: str) -> None:
    vllm = install_fake_vllm(tmp_path)
    started = Path(sys.executable).with_name(LAUNCHER)
    environment = {**os.environ, "TUNER_VLLM": str(vllm)}
    if path is not None:
        environment |= {"PATH": path, "TUNER_VLLM": "vllm"}
    done = subprocess.run([started, "serve", "m", *argv], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, f"tuner-vllm-instances: {message}\n")
