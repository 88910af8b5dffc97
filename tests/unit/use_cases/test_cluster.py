"""What keeps the nodes of a cluster from running trials."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.use_cases.test_devices import FIRST, HEAD, SECOND
from tuner import __version__
from tuner.use_cases.devices import report_nodes

A = replace(FIRST, tuner=__version__, vllm_version="0.25.1")
B = replace(SECOND, tuner=__version__, vllm_version="0.25.1")


def test_equal_nodes_and_a_head_without_a_gpu_have_no_problem() -> None:
    nodes = [replace(HEAD, tuner=__version__), A, B]
    assert [report.problems for report in report_nodes(nodes)] == [(), (), ()]


def test_what_a_node_lacks() -> None:
    odd = replace(B, tuner="0.0.1", vllm_version="0.15.1", gpus=("T4",), free_gib=0.25, clock_difference_s=-60.0)
    first, second = report_nodes([A, odd])
    assert first.problems == ()
    assert second.problems == (
        f"tuner 0.0.1 is installed; this machine has {__version__}",
        "vLLM differs from that of node a",
        "other GPUs than node a",
        "0.2 GiB of disk are free; 1 are needed",
        "its clock differs by -60 s from this machine's",
    )
    broken = replace(B, vllm_version=None, problem="it exits with 1")
    assert report_nodes([A, broken])[1].problems == ("vLLM does not start: it exits with 1",)
