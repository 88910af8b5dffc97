"""The use case of `tuner doctor --ray-address`: whether each node of a cluster can run trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner import __version__
from tuner.executors.node_facts import NodeFacts
from tuner.executors.ray_environment import set_ray_environment
from tuner.use_cases.places import home

MIN_FREE_GIB = 1.0
"""Free disk that a trial's logs and vLLM's compilation caches need at least."""
MAX_CLOCK_DIFFERENCE_S = 5.0
"""Logs of nodes whose clocks differ by more are hard to compare."""


@dataclass(frozen=True)
class NodeReport:
    """A node's facts, and what keeps it from running trials."""

    facts: NodeFacts
    problems: tuple[str, ...]


def check_cluster(address: str, vllm: str | None) -> list[NodeReport]:
    """Join a cluster, probe every node and leave it.

    Args:
        address: of the cluster's head.
        vllm: the vLLM executable on the nodes; None: the one that each finds.

    Raises:
        SettingError: if no cluster answers.
        InfrastructureError: if a node does not answer.
    """
    set_ray_environment(address)
    from tuner.executors.ray_cluster import leave_cluster, look_at_cluster

    nodes = look_at_cluster(address, vllm, home(), thorough=True)
    leave_cluster()
    return report_nodes(nodes)


def report_nodes(nodes: Sequence[NodeFacts]) -> list[NodeReport]:
    """Return a report for each node.

    A node without a GPU takes no trials if another node has one, so it needs no vLLM.
    """
    used = [node for node in nodes if node.gpus] or list(nodes)
    return [NodeReport(node, _problems(node, used)) for node in nodes]


def _problems(node: NodeFacts, used: Sequence[NodeFacts]) -> tuple[str, ...]:
    found = []
    if node.tuner != __version__:
        found.append(f"tuner {node.tuner} is installed; this machine has {__version__}")
    if node in used:
        first = used[0]
        if node.vllm is None:
            found.append(f"no vLLM: {node.problem}")
        elif node.vllm_version is None:
            found.append(f"vLLM does not start: {node.problem}")
        elif (node.vllm, node.vllm_version) != (first.vllm, first.vllm_version):
            found.append(f"vLLM differs from that of node {first.host}")
        if set(node.gpus) != set(first.gpus):
            found.append(f"other GPUs than node {first.host}")
    if node.free_gib < MIN_FREE_GIB:
        found.append(f"{node.free_gib:.1f} GiB of disk are free; {MIN_FREE_GIB:.0f} are needed")
    if node.clock_difference_s is not None and abs(node.clock_difference_s) > MAX_CLOCK_DIFFERENCE_S:
        found.append(f"its clock differs by {node.clock_difference_s:+.0f} s from this machine's")
    return tuple(found)
