"""The division of a card's memory: the weights, the KV cache, and vLLM's errors without room.

The layers' matrices are those of `search_spaces.catalogue.layers`. A step reads the matrices that every token passes,
and of the experts those that its tokens choose.

As in vLLM's profiling run (`v1/worker/gpu_worker.py`), the KV cache gets what the rest leaves, in GiB:

    KV cache = gpu_memory_utilization × card - weights - runtime - activations - graphs (graphs from vLLM 0.25 on)

Activations are the larger of a step's widest MLP and its logits, times a fitted factor, and the inputs and outputs of
the experts of each token, which vLLM keeps aside:

    activations = activation_factor × max(MLP, logits) + experts
    MLP = max_num_batched_tokens × (2 × intermediate + hidden) × 2 bytes
    logits = max_num_seqs × vocabulary × 4 bytes
    experts = max_num_batched_tokens × chosen × (matrices × intermediate + hidden) × 2 bytes

Weights that make drafts are added to the model's. On several GPUs, all of this is the most loaded GPU's part
(`ServeConfig.shard`), whose KV cache decides for all, as in vLLM. Logits are whole, because every GPU gathers them.
`communication_gib` is added for the buffers of the collectives.

Each of n servers that share a GPU counts a card of 1/n of its memory: `gpu_memory_utilization` is 1/n of the given one.

CUDA graphs take `graph_mib_per_layer` for each layer of each captured graph. They are captured after the KV cache is
allocated; before 0.25 vLLM does not set memory aside for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from records.trials import FailureKind
from search_spaces import HardwareProfile, ModelShape
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from search_spaces.catalogue.models import PartBits
from search_spaces.units import GIB
from tuner.engines.simulator.kv_cache import KvCache
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.precision import EXPERTS_ONLY, NVFP4, ConfigRefused
from tuner.engines.simulator.serve_config import ServeConfig

_SCALES_FACTOR = 1.04
"""Bytes of a quantized matrix with its scales (16 bits for each group of 128 four-bit weights), over those without."""
_GEMM_METHODS = ("awq", "gptq", "bitsandbytes")


@dataclass(frozen=True)
class ExpertWeights:
    """The experts of equal layers on a card.

    Attributes:
        layers: of these experts.
        mlp: the experts of a layer; on one of several GPUs, its part.
        of_one: weights of an expert's matrices.
        bytes_of_one: bytes of an expert's matrices.
    """

    layers: int
    mlp: Experts
    of_one: int
    bytes_of_one: float

    @property
    def resident_bytes(self) -> float:
        """Bytes of all of them."""
        return self.layers * self.mlp.count * self.bytes_of_one


@dataclass(frozen=True)
class Weights:
    """A model's matrices on a card.

    Attributes:
        linear: parameters of the layers' matrices that every token passes.
        linear_bytes: bytes of these matrices, which each step reads once.
        experts: of each kind of layer with experts.
        head: parameters of the matrix from the hidden state to the vocabulary.
        head_bytes: bytes of that matrix, which has 16 bits unless the checkpoint quantizes it.
        resident_bytes: bytes of all weights in memory.
        arithmetic: number format of the products, a key of the card's `tflops`.
        kernels: `plain`; `native` (8 bits on both sides); `blocks` (the same with scales by blocks, slowly);
            `marlin` (the kernel unpacks the weights); `gemm` (weights are unpacked before a plain product).
        expert_kernels, expert_arithmetic: the same of the experts' products; `unpacked` kernels write all experts of a
            layer in 16 bits first, those that no token chose as well (vLLM's `BitsAndBytesMoEMethod`).
    """

    linear: int
    linear_bytes: float
    experts: tuple[ExpertWeights, ...]
    head: int
    head_bytes: float
    resident_bytes: float
    arithmetic: str
    kernels: str
    expert_arithmetic: str
    expert_kernels: str


def find_weights(config: ServeConfig, model: ModelShape, marlin_input: str | None) -> Weights:
    """Return the weights of a model, or of a part of one, in the formats of a configuration.

    `marlin_input` is the 8-bit format of activations in Marlin's kernels (`int8`, `fp8`); None for 16 bits.
    """
    card, dtype, quantization = config.card, config.dtype, config.quantization
    parts = _part_bits(model, quantization, config.weight_bits)
    experts = tuple(
        ExpertWeights(group.count, group.mlp, one, one * parts.experts / 8)
        for group in model.groups
        if isinstance(group.mlp, Experts)
        for one in (group.mlp.of_one(model.hidden),)
    )
    expert_bytes = sum(each.resident_bytes for each in experts)
    linear_bytes = model.matrix_bytes(parts) - expert_bytes
    kernels, arithmetic = _kernels(card, dtype, None if quantization in EXPERTS_ONLY else quantization, marlin_input)
    if kernels == "native" and quantization == "fp8_per_block" and not config.fast_blocks:
        kernels = "blocks"
    expert_kernels, expert_arithmetic = kernels, arithmetic
    if kernels == "blocks" and (card.compute_capability or (0, 0)) < (9, 0) and config.version >= _MARLIN_BLOCKS:
        kernels, arithmetic = "marlin", dtype
    if quantization in EXPERTS_ONLY:
        expert_kernels, expert_arithmetic = "marlin", dtype
    elif quantization == "bitsandbytes":
        expert_kernels = "unpacked"
    head = model.vocab * model.hidden
    # decodes read latent attention's absorbed matrices in 16 bits: a copy of quantized ones, else the same memory
    copies = sum(
        group.count * group.mixer.absorbed for group in model.groups if isinstance(group.mixer, LatentAttention)
    )
    beside = 2 * (model.weights_beside + model.rotations) - model.head_savings(parts)
    return Weights(
        linear=model.linear_weights - sum(each.layers * each.mlp.count * each.of_one for each in experts),
        linear_bytes=linear_bytes,
        experts=experts,
        head=head,
        head_bytes=head * parts.head / 8,
        resident_bytes=linear_bytes + expert_bytes + beside + (2 * copies if quantization else 0),
        arithmetic=arithmetic,
        kernels=kernels,
        expert_arithmetic=expert_arithmetic,
        expert_kernels=expert_kernels,
    )


def _part_bits(model: ModelShape, quantization: str | None, bits: int) -> PartBits:
    if quantization is None:
        return PartBits()
    if model.quantization is not None and model.bits is not None:
        return model.bits
    # FP8 has one scale for a matrix, a row or a block of 128 × 128 weights, too few bytes to count
    own = bits * (1.0 if quantization.startswith("fp8") else _SCALES_FACTOR)
    return PartBits(own, own, own, own, own)


def activation_elements(model: ModelShape) -> int:
    """Return the numbers that the matrix products of one token read and write besides weights, over all layers."""
    return sum(group.count * _moved(group, model.hidden) for group in model.groups)


def _moved(group: LayerGroup, hidden: int) -> int:
    """Return the numbers that the products of one token read and write in one layer."""
    mixer, mlp = group.mixer, group.mlp
    moved = 0
    if isinstance(mixer, Attention):
        moved += 2 * hidden + 2 * mixer.heads * mixer.head_dim + mixer.cached
    elif isinstance(mixer, LatentAttention):
        queries = mixer.heads * (mixer.plain_dim + mixer.rotated_dim)
        moved += 2 * hidden + queries + mixer.heads * mixer.value_dim + 2 * mixer.rank + mixer.rotated_dim
    elif isinstance(mixer, Recurrent):
        moved += 2 * hidden + mixer.matrices // hidden
    if isinstance(mlp, Experts):
        # with expert parallelism, vLLM's fused_moe has a row for each chosen expert, wherever that is
        rows = mlp.chosen + mlp.elsewhere
        moved += int(rows * (2 * hidden + mlp.matrices * mlp.intermediate)) + hidden + mlp.matrices * mlp.shared
    elif mlp is not None:
        moved += 2 * hidden + mlp.matrices * mlp.intermediate
    return moved


def _kernels(card: HardwareProfile, dtype: str, quantization: str | None, marlin_input: str | None) -> tuple[str, str]:
    """Return the kernels of the products and the number format that they compute in."""
    if quantization is None:
        return "plain", dtype
    if quantization == NVFP4:
        # the card's 4-bit arithmetic is not described: that of 8 bits is a lower bound of Blackwell's
        return ("native", "fp8") if (card.compute_capability or (0, 0)) >= (10, 0) else ("marlin", dtype)
    if quantization.startswith("fp8"):
        return ("native", "fp8") if "fp8" in card.tflops else ("marlin", "float16")
    if quantization in _GEMM_METHODS and not (marlin_input and quantization != "bitsandbytes"):
        return "gemm", "float16"
    if marlin_input and marlin_input in card.tflops:
        return "marlin", marlin_input
    return "marlin", dtype


_MARLIN_BLOCKS = (0, 29)
"""The first version that may have Marlin before Triton for FP8 by blocks on Ada: 0.28 has not, and 0.31 has."""
_LOGIT_BYTES = 4
_FIRST_RUNNER_LOGITS = 3.25
"""Logits, probabilities and noise of the first runner's sampler, over the logits, as KV caches on an H200 show."""
_ACTIVATION_BYTES = 2


class StartFailed(ValueError):
    """A server that starts and then ends with an error; the message is the line that vLLM logs."""

    def __init__(self, message: str, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class MemoryBudget:
    """The division of a card's memory in GiB; the KV cache has `blocks` blocks.

    On several GPUs, GiB are those of the most loaded GPU, and tokens and blocks those of one copy of the model.

    Attributes:
        tokens: the size of the KV cache as vLLM logs it.
        longest: tokens of the longest request, up to `max_model_len`, that it holds.
    """

    weights_gib: float
    activations_gib: float
    graphs_gib: float
    kv_gib: float
    blocks: int
    tokens: int
    longest: int


def find_budget(config: ServeConfig, weights: Weights, parameters: Parameters) -> MemoryBudget:
    """Return the division of a card's memory; the module's docstring has the equations.

    Raises:
        StartFailed: if the weights do not fit, or the KV cache is too small for the longest request.
    """
    model, total = config.shard, (config.card.memory_gib or 0.0) / config.servers_per_gpu
    resident = (weights.resident_bytes + _draft_bytes(config)) / GIB
    activations = _activation_bytes(config, parameters) / GIB
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
    cache = _kv_cache(config)
    blocks = int(kv_cache * GIB / cache.block_bytes)
    longest = _require_kv_cache(config, cache, kv_cache, blocks)
    if fixed + kv_cache + graphs > total:
        raise _out_of_memory(config.card.name, graphs, total)
    tokens = cache.tokens(blocks, longest if config.fits_length else config.max_model_len)
    return MemoryBudget(resident, activations, graphs, kv_cache, blocks, tokens, longest)


def _draft_bytes(config: ServeConfig) -> float:
    """Return the bytes of the weights that make drafts; those beside the model's have its embedding and its head."""
    made, draft = config.speculation, config.draft
    if made is None or draft is None:
        return 0.0
    weights = find_weights(draft, draft.shard, None)
    if made.method == "draft_model":
        return weights.resident_bytes
    matrices = made.copies * (weights.linear_bytes + sum(each.resident_bytes for each in weights.experts))
    return matrices + (weights.head_bytes if draft.model.vocab != config.model.vocab else 0.0)


def _activation_bytes(config: ServeConfig, parameters: Parameters) -> float:
    """Return the most bytes of activations; the module's docstring has the equation."""
    model, tokens = config.shard, config.max_num_batched_tokens
    dense = [group.mlp for group in model.groups if isinstance(group.mlp, Mlp)]
    experts = [group.mlp for group in model.groups if isinstance(group.mlp, Experts)]
    widest = max((mlp.intermediate for mlp in dense), default=0)
    mlp = tokens * (2 * widest + model.hidden) * _ACTIVATION_BYTES
    copies = _FIRST_RUNNER_LOGITS / parameters.activation_factor if _has_first_runner(config) else 1.0
    logits = min(config.max_num_seqs, tokens) * config.model.vocab * _LOGIT_BYTES * copies
    routed = max((each.chosen * (each.matrices * each.intermediate + model.hidden) for each in experts), default=0.0)
    return parameters.activation_factor * max(mlp, logits) + tokens * config.parallel.data * routed * _ACTIVATION_BYTES


def _has_first_runner(config: ServeConfig) -> bool:
    """Return whether vLLM runs the model by its first model runner, whose sampler holds three copies of the logits.

    In 0.25, mixtures of experts and hybrids have it (`config/vllm.py`). A few classes are excepted there and not here:
    the KV cache of DeepSeek-V2-Lite is predicted 1.5 % too small.
    """
    special = config.model.is_mixture_of_experts or config.model.has_recurrent_layers
    return special and (0, 25) <= config.version < (0, 32)


def _kv_cache(config: ServeConfig) -> KvCache:
    try:
        return config.kv_cache
    except ConfigRefused as error:
        raise StartFailed(f"ValueError: {error}", FailureKind.INVALID_CONFIGURATION) from None


def _require_kv_cache(config: ServeConfig, cache: KvCache, kv_cache_gib: float, blocks: int) -> int:
    """Return the tokens of the longest request, up to `max_model_len`, that the KV cache holds.

    Raises:
        StartFailed: with vLLM's message, if it has no block, too few for one request of `max_model_len` tokens (with
            `fits_length`, of one token), or fewer than CUDA graphs of recurrent layers need.
    """
    longest = cache.longest(blocks, config.max_model_len) if blocks > 0 else 0
    if kv_cache_gib <= 0 or blocks <= 0 or (config.fits_length and not longest):
        raise StartFailed(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )
    if longest < config.max_model_len and not config.fits_length:
        needed_gib = cache.needed_blocks(config.max_model_len) * cache.block_bytes / GIB
        raise StartFailed(
            f"ValueError: To serve at least one request with the model's max seq len ({config.max_model_len}), "
            f"({needed_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({kv_cache_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{longest}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )
    graphs = config.graphs.full_decode or config.graphs.full_mixed
    if cache.rule.states and graphs and config.version >= (0, 25) and config.max_num_seqs > blocks:
        raise StartFailed(
            f"ValueError: max_num_seqs ({config.max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each "
            "decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
            f"max_num_seqs to at most {blocks} or increase gpu_memory_utilization.",
            FailureKind.KV_CACHE_TOO_SMALL,
        )
    return longest


def _out_of_memory(card: str, requested_gib: float, total_gib: float) -> StartFailed:
    return StartFailed(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested_gib:.2f} GiB. GPU 0 ({card}) has a "
        f"total capacity of {total_gib:.2f} GiB.",
        FailureKind.OUT_OF_MEMORY_STARTUP,
    )
