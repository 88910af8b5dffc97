"""The numbers of a configuration that limit lengths, batches and memory, and how a server is split over GPUs.

A server needs tensor × pipeline × data GPUs. With tensor parallelism t, pipeline parallelism p, n query heads, k
key-value heads, intermediate size f, vocabulary V and L layers, the most loaded GPU holds (vLLM's
`model_executor/layers` and `distributed/utils.py`):

    n / t heads,  max(1, k / t) key-value heads,  f / t of the MLP,  V / t of the embedding and of the head
    L / p layers of each kind, rounded up; norms are whole on every GPU

With data parallelism d, each copy has its own queue and KV cache, and the experts of all copies are one set: t d GPUs
divide each expert, or with expert parallelism their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from search_spaces import ModelShape
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp
from tuner.engines.simulator.flags import vllm_default
from tuner.engines.simulator.precision import ConfigRefused, Site

_BLOCK_SIZES_BEFORE_0_25 = (1, 8, 16, 32, 64, 128, 256)
_DEFAULT_BLOCK_SIZE = 16
AUTO_LENGTH = -1
"""The value of `--max-model-len` for the longest context that the KV cache holds."""


def at_least_one(name: str, value: int | None, refused: type[ConfigRefused] = ConfigRefused) -> int:
    """Return a value of at least 1; 1 if it is not given."""
    if value is not None and value < 1:
        raise refused(f"{name}: Input should be greater than or equal to 1")
    return value or 1


def find_max_model_len(
    given: int | None, model: ModelShape, version: tuple[int, ...], environment: Mapping[str, str]
) -> int:
    """Return the tokens of the longest request, for the value of `--max-model-len`.

    `auto` (-1) starts at the model's longest context, which the server then lowers to what its KV cache holds.
    """
    derived = model.longest_context(version)
    if given is None or given == AUTO_LENGTH:
        return model.default_context or derived
    if given > derived and not _allows_more(environment):
        raise ConfigRefused(
            f"User-specified max_model_len ({given}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived} or model_max_length=None in model's config.json). To allow overriding "
            "this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    if given < AUTO_LENGTH:
        raise ConfigRefused("max_model_len: Input should be greater than or equal to -1")
    return at_least_one("max_model_len", given)


def _allows_more(environment: Mapping[str, str]) -> bool:
    return environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true")


def find_batch_limits(flags: Mapping[str, Any], site: Site, length: int) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens (engine/arg_utils.py 0.15:1808, 0.25:2397, 0.32:2894)."""
    chunked = flags["enable_chunked_prefill"] is not False
    double = 2 if flags["performance_mode"] == "throughput" and site.version >= (0, 19) else 1
    tokens, seqs = flags["max_num_batched_tokens"], flags["max_num_seqs"]
    if tokens is None:
        tokens = double * int(vllm_default("max_num_batched_tokens", site.card, site.version))
        tokens = tokens if chunked else max(length, tokens)
        if seqs is not None:
            tokens = max(seqs, min(tokens, seqs * length))
    if seqs is None:
        seqs = min(double * int(vllm_default("max_num_seqs", site.card, site.version)), tokens)
    at_least_one("max_num_seqs", seqs)
    if not chunked and tokens < length:
        raise ConfigRefused(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits the "
            "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
            "max_num_batched_tokens or decrease max_model_len."
        )
    if tokens < seqs:
        raise ConfigRefused(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
        )
    active = flags["max_num_active_seqs"]
    if active is not None and active > seqs:
        raise ConfigRefused(f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs}).")
    return seqs, tokens


def find_block_size(given: int | None, version: tuple[int, ...]) -> int:
    """Return the tokens of a KV cache block, for the value of `--block-size`."""
    if given is None:
        return _DEFAULT_BLOCK_SIZE
    if version < (0, 25) and given not in _BLOCK_SIZES_BEFORE_0_25:
        raise ConfigRefused(f"argument --block-size: invalid choice: {given} (choose from {_BLOCK_SIZES_BEFORE_0_25})")
    if given < 1 or given % 16:
        raise ConfigRefused(
            f"No common block size for {given}."
            if version < (0, 25)
            else f"No valid attention backend found for cuda with AttentionSelectorConfig(block_size={given})."
        )
    return given


def find_memory_utilization(given: float | None, site: Site) -> float:
    """Return the share of the card's memory that a server may use, for `--gpu-memory-utilization`."""
    share = vllm_default("gpu_memory_utilization", site.card, site.version) if given is None else given
    if not 0 < share <= 1:
        raise ConfigRefused("gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1")
    return share


_VOCABULARY_PADDING = 64
"""vLLM pads a vocabulary to a multiple of so many tokens before it splits it (`vocab_parallel_embedding.py`)."""

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class ParallelismRefused(ConfigRefused):
    """A server that cannot be split so, or not over the GPUs of the machine, whatever its other flags are."""


