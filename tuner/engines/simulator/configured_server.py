"""One configured server: its memory is laid out once, and any number of loads is run against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.records import FailureKind
from tuner.engines.simulator.benchmark_simulation import BenchmarkSimulation, SimulationTrace
from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.config.precision import kernels_named
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.budget import MemoryBudget, StartFailed, find_budget
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.answer_text import AnswerText
from tuner.engines.simulator.scheduling.scheduler import Scheduler, SchedulerCounts
from tuner.engines.simulator.scheduling.speculative_scheduler import SpeculativeScheduler
from tuner.engines.simulator.timing.step_time import StepTime


@dataclass(frozen=True)
class SimulatedRun:
    """What came of one load. `seen` are the seconds at which clients saw each step's tokens.

    `seconds` says where the time of all steps went; `flops` and `bytes` what they needed; see `StepTime`.
    """

    jobs: list[SimulatedRequest]
    seen: NDArray[np.float64]
    trace: SimulationTrace
    counts: SchedulerCounts
    seconds: Mapping[str, float]
    flops: float
    bytes: float


class ConfiguredServer:
    """A server on a card.

    Raises:
        StartFailed: when the configuration does not fit, or its first step dies.
    """

    def __init__(self, config: ServeConfig, known: Parameters, eight_bit: str | None = None) -> None:
        self.config = config
        self.known = known
        self._eight_bit = eight_bit
        _require_output(config)
        self.budget: MemoryBudget = find_budget(config, StepTime(config, known, eight_bit).weights, known)

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
        together: bool = True,
    ) -> SimulatedRun:
        """Run a load from an empty cache.

        Args:
            client: who sends it.
            seed: of the noise and of the answers' text.
            noise: whether the run is as much faster or slower than the prediction as measured ones differ.
            warm: whether the server has served anything before.
            limit_s: virtual seconds after which it is cut off.
            together: see `BenchmarkSimulation.run` and `SpeculativeScheduler`.
        """
        scale = _noise(seed, self.known.noise_share) if noise else 1.0
        time = StepTime(self.config, self.known, self._eight_bit, scale, warm)
        scheduler = self._scheduler(seed, together)
        trace = BenchmarkSimulation(self.config, self.known, scheduler, time, client).run(limit_s, together)
        seen = np.array(trace.seen_s)
        return SimulatedRun(list(client.jobs), seen, trace, scheduler.counts, time.seconds, time.flops, time.bytes)

    def _scheduler(self, seed: int, together: bool) -> Scheduler:
        config, blocks = self.config, self.budget.blocks
        if config.speculation is None:
            return Scheduler(config, blocks)
        text = AnswerText(config.speculation, config.temperature, self.known, seed)
        return SpeculativeScheduler(config, blocks, text, together)


def _noise(seed: int, share: float) -> float:
    return float(np.exp(share * np.random.default_rng([seed, 0x51]).standard_normal()))


def _require_output(config: ServeConfig) -> None:
    """Refuse what FlashAttention 3 cannot write: vLLM gives it queries in FP8 beside an FP8 cache.

    From Hopper's `flash_api.cpp`; three measured studies (docs/reports/2026-11-24-h200-qwen-7b.md) show it.
    """
    kernels = kernels_named(config.backend, config.card)
    if kernels == "FLASH_ATTN_3" and config.kv_element_bytes == 1.0 and config.dtype == "float16":
        raise StartFailed(
            "RuntimeError: For FP16/BF16 input, output must have the same dtype as inputs. For FP8 input, output must "
            "have dtype BF16",
            FailureKind.ENGINE_CRASH,
        )
