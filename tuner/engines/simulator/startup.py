"""How long a server takes from the command to its first health check."""

from __future__ import annotations

from collections.abc import Hashable

from tuner.engines.simulator.config import ServeConfig
from tuner.engines.simulator.memory import Budget
from tuner.engines.simulator.parameters import Parameters


def startup_s(config: ServeConfig, budget: Budget, known: Parameters, compiled_before: bool) -> float:
    """Return the seconds: imports and processes, weights, compilation and graphs; the host's speed counts for all."""
    compiling = 0.0
    if config.graphs.compiled:
        compiling = known.compile_warm_s if compiled_before else known.compile_cold_s
    host = known.start_s + compiling + known.capture_s * config.graphs.captured
    return host / (config.card.host_speed or 1.0) + budget.weights_gib / known.load_gibs


def compile_key(config: ServeConfig) -> Hashable:
    """Return what a compilation is kept under: servers that agree in it share one (`VllmConfig.compute_hash`)."""
    return (
        *(config.version, config.model, config.dtype, config.quantization, config.kv_element_bytes),
        *(config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens, config.block_size),
        *(config.graphs, config.backend, config.speculation, config.async_scheduling),
    )
