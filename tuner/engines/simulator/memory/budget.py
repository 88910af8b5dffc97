"""The division of a card's memory, and vLLM's errors if it does not suffice.

As in vLLM's profiling run (`v1/worker/gpu_worker.py`), the KV cache gets what the rest leaves, in GiB:

    KV cache = gpu_memory_utilization × card - weights - runtime - activations - graphs (graphs from vLLM 0.25 on)

Activations are the larger of a step's MLP and its logits, times a fitted factor:

    activations = activation_factor × max(MLP, logits)
    MLP = max_num_batched_tokens × (2 × intermediate + hidden) × 2 bytes
    logits = max_num_seqs × vocabulary × 4 bytes

On several GPUs, all of this is the most loaded GPU's part (`ServeConfig.shard`), whose KV cache decides for all, as in
vLLM. Logits are whole, because every GPU gathers them. `communication_gib` is added for the buffers of the collectives.

Each of n servers that share a GPU counts a card of 1/n of its memory: `gpu_memory_utilization` is 1/n of the given one.

CUDA graphs take `graph_mib_per_layer` for each layer of each captured graph. They are captured after the KV cache is
allocated; before 0.25 vLLM does not set memory aside for them.
"""

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
    """A server that starts and then ends with an error; the message is the line that vLLM logs."""

    def __init__(self, message: str, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class MemoryBudget:
    """The division of a card's memory in GiB; the KV cache holds `tokens` tokens in `blocks` blocks.

    On several GPUs, GiB are those of the most loaded GPU, and tokens and blocks those of one copy of the model.
    """

    weights_gib: float
    activations_gib: float
    graphs_gib: float
    kv_gib: float
    blocks: int
    tokens: int


def find_budget(config: ServeConfig, weights: Weights, parameters: Parameters) -> MemoryBudget:
    """Return the division of a card's memory; the module's docstring has the equations.

    Raises:
        StartFailed: if the weights do not fit, or the KV cache is too small for the longest request.
    """
    model, total = config.shard, (config.card.memory_gib or 0.0) / config.servers_per_gpu
    resident = weights.resident_bytes / GIB
    mlp = config.max_num_batched_tokens * (2 * model.intermediate + model.hidden) * _ACTIVATION_BYTES
    logits = min(config.max_num_seqs, config.max_num_batched_tokens) * config.model.vocab * _LOGIT_BYTES
    activations = parameters.activation_factor * max(mlp, logits) / GIB
    graphs = config.graphs.captured * model.layers * parameters.graph_mib_per_layer / 1024
    runtime = parameters.runtime_gib + (parameters.communication_gib if config.parallel.replica_gpus > 1 else 0.0)
    fixed = resident + runtime + activations
    if resident + runtime > total:
        raise _out_of_memory(config.card.name, resident, total)
    if config.kv_cache_bytes is not None:
        kv_cache = config.kv_cache_bytes / GIB
        if fixed + kv_cache > total:
            raise _out_of_memory(config.card.name, kv_cache, total)
    else:
        kv_cache = config.gpu_memory_utilization * total - fixed - (graphs if config.version >= (0, 25) else 0.0)
    block_bytes = config.block_size * model.kv_bytes_per_token(1) * config.kv_element_bytes
    blocks = int(kv_cache * GIB / block_bytes)
    _require_kv_cache(config, kv_cache, blocks)
    if fixed + kv_cache + graphs > total:
        raise _out_of_memory(config.card.name, graphs, total)
    return MemoryBudget(resident, activations, graphs, kv_cache, blocks, blocks * config.block_size)


def _require_kv_cache(config: ServeConfig, kv_cache_gib: float, blocks: int) -> None:
    """Fail with vLLM's message if the KV cache has no block, or too few for one request of `max_model_len` tokens.

    With `fits_length`, one block is enough.
    """
    if kv_cache_gib <= 0 or blocks <= 0:
        raise StartFailed(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )
    needed = -(-config.max_model_len // config.block_size)
    if needed > blocks and not config.fits_length:
        needed_gib = needed * kv_cache_gib / blocks
        raise StartFailed(
            f"ValueError: To serve at least one request with the model's max seq len ({config.max_model_len}), "
            f"({needed_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({kv_cache_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{blocks * config.block_size}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )


def _out_of_memory(card: str, requested_gib: float, total_gib: float) -> StartFailed:
    return StartFailed(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested_gib:.2f} GiB. GPU 0 ({card}) has a "
        f"total capacity of {total_gib:.2f} GiB.",
        FailureKind.OUT_OF_MEMORY_STARTUP,
    )
