"""How long a server takes from the command to its first health check: docs/reports/data/h200-starts.csv."""

from __future__ import annotations

from collections.abc import Hashable

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.budget import MemoryBudget
from tuner.engines.simulator.parameters import Parameters


class CompileCache:
    """What the servers of one machine have compiled: a server finds all that it needs, only the kernels, or nothing."""

    def __init__(self) -> None:
        self._found: set[Hashable] = set()

    def seconds(self, config: ServeConfig, known: Parameters) -> float:
        """Return the seconds that a server compiles, on a host of speed 1."""
        if not config.graphs.compiled:
            return 0.0
        if compile_key(config) in self._found:
            return known.compile_warm_s
        return known.compile_new_s if kernel_key(config) in self._found else known.compile_cold_s

    def add(self, config: ServeConfig) -> None:
        """Keep what a server compiled."""
        self._found |= {compile_key(config), kernel_key(config)}


def startup_s(config: ServeConfig, budget: MemoryBudget, known: Parameters, compiling_s: float, forked: bool) -> float:
    """Return the seconds: imports and processes, weights, compilation and graphs; the host's speed counts for all."""
    host = processes_s(known, forked) + compiling_s + known.capture_s * config.graphs.captured
    return host / (config.card.host_speed or 1.0) + budget.weights_gib / known.load_gibs


def processes_s(known: Parameters, forked: bool) -> float:
    """Return the seconds of a start before the model and after it, on a host of speed 1.

    A forked server imports nothing, nor do its engine and further API servers (`tuner.engines.vllm.warm_start`).
    """
    return known.start_s - (2 * known.import_s if forked else 0.0)


def compile_key(config: ServeConfig) -> Hashable:
    """Return what a compilation is kept under: servers that agree in it share one (`VllmConfig.compute_hash`)."""
    return (
        *kernel_key(config),
        *(config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens, config.block_size),
        *(config.graphs, config.speculation, config.async_scheduling),
    )


def kernel_key(config: ServeConfig) -> tuple[Hashable, ...]:
    """Return what decides which kernels are compiled: servers that agree in it share Triton's and Inductor's caches."""
    return (config.version, config.model, config.dtype, config.quantization, config.kv_element_bytes, config.backend)
