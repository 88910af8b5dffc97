"""From the words of a command to predicted metrics, in one go and without a study's clock.

What the search's prior, `tuner simulate` and the benchmarks ask; an engine goes the same way phase by phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_spaces import HardwareProfile, ModelShape
from tuner.engines.simulator.clients.from_workload import workload_client
from tuner.engines.simulator.clients.metrics import bench_metrics, request_record
from tuner.engines.simulator.config.serve_config import resolve_serve_config
from tuner.engines.simulator.configured_server import ConfiguredServer, SimulatedRun
from tuner.engines.simulator.parameters import Parameters
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.spec import ClosedLoop, SingleWorkload

MARLIN_INPUT = "VLLM_MARLIN_INPUT_DTYPE"


@dataclass(frozen=True)
class Platform:
    """Where a server would run: the card with its parameters, vLLM's version, and what is installed beside it."""

    card: HardwareProfile
    known: Parameters
    version: tuple[int, ...]
    packages: frozenset[str]


def build_server(
    site: Platform, words: Sequence[str], environment: Mapping[str, str], shape: ModelShape
) -> ConfiguredServer:
    """Return the machine that `vllm serve` with these words comes to.

    Raises:
        ConfigRefused: when vLLM's check of the configuration refuses it.
        StartFailed: when the server would not start.
    """
    config = resolve_serve_config(tuple(words), environment, shape, site.card, site.version, site.packages)
    return ConfiguredServer(config, site.known, environment.get(MARLIN_INPUT))


def run_workload(
    machine: ConfiguredServer, load: SingleWorkload, seed: int, limit_s: float = math.inf, noise: bool = False
) -> SimulatedRun:
    """Send a load to a fresh server, for `limit_s` seconds at most."""
    client = workload_client(load, seed, machine.config.prefix_caching, machine.known.client_us * 1e-6)
    return machine.run(client, seed, noise=noise, limit_s=limit_s)


def any_completed(run: SimulatedRun) -> bool:
    """Return whether any request was; a trial without one has failed."""
    return any(job.status == "completed" for job in run.jobs)


def client_metrics(
    load: SingleWorkload, run: SimulatedRun, machine: ConfiguredServer
) -> dict[str, float | None] | None:
    """Return what a client would print; None where a closed loop was not over in time."""
    interval, speculative = machine.config.stream_interval, machine.speculative
    if not isinstance(load, ClosedLoop):
        return dict(
            repeat_of(load, [request_record(job, run.seen, interval, speculative) for job in run.jobs], 0).metrics
        )
    if any(job.in_flight or job.end_s is None for job in run.jobs):
        return None
    return bench_metrics(run.jobs, run.seen, interval, speculative, load.percentiles)
