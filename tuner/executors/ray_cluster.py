"""Look at a Ray cluster before a study uses it: what each node has.

Call `tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from search_spaces import HardwareProfile
from search_spaces.units import GIB
from storage.errors import first_line
from tuner import __version__, gpu
from tuner.engines.vllm.toolbox import find_executable, installation
from tuner.errors import InfrastructureError, SettingError, UserError
from tuner.executors.ray_start import join_cluster
from tuner.transport import Unreached, explained


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node.

    Args:
        host: its name.
        tuner: version of this project there.
        gpus: names of the GPUs that Ray has there.
        profile: of its first GPU; None without a GPU.
        vllm: path of its vLLM; None if it has none.
        vllm_version: None if it was not read or vLLM does not start.
        problem: why vLLM cannot be used; None if it can.
        memory_gib: memory of the host.
        free_gib: free disk space at the folder of caches.
        model_cache: folder of Hugging Face's cache; None if it does not exist.
        driver: version of its GPUs' driver; None without a GPU.
        clock_difference_s: its wall clock minus the driver's, less what the probe can have taken; None if not read.
    """

    host: str
    tuner: str
    gpus: tuple[str, ...]
    profile: HardwareProfile | None
    vllm: str | None
    vllm_version: str | None
    problem: str | None
    memory_gib: float
    free_gib: float
    model_cache: str | None
    driver: str | None = None
    clock_difference_s: float | None = None


def read_node_facts(vllm: str | None, home: Path, with_version: bool) -> NodeFacts:
    """Read the facts of the node that this runs on.

    Args:
        vllm: the given executable; None: the one that is found.
        home: folder of caches.
        with_version: whether to start vLLM to read its version, which takes seconds to minutes the first time.
    """
    executable = version = problem = None
    try:
        executable = os.fspath(find_executable(vllm))
        version = installation(Path(executable), home).version if with_version else None
    except UserError as error:
        problem = str(error)
    devices = gpu.devices()
    existing = next(parent for parent in (home, *home.parents) if parent.is_dir())
    cache = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return NodeFacts(
        host=os.uname().nodename,
        tuner=__version__,
        gpus=tuple(device.name for device in devices),
        profile=gpu.hardware_profile(devices[0].index) if devices else None,
        vllm=executable,
        vllm_version=version,
        problem=problem,
        memory_gib=psutil.virtual_memory().total / GIB,
        free_gib=shutil.disk_usage(existing).free / GIB,
        model_cache=os.fspath(cache) if cache.is_dir() else None,
        driver=devices[0].driver if devices else None,
    )


CONNECT_S = 10.0
"""How long the connection to its head may take."""
ANSWER_S = 20.0
"""How long a cluster may take to answer whether it runs."""
PROBE_S = 300.0
"""How long its nodes may take to answer a probe, with the start of a worker and the import of this project."""


def look_at_cluster(address: str, vllm: str | None, home: Path, *, thorough: bool = False) -> list[NodeFacts]:
    """Join a cluster and return the facts of each of its nodes, in the order of their names.

    Args:
        address: of the cluster's head.
        vllm: the vLLM executable on the nodes; None: the one that each finds.
        home: folder of caches on the nodes.
        thorough: whether to read vLLM's version, see `read_node_facts`, and to compare the clocks.

    Raises:
        SettingError: if no cluster answers at this address.
        InfrastructureError: if a node does not answer, or cannot import this project.
    """
    check_address(address)
    join_cluster(address)
    try:
        return _probe_nodes(vllm, home, thorough)
    except BaseException:
        leave_cluster()
        raise


def _probe_nodes(vllm: str | None, home: Path, thorough: bool) -> list[NodeFacts]:
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    pending = {_on(node, read_node_facts).remote(vllm, home, thorough): node for node in nodes}
    ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=PROBE_S)
    if late:
        host = pending[late[0]]["NodeManagerHostname"]
        raise InfrastructureError(f"node {host} did not answer within {PROBE_S:.0f} s; see `ray status`")
    found = []
    for reference in ready:
        node = pending[reference]
        facts = _answer(reference, node["NodeManagerHostname"])
        facts = replace(facts, gpus=facts.gpus[: int(node["Resources"].get("GPU", 0))])
        found.append(replace(facts, clock_difference_s=_clock_difference_s(node)) if thorough else facts)
    return sorted(found, key=lambda facts: facts.host)


def _on(node: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """Return a function as a Ray task that runs on one node and reserves nothing."""
    strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)


def _clock_difference_s(node: Mapping[str, Any]) -> float:
    """Return by how much a node's wall clock is before or after the whole time of a question to it; 0 if within."""
    begun = time.time()
    there: float = ray.get(_on(node, _wall_clock).remote())
    return min(there - begun, 0.0) + max(there - time.time(), 0.0)


def _wall_clock() -> float:
    return time.time()


def leave_cluster() -> None:
    """Disconnect this process; nothing happens if it is not connected."""
    ray.shutdown()


def _answer(reference: Any, host: str) -> NodeFacts:
    """Return the facts of a node."""
    try:
        facts = ray.get(reference)
    except RayError as error:
        if "No module named 'tuner'" in str(error):
            remedy = "install this project into the environment of Ray there"
            raise InfrastructureError(f"node {host} cannot import tuner; {remedy}") from None
        raise InfrastructureError(f"node {host} cannot be probed: {first_line(error)}") from None
    assert isinstance(facts, NodeFacts)
    return facts


def check_address(address: str) -> None:
    """Ask a cluster whether it runs.

    `ray.init` tries a dead address for 40 s, and logs to the terminal meanwhile; `ray health-check` is a process of its
    own, which tries for 30 s. A host that does not exist and a port at which nothing listens are found at once.

    Raises:
        SettingError: if no cluster answers within `CONNECT_S` and then `ANSWER_S` seconds, or this machine is no node.
    """
    if address == "auto" or address.startswith("ray://"):
        return
    rule = "no Ray cluster answers at this address"
    remedy = "check host and port; `ray status` on its head shows them"
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            pass
    except (OSError, ValueError) as error:
        reason = explained(error) or Unreached("it has no port" if not port.isdecimal() else "it cannot be used")
        raise SettingError("ray_address", address, f"{rule} ({reason.problem})", remedy) from None
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        code = subprocess.run(command, capture_output=True, timeout=ANSWER_S, check=False).returncode
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        raise SettingError("ray_address", address, f"{rule} within {ANSWER_S:.0f} s", remedy)
    if not _runs_raylet(Path("/proc")):
        rule = "this machine, or its container, is not a node of the cluster, so it cannot start trials there"
        raise SettingError("ray_address", address, rule, f"run `ray start --address={address} --num-cpus=0` here first")


def _runs_raylet(processes: Path) -> bool:
    """Return whether a raylet runs here, as Ray itself looks for one. Without it, `ray.init` fails after a minute.

    Args:
        processes: Linux's folder of processes.
    """
    for path in processes.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if words[0].endswith(b"raylet") and any(word.startswith(b"--node_id=") for word in words):
            return True
    return False
