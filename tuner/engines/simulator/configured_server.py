"""One configured deployment: its memory is divided once, and any number of workloads can run against it.

A deployment is one server, or several equal ones behind a router. A server has one or several replicas of the model
(data parallelism). Each replica has its own queue, KV cache and steps.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from storage.records import FailureKind
from tuner.engines.simulator.benchmark_simulation import BenchmarkSimulation
from tuner.engines.simulator.clients.client import SimulatedClient
from tuner.engines.simulator.config.parallelism import uneven_part
from tuner.engines.simulator.config.precision import attention_kernels
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.error_bands import ErrorBands, find_error_bands
from tuner.engines.simulator.memory.budget import MemoryBudget, StartFailed, find_budget
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.replica import Replica
from tuner.engines.simulator.scheduling.answer_text import AnswerText
from tuner.engines.simulator.scheduling.scheduler import Scheduler
from tuner.engines.simulator.scheduling.speculative_scheduler import SpeculativeScheduler
from tuner.engines.simulator.simulated_run import SimulatedRun, merged_run
from tuner.engines.simulator.timing.step_time import StepTime

_NOISE_STREAM = 0x51
_REPLICA_STREAM = 7907
"""Between the seeds of the answers' texts of two replicas."""


class ConfiguredServer:
    """One server, or `instances` equal ones; `work` is what their tokens need.

    Raises:
        StartFailed: at construction, if the configuration does not fit into memory or its first step fails.
    """

    def __init__(
        self, config: ServeConfig, parameters: Parameters, marlin_input: str | None = None, instances: int = 1
    ) -> None:
        self.instances = instances
        self.parameters = parameters
        self._marlin_input = marlin_input
        _require_even_parts(config)
        _require_output_format(config)
        time = StepTime(config, parameters, marlin_input)
        self.work = time.work
        self.budget: MemoryBudget = find_budget(config, time.weights, parameters)
        length = min(config.max_model_len, self.budget.tokens) if config.fits_length else config.max_model_len
        self.config = replace(config, max_model_len=length)

    @property
    def gpus(self) -> int:
        """The GPUs that work for it."""
        return -(-self.instances * self.config.parallel.gpus // self.config.servers_per_gpu)

    @property
    def error_bands(self) -> ErrorBands:
        """The errors of predictions of its kind."""
        return find_error_bands(self.config, instances=self.instances)

    @property
    def speculative(self) -> bool:
        """Whether a sequence may get several tokens in a step."""
        return self.config.speculation is not None

    def run(
        self,
        client: SimulatedClient,
        seed: int,
        *,
        noise: bool = True,
        warm: bool = True,
        limit_s: float = math.inf,
        fast_forward: bool = True,
    ) -> SimulatedRun:
        """Run a workload with an empty prefix cache.

        Args:
            client: sends the workload.
            seed: of the noise and of the answers' text.
            noise: whether all step times get a common random factor, exp(noise_share × standard normal).
            warm: whether the server has run a prefill before.
            limit_s: virtual seconds after which the run is cut off.
            fast_forward: see `BenchmarkSimulation.run` and `SpeculativeScheduler`.
        """
        scale = _noise_factor(seed, self.parameters.noise_share) if noise else 1.0
        replicas = []
        for number in range(self.instances * self.config.parallel.data):
            time = StepTime(self.config, self.parameters, self._marlin_input, scale, warm)
            scheduler = self._scheduler(seed + _REPLICA_STREAM * number, fast_forward)
            first_gpu = number * self.config.parallel.replica_gpus % self.gpus
            replicas.append(Replica(self.config, self.parameters, scheduler, time, first_gpu))
        BenchmarkSimulation(replicas, client).run(limit_s, fast_forward)
        return merged_run(list(client.requests), replicas, self.config.servers_per_gpu)

    def _scheduler(self, seed: int, fast_forward: bool) -> Scheduler:
        config, blocks = self.config, self.budget.blocks
        if config.speculation is None:
            return Scheduler(config, blocks)
        text = AnswerText(config.speculation, config.temperature, self.parameters, seed)
        return SpeculativeScheduler(config, blocks, text, fast_forward)


def _noise_factor(seed: int, share: float) -> float:
    return float(np.exp(share * np.random.default_rng([seed, _NOISE_STREAM]).standard_normal()))


def _require_even_parts(config: ServeConfig) -> None:
    """Fail if the model's MLP or key-value heads cannot be split over the GPUs, as vLLM's workers do."""
    line = uneven_part(config.model, config.parallel.tensor)
    if line is not None:
        raise StartFailed(line, FailureKind.ENGINE_CRASH)


def _require_output_format(config: ServeConfig) -> None:
    """Fail for an FP8 KV cache with FlashAttention 3 in float16.

    vLLM passes FP8 queries beside an FP8 cache, and FlashAttention 3 (`hopper/flash_api.cpp`) then writes bfloat16
    only. Three measured trials failed so (docs/reports/2026-11-24-h200-qwen-7b.md). The search space has the same rule,
    `flash-attn-3-fp8-kv-float16`; a test compares the two.
    """
    kernels = attention_kernels(config.backend, config.card)
    if kernels == "FLASH_ATTN_3" and config.kv_element_bytes == 1.0 and config.dtype == "float16":
        raise StartFailed(
            "RuntimeError: For FP16/BF16 input, output must have the same dtype as inputs. For FP8 input, output must "
            "have dtype BF16",
            FailureKind.ENGINE_CRASH,
        )