class TooFewGpus(ParallelismRefused):
    """Servers that need more GPUs than the machine has.

    Attributes:
        needed: the GPUs that they need.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Parallelism:
    """The degrees of parallelism of one server.

    Attributes:
        tensor: GPUs that share each layer.
        pipeline: groups of layers, each on its own GPUs.
        data: copies of the whole model, each with its own queue and KV cache.
        whole_experts: whether each GPU has whole experts (expert parallelism), not a part of each.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    whole_experts: bool = False

    @property
    def replica_gpus(self) -> int:
        """The GPUs of one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def gpus(self) -> int:
        """The GPUs of the server."""
        return self.replica_gpus * self.data


def find_parallelism(flags: Mapping[str, Any], model: ModelShape, gpus: int) -> Parallelism:
    """Return the parallelism of a command line.

    Args:
        flags: the command line, from `parse_flags`.
        model: the shape of the model.
        gpus: of the machine.

    Raises:
        ParallelismRefused: with vLLM's message if it has one, for a degree below 1, heads that cannot be divided, fewer
            layers than groups of layers, expert parallelism without experts, and more GPUs than the machine has.
    """
    tensor, pipeline, data = (at_least_one(name, flags[name], ParallelismRefused) for name in _DEGREES)
    if model.heads % tensor:
        raise ParallelismRefused(
            f"Total number of attention heads ({model.heads}) must be divisible by tensor parallel size ({tensor})."
        )
    if model.layers < pipeline:
        raise ParallelismRefused(
            f"pipeline_parallel_size ({pipeline}) is larger than the number of layers ({model.layers}); lower it"
        )
    if flags["enable_expert_parallel"] and not model.is_mixture_of_experts:
        raise ParallelismRefused(
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
        )
    parallel = Parallelism(tensor, pipeline, data, bool(flags["enable_expert_parallel"]) and tensor * data > 1)
    if parallel.replica_gpus > gpus:
        raise TooFewGpus(
            f"World size ({parallel.replica_gpus}) is larger than the number of available GPUs ({gpus}) in this node",
            parallel.gpus,
        )
    if parallel.gpus > gpus:
        raise TooFewGpus(
            f"DP adjusted local rank {gpus} is out of bounds for {gpus} devices ({data} copies of the model need "
            f"{parallel.gpus} GPUs)",
            parallel.gpus,
        )
    return parallel


def shard_of(model: ModelShape, parallel: Parallelism) -> ModelShape:
    """Return the shape of the most loaded GPU's part of a model; the model itself on one GPU."""
    if parallel.replica_gpus == 1 and (parallel.data == 1 or not model.is_mixture_of_experts):
        return model
    tensor = parallel.tensor
    padded = -(-model.vocab // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    return replace(
        model,
        layers=-(-model.layers // parallel.pipeline),
        intermediate=-(-model.intermediate // tensor),
        heads=model.heads // tensor,
        kv_heads=max(1, model.kv_heads // tensor),
        vocab=-(-padded // tensor) if tensor > 1 else model.vocab,
        decoder=tuple(_part_of(group, parallel) for group in model.groups),
        # the first group of layers has the embedding and the last one the head, so that no GPU has both
        tied=model.tied or parallel.pipeline > 1,
    )


def _part_of(group: LayerGroup, parallel: Parallelism) -> LayerGroup:
    """Return one GPU's part of equal layers."""
    part = group.of_tensor(parallel.tensor)
    mlp = part.mlp
    if isinstance(group.mlp, Experts) and isinstance(mlp, Experts):
        gpus = parallel.tensor * parallel.data
        routed = group.mlp.of_experts(gpus) if parallel.whole_experts else group.mlp.of_tensor(gpus)
        mlp = replace(routed, shared=mlp.shared)
    return LayerGroup(-(-group.count // parallel.pipeline), part.mixer, mlp)


def uneven_part(model: ModelShape, parallel: Parallelism) -> str | None:
    """Return the line with which vLLM's workers end if a part of the model cannot be split evenly; None if all can."""
    tensor = parallel.tensor
    for group in model.groups:
        mixer, mlp = group.mixer, group.mlp
        if isinstance(mixer, Attention | LatentAttention) and mixer.heads % tensor:
            return f"AssertionError: {mixer.heads} is not divisible by {tensor}"
        if isinstance(mixer, Attention) and max(mixer.kv_heads, tensor) % min(mixer.kv_heads, tensor):
            return f"AssertionError: of {mixer.kv_heads} key-value heads and {tensor} GPUs, neither divides the other"
        if isinstance(mlp, Mlp) and mlp.intermediate % tensor:
            return f"AssertionError: {mlp.intermediate} is not divisible by {tensor}"
        gpus = tensor * parallel.data
        if isinstance(mlp, Experts) and not parallel.whole_experts and mlp.intermediate % gpus:
            return f"AssertionError: {mlp.intermediate} is not divisible by {gpus}"
    return None
