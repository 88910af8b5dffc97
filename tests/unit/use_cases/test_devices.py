"""The devices and nodes that a study uses, and what it records of them."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace

import pytest

from search_spaces import hardware_named
from tests.unit.test_gpu import FakeNvml
from tuner import __version__, gpu
from tuner.errors import SettingError
from tuner.executors.ray_cluster import NodeFacts
from tuner.use_cases.devices import (
    choose_devices,
    devices_by_kind,
    find_devices,
    refuse_gpus_on_cpu,
    refuse_nodes,
    this_machine,
)

HEAD = NodeFacts(
    host="head",
    tuner="1",
    gpus=(),
    profile=None,
    vllm=None,
    vllm_version=None,
    problem="no vLLM found",
    memory_gib=8.0,
    free_gib=100.0,
    model_cache=None,
)
FIRST = replace(HEAD, host="a", gpus=("H100",) * 2, profile=hardware_named("h100"), vllm="/opt/vllm", problem=None)
SECOND = replace(FIRST, host="b", gpus=("H100",))


def test_one_worker_for_each_gpu_of_every_node() -> None:
    found = choose_devices([HEAD, FIRST, SECOND], None, None)
    assert found.names == ("H100",) * 3
    assert found.profile == hardware_named("h100")
    assert found.gpus
    assert found.vllm == "/opt/vllm"
    assert choose_devices([FIRST, SECOND], 2, None).names == ("H100",) * 2


def test_the_drivers_of_all_nodes_are_known() -> None:
    nodes = [replace(FIRST, driver="580.65"), replace(SECOND, driver="570.1"), replace(SECOND, host="c"), HEAD]
    assert choose_devices(nodes, None, None).drivers == ("570.1", "580.65")
    assert choose_devices([FIRST], None, None).drivers == ()


def test_a_cluster_without_a_gpu_has_one_worker() -> None:
    found = choose_devices([replace(HEAD, vllm="/opt/vllm", problem=None)], None, None)
    assert (found.names, found.gpus) == (("cpu",), False)


@pytest.mark.parametrize(
    ("nodes", "workers", "message"),
    [
        ([FIRST], 3, r"workers=3: the cluster has 2 GPUs and each worker needs one; lower it"),
        ([HEAD], None, r"node head has no vLLM: no vLLM found; `tuner doctor` with ray_address"),
        ([FIRST, replace(SECOND, vllm=None, problem="gone")], None, r"node b has no vLLM: gone"),
        ([FIRST, replace(SECOND, vllm="/usr/vllm")], None, r"different paths \(a: /opt/vllm, b: /usr/vllm\)"),
        ([FIRST, replace(SECOND, gpus=("T4",))], None, r"different GPUs \(2 × H100, 1 × T4\), and a study needs one"),
    ],
)
def test_a_cluster_that_cannot_run_the_study(nodes: list[NodeFacts], workers: int | None, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        choose_devices(nodes, workers, None)


def test_the_devices_of_a_machine_are_named_by_card_and_index(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (("Tesla T4", (7, 5), 15.0), ("NVIDIA H200", (9, 0), 140.0), ("Tesla T4", (7, 5), 15.0))
    monkeypatch.setattr(gpu, "_pynvml", lambda: FakeNvml(cards))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices_by_kind() == {"t4": ("t4:0", "t4:2"), "h200": ("h200:1",)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert devices_by_kind() == {"t4": ("t4:2",), "h200": ("h200:1",)}


def test_a_machine_without_a_gpu_has_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: None)
    assert devices_by_kind() == {"cpu": ("cpu:0",)}


def test_a_worker_has_its_gpus_on_one_node() -> None:
    found = choose_devices([HEAD, FIRST, SECOND], None, None, gpus_per_trial=2)
    assert (found.names, found.each, found.idle) == (("2 × H100",), 2, 1)
    with pytest.raises(SettingError, match=r"gpus_per_trial=3: the cluster has 2 GPUs on one node, and a trial"):
        choose_devices([FIRST, SECOND], None, None, gpus_per_trial=3)
    with pytest.raises(SettingError, match=r"workers=2: the cluster has 3 GPUs and each worker needs 2; lower it"):
        choose_devices([FIRST, SECOND], 2, None, gpus_per_trial=2)


def test_a_worker_has_its_gpus_on_several_nodes() -> None:
    third = replace(SECOND, host="c", gpus=("H100",) * 4)
    found = choose_devices([HEAD, FIRST, SECOND, third], None, None, gpus_per_trial=4, nodes_per_trial=2)
    assert found.names == ("2 nodes of 2 × H100",)  # a and c have two GPUs for it, b has one
    assert (found.on_node, found.nodes, found.idle) == (2, 2, 3)
    pairs = choose_devices([FIRST, SECOND, third], None, None, gpus_per_trial=2, nodes_per_trial=2)
    assert pairs.names == ("2 nodes of H100",) * 3  # a-c, a-c, b-c


@pytest.mark.parametrize(
    ("nodes", "gpus", "spread", "message"),
    [
        ([HEAD, FIRST], 2, 2, "nodes_per_trial=2: the cluster has 1 node with GPUs, and a trial needs 2; lower it"),
        (
            [FIRST, SECOND],
            4,
            2,
            "gpus_per_trial=4: a trial needs 2 on each of 2 nodes, and the cluster has 2 GPUs and 1 GPU",
        ),
    ],
)
def test_a_cluster_that_is_too_small_for_a_trial(nodes: list[NodeFacts], gpus: int, spread: int, message: str) -> None:
    with pytest.raises(SettingError) as error:
        choose_devices(nodes, None, None, gpus_per_trial=gpus, nodes_per_trial=spread)
    assert str(error.value).startswith(message)


def test_a_machine_of_a_cluster_without_gpus_is_one_device() -> None:
    plain = replace(HEAD, vllm="/opt/vllm", problem=None)
    found = choose_devices([plain, replace(plain, host="b")], None, None, 2, 2)
    assert (found.names, found.gpus, found.nodes, found.on_node) == (("2 nodes of cpu",), False, 2, 1)
    with pytest.raises(SettingError, match=r"nodes_per_trial=2: the cluster has 1 node, and a trial needs 2; lower it"):
        choose_devices([plain], None, None, 2, 2)


def test_one_machine_has_one_node() -> None:
    with pytest.raises(SettingError, match="nodes_per_trial=2: this study runs on one machine"):
        refuse_nodes(2)
    refuse_nodes(1)


def test_workers_of_this_machine_share_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: FakeNvml((("NVIDIA H200", (9, 0), 140.0),) * 5))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = find_devices(None, 2)
    assert (found.names, found.each, found.idle) == (("2 × NVIDIA H200",) * 2, 2, 1)
    assert (find_devices(1, 2).names, find_devices(1, 2).idle) == (("2 × NVIDIA H200",), 0)
    with pytest.raises(SettingError, match=r"gpus_per_trial=8: this machine has 5 GPUs, and a trial needs 8; lower it"):
        find_devices(None, 8)


def test_a_cpu_has_no_gpus_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: None)
    with pytest.raises(SettingError, match="gpus_per_trial=2: this machine has no GPU; leave it out"):
        refuse_gpus_on_cpu(2, find_devices(None, 2))
    refuse_gpus_on_cpu(None, find_devices(None, 2))


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


def test_ray_is_not_imported_before_its_variables_are_set() -> None:
    code = "import sys, tuner.use_cases.optimize; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
