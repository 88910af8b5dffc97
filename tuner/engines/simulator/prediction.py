"""Predicts the metrics of one configuration in one call, without a study's clock.

The simulator prior, `tuner simulate` and the benchmarks use these functions. `SimulatedServer` runs the same phases one
by one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces import HardwareProfile, ModelShape, version_tuple
from search_spaces.render import instances_of, without_instances
from tuner.engines.simulator.client import workload_client
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.flags import SIMULATED_PACKAGES
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.engines.simulator.serve_config import ServeConfig, placed_config, resolve_serve_config
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.spec import ClosedLoop, SingleWorkload

MARLIN_INPUT = "VLLM_MARLIN_INPUT_DTYPE"
"""Environment variable of vLLM: the 8-bit format of activations in Marlin's kernels."""


@dataclass(frozen=True)
class Platform:
    """Where a server runs: `gpus` cards of a kind, the simulator's parameters of it, vLLM's version and packages."""

    card: HardwareProfile
    parameters: Parameters
    version: tuple[int, ...]
    packages: frozenset[str]
    gpus: int = 1

    @classmethod
    def simulated(cls, card: HardwareProfile, version: str, gpus: int = 1) -> Platform:
        """Return the platform of a simulated study on a card, with the packages that count as installed there."""
        return cls(card, parameters_of(card.key), version_tuple(version), SIMULATED_PACKAGES, gpus)


def configuration(
    platform: Platform, arguments: Sequence[str], environment: Mapping[str, str], shape: ModelShape, instances: int
) -> ServeConfig:
    """Return the configuration of each server of a command line; see `build_server`."""
    words, site = without_instances(arguments), platform
    config = resolve_serve_config(words, environment, shape, site.card, site.version, site.packages, site.gpus)
    return placed_config(config, instances, site.gpus)


@dataclass(frozen=True)
class PredictedRun:
    """The metrics that clients report of a run, None if it fails, and its length in seconds."""

    metrics: Mapping[str, float | None] | None
    seconds: float


def build_server(
    platform: Platform,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    shape: ModelShape,
    instances: int | None = None,
) -> ConfiguredServer:
    """Return the server of a command line.

    Args:
        platform: where it runs.
        arguments: the arguments after `vllm serve MODEL`.
        environment: environment variables of the server.
        shape: the shape of the model.
        instances: equal servers behind a router, on separate GPUs if there are enough; otherwise they share them.
            None: as many as the arguments say.

    Raises:
        ConfigRefused: if vLLM refuses the configuration.
        StartFailed: if the server starts and then ends with an error.
    """
    count = instances_of(arguments) if instances is None else instances
    config = configuration(platform, arguments, environment, shape, count)
    return ConfiguredServer(config, platform.parameters, environment.get(MARLIN_INPUT), count)


def run_workload(
    server: ConfiguredServer, workload: SingleWorkload, seed: int, limit_s: float = math.inf, noise: bool = False
) -> SimulatedRun:
    """Run a workload against a server with an empty prefix cache, for `limit_s` seconds at most."""
    client = workload_client(workload, seed, server.config.prefix_caching, server.parameters.client_us * 1e-6)
    return server.run(client, seed, noise=noise, limit_s=limit_s)


class Predictions:
    """The predicted metrics of servers of one card under one workload. Servers whose runs cannot differ share one.

    Many configurations of a search differ only in what no step depends on, such as the size of a KV cache that none
    fills.

    Args:
        workload: the workload, with the seed of its first repeat.
        limit_s: virtual seconds after which a run is cut off.
    """

    def __init__(self, workload: SingleWorkload, limit_s: float = math.inf) -> None:
        self._workload = workload
        self._limit_s = limit_s
        self._most_in_flight = workload.max_concurrency if isinstance(workload, ClosedLoop) else workload.max_in_flight
        self._known: dict[Hashable, list[tuple[int, int | None, PredictedRun]]] = {}

    def of(self, server: ConfiguredServer) -> PredictedRun:
        """Return what a run without noise on a server gives."""
        blocks, known = server.budget.blocks, self._known.setdefault(server.run_key(self._most_in_flight), [])
        for ran_with, sufficient, predicted in known:
            if blocks == ran_with or (sufficient is not None and blocks >= sufficient):
                return predicted
        run = run_workload(server, self._workload, self._workload.repeat_seed(0), self._limit_s)
        predicted = PredictedRun(client_metrics(self._workload, run) if run.completed else None, run.duration_s)
        known.append((blocks, run.sufficient, predicted))
        return predicted


def client_metrics(workload: SingleWorkload, run: SimulatedRun) -> dict[str, float | None] | None:
    """Return the metrics that the client reports; None for a closed loop that did not end within its limit."""
    if not isinstance(workload, ClosedLoop):
        return dict(repeat_of(workload, run.records(), 0).metrics)
    return run.bench_metrics(workload.percentiles) if run.all_ended else None
