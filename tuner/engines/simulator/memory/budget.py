"""What fits on the card: weights, activations, graphs, and what is left for the KV cache; vLLM's words where not."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.units import GIB
from storage.records import FailureKind
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.weights import Weights
from tuner.engines.simulator.parameters import Parameters

_LOGIT_BYTES = 4
_ACTIVATION_BYTES = 2


class StartFailed(ValueError):
    """The server would start and die; the message is the line that vLLM logs, `kind` what it is."""

    def __init__(self, message: str, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class MemoryBudget:
    """Memory in GiB. `tokens` is what the KV cache holds, in `blocks` of the configured size."""

    weights_gib: float
    activations_gib: float
    graphs_gib: float
    kv_gib: float
    blocks: int
    tokens: int


def find_budget(config: ServeConfig, weights: Weights, known: Parameters) -> MemoryBudget:
    """Return where a card's memory goes.

    share × card - weights - runtime - activations = KV cache, as vLLM's profiling run finds it; graphs are captured
    afterwards, and from 0.25 on their estimate is taken off before. Activations are the larger of a step's MLP,
    tokens × (2 × intermediate + hidden) × 2 bytes, and its logits, sequences × vocabulary × 4 bytes, times a factor.

    Raises:
        StartFailed: when the weights do not fit, nothing is left for the cache, or less than one longest request needs.
    """
    model, total = config.model, config.card.memory_gib or 0.0
    resident = weights.resident_bytes / GIB
    mlp = config.max_num_batched_tokens * (2 * model.intermediate + model.hidden) * _ACTIVATION_BYTES
    logits = min(config.max_num_seqs, config.max_num_batched_tokens) * model.vocab * _LOGIT_BYTES
    activations = known.activation_factor * max(mlp, logits) / GIB
    graphs = config.graphs.captured * model.layers * known.graph_mib_per_layer / 1024
    fixed = resident + known.runtime_gib + activations
    if resident + known.runtime_gib > total:
        raise _out_of_memory(config.card.name, resident, total)
    if config.kv_cache_bytes is not None:
        left = config.kv_cache_bytes / GIB
        if fixed + left > total:
            raise _out_of_memory(config.card.name, left, total)
    else:
        left = config.gpu_memory_utilization * total - fixed - (graphs if config.version >= (0, 25) else 0.0)
    block_bytes = config.block_size * model.kv_bytes_per_token(1) * config.kv_element_bytes
    blocks = int(left * GIB / block_bytes)
    _require_cache(config, left, blocks)
    if fixed + left + graphs > total:
        raise _out_of_memory(config.card.name, graphs, total)
    return MemoryBudget(resident, activations, graphs, left, blocks, blocks * config.block_size)


def _require_cache(config: ServeConfig, left_gib: float, blocks: int) -> None:
    if left_gib <= 0 or blocks <= 0:
        raise StartFailed(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )
    needed = -(-config.max_model_len // config.block_size)
    if needed > blocks:
        gib = needed * left_gib / blocks
        raise StartFailed(
            f"ValueError: To serve at least one request with the model's max seq len ({config.max_model_len}), "
            f"({gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({left_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{blocks * config.block_size}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )


def _out_of_memory(card: str, wanted_gib: float, total_gib: float) -> StartFailed:
    return StartFailed(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_gib:.2f} GiB. GPU 0 ({card}) has a "
        f"total capacity of {total_gib:.2f} GiB.",
        FailureKind.OUT_OF_MEMORY_STARTUP,
    )
