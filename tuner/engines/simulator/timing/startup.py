"""The time from a server's launch to its first passed health check.

    start-up = (processes + compilation + capture_s × graphs) / host speed + weights / load_gibs

`processes` is start_s, less two imports (2 × import_s) if the server is forked from a process that has vLLM imported.
The parts were measured on H200s with one model (docs/reports/2026-11-22-server-starts.md).
"""

from __future__ import annotations

from collections.abc import Hashable

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.budget import MemoryBudget
from tuner.engines.simulator.parameters import Parameters


class CompileCache:
    """The compilations of the servers of one host so far.

    A server finds its whole compilation in the cache, only its kernels, or nothing.
    """

    def __init__(self) -> None:
        self._compiled: set[Hashable] = set()

    def seconds(self, config: ServeConfig, parameters: Parameters) -> float:
        """Return the seconds that a server compiles, on a host of speed 1."""
        if not config.graphs.compiled:
            return 0.0
        if compile_key(config) in self._compiled:
            return parameters.compile_warm_s
        return parameters.compile_new_s if kernel_key(config) in self._compiled else parameters.compile_cold_s

    def add(self, config: ServeConfig) -> None:
        """Add the compilation of a server."""
        self._compiled |= {compile_key(config), kernel_key(config)}


def startup_s(
    config: ServeConfig, budget: MemoryBudget, parameters: Parameters, compile_s: float, forked: bool
) -> float:
    """Return the seconds of a start-up; the module's docstring has the equation.

    Args:
        config: the server's configuration.
        budget: the division of the card's memory, for the size of the weights.
        parameters: the simulator's parameters.
        compile_s: seconds of compilation, from `CompileCache`.
        forked: whether the server is forked from a process that has vLLM imported.
    """
    host = processes_s(parameters, forked) + compile_s + parameters.capture_s * config.graphs.captured
    return host / (config.card.host_speed or 1.0) + budget.weights_gib / parameters.load_gibs


def processes_s(parameters: Parameters, forked: bool) -> float:
    """Return the seconds of a start-up without model loading, compilation and capture, on a host of speed 1.

    A forked server imports nothing, and neither do its engine and its further API servers
    (`tuner.engines.vllm.warm_start`).
    """
    return parameters.start_s - (2 * parameters.import_s if forked else 0.0)


def compile_key(config: ServeConfig) -> Hashable:
    """Return the key of a compilation: servers with equal keys share it (vLLM's `VllmConfig.compute_hash`)."""
    return (
        *kernel_key(config),
        *(config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens, config.block_size),
        *(config.graphs, config.speculation, config.async_scheduling),
    )


def kernel_key(config: ServeConfig) -> tuple[Hashable, ...]:
    """Return the key of the compiled kernels: servers with equal keys share Triton's and Inductor's caches."""
    formats = (config.dtype, config.quantization, config.kv_element_bytes, config.backend)
    return (config.version, config.model, config.parallel, *formats)
