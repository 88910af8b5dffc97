"""Resolves the command line of `vllm serve` to a configuration: vLLM's defaults, rules and refusals.

Covered are vLLM 0.15 to 0.32, one GPU, and dense models. The sources are vLLM's `engine/arg_utils.py` and `config/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces import HardwareProfile, ModelShape
from tuner.engines.simulator.config.cuda_graphs import CudaGraphs, find_cuda_graphs
from tuner.engines.simulator.config.flags import FlagError, UnknownFlagError, parse_flags
from tuner.engines.simulator.config.precision import (
    ConfigRefused,
    NotSimulated,
    attention_kernels,
    find_backend,
    find_dtype,
    find_kv_element_bytes,
    find_quantization,
    has_fast_blocks,
)
from tuner.engines.simulator.config.speculative_config import Speculation, find_speculation
from tuner.engines.simulator.config.vllm_defaults import vllm_default

_BLOCK_SIZES_BEFORE_0_25 = (1, 8, 16, 32, 64, 128, 256)
_DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class ServeConfig:
    """The configuration of one server. Lengths and sizes are in tokens unless stated otherwise.

    Attributes:
        version: vLLM's version.
        model: the shape of the model.
        card: the GPU.
        dtype: 16-bit format of weights and arithmetic.
        quantization: quantization method of the weights; None for 16-bit weights.
        weight_bits: stored bits of a weight in a linear layer.
        fast_blocks: whether matrices quantized to FP8 by blocks are multiplied as fast as those with one scale.
        kv_element_bytes: bytes of one number in the KV cache.
        kv_head_scales: whether the KV cache has a scale for each token and head.
        max_model_len: tokens of the longest request, prompt and answer together.
        max_num_seqs: sequences in a step at most.
        max_num_batched_tokens: tokens in a step at most.
        block_size: tokens of a KV cache block.
        gpu_memory_utilization: share of the card's memory that the server may use.
        kv_cache_bytes: size of the KV cache; None to use all memory that is left.
        prefix_caching: whether the KV cache of shared prefixes is reused.
        chunked_prefill: whether a prompt may be split over several steps.
        long_prefill_threshold: tokens of a prompt in one step at most; 0 for no limit.
        reserve_full: whether a request is admitted only if its whole prompt fits.
        watermark: share of the blocks that admission leaves free.
        priority_scheduling: whether requests of a lower priority are admitted first.
        async_scheduling: whether the host plans a step while the step before runs.
        max_active: sequences that run at once at most; None for no other limit than `max_num_seqs`.
        max_queued_requests: requests that wait at most; None for no limit.
        max_queued_tokens: tokens of waiting requests at most; None for no limit.
        stream_interval: tokens that are sent to a client together.
        api_servers: number of API server processes.
        backend: attention backend.
        graphs: CUDA graphs.
        speculation: speculative decoding; None without.
        temperature: sampling temperature of a request that states none.
    """

    version: tuple[int, ...]
    model: ModelShape
    card: HardwareProfile
    dtype: str
    quantization: str | None
    weight_bits: int
    fast_blocks: bool
    kv_element_bytes: float
    kv_head_scales: bool
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    prefix_caching: bool
    chunked_prefill: bool
    long_prefill_threshold: int
    reserve_full: bool
    watermark: float
    priority_scheduling: bool
    async_scheduling: bool
    max_active: int | None
    max_queued_requests: int | None
    max_queued_tokens: int | None
    stream_interval: int
    api_servers: int
    backend: str
    graphs: CudaGraphs
    speculation: Speculation | None
    temperature: float


def resolve_serve_config(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
) -> ServeConfig:
    """Return the configuration of a command line of `vllm serve`.

    Args:
        arguments: the arguments after `vllm serve MODEL`.
        environment: environment variables of the server.
        model: the shape of the model.
        card: the GPU.
        version: the simulated version of vLLM.
        packages: packages installed beside vLLM (`arctic_inference`, `flashinfer`).

    Raises:
        ConfigRefused: with vLLM's message, for a configuration that vLLM refuses.
    """
    try:
        return _resolve(_checked_flags(arguments, version), environment, model, card, version, packages)
    except UnknownFlagError as error:
        raise NotSimulated(str(error)) from None
    except FlagError as error:
        raise ConfigRefused(f"vllm serve: error: {error}") from None
    except ConfigRefused:
        raise
    except ValueError as error:
        raise ConfigRefused(str(error)) from None


def refusal_of_every_trial(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
) -> str | None:
    """Return why no configuration with these arguments can be simulated; None if some may be.

    vLLM's other refusals do not count: values of the search space may avoid them. See `resolve_serve_config` for the
    arguments.
    """
    try:
        _resolve(_checked_flags(arguments, version), environment, model, card, version, packages)
    except (FlagError, NotSimulated) as error:
        return str(error)
    except ValueError:
        return None
    return None


def _resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
) -> ServeConfig:
    speculation = find_speculation(flags["speculative_config"], card, version, packages)
    length = _max_model_len(flags["max_model_len"], model, environment)
    seqs, tokens = _batch_limits(flags, card, version, length)
    dtype = find_dtype(flags["dtype"], model, card)
    quantization, weight_bits = find_quantization(flags["quantization"], model, card, version, dtype)
    kv_dtype, kv_element_bytes = _kv_cache_format(flags, card, version)
    backend = find_backend(flags["attention_backend"], card, version, kv_dtype, packages)
    return ServeConfig(
        version=version,
        model=model,
        card=card,
        dtype=dtype,
        quantization=quantization,
        weight_bits=weight_bits,
        fast_blocks=has_fast_blocks(card, dtype, packages),
        kv_element_bytes=kv_element_bytes,
        kv_head_scales=kv_dtype.endswith("_per_token_head"),
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        block_size=_block_size(flags["block_size"], version),
        gpu_memory_utilization=_memory_utilization(flags["gpu_memory_utilization"], card, version),
        kv_cache_bytes=flags["kv_cache_memory_bytes"],
        prefix_caching=flags["enable_prefix_caching"] is not False,
        chunked_prefill=flags["enable_chunked_prefill"] is not False,
        long_prefill_threshold=flags["long_prefill_token_threshold"] or 0,
        reserve_full=version >= (0, 25) and flags["scheduler_reserve_full_isl"] is not False,
        watermark=flags["watermark"] or 0.0,
        priority_scheduling=flags["scheduling_policy"] == "priority",
        async_scheduling=_async_scheduling(flags["async_scheduling"], speculation, version),
        max_active=flags["max_num_active_seqs"],
        max_queued_requests=flags["max_num_queued_reqs"],
        max_queued_tokens=flags["max_num_queued_tokens"],
        stream_interval=_at_least_one("stream_interval", flags["stream_interval"]),
        api_servers=_at_least_one("api_server_count", flags["api_server_count"]),
        backend=backend,
        graphs=find_cuda_graphs(flags, version, attention_kernels(backend, card), seqs, tokens, _drafts(speculation)),
        speculation=speculation,
        temperature=float((flags["override_generation_config"] or {}).get("temperature", 1.0)),
    )


def _checked_flags(arguments: Sequence[str], version: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the parsed flags, if the simulator supports them."""
    flags = parse_flags(arguments)
    if flags["performance_mode"] and version < (0, 19):
        raise ConfigRefused("unrecognized arguments: --performance-mode")
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if flags[name] not in (None, 1):
            flag = "--" + name.replace("_", "-")
            raise NotSimulated(f"{flag} {flags[name]}: one GPU is simulated; measure that with the engine vllm")
    if flags["cpu_offload_gb"]:
        raise NotSimulated("--cpu-offload-gb is not simulated; measure that with the engine vllm")
    return flags


def _kv_cache_format(flags: Mapping[str, Any], card: HardwareProfile, version: tuple[int, ...]) -> tuple[str, float]:
    """Return the format of the KV cache and the bytes of a number in it."""
    kv_dtype = flags["kv_cache_dtype"] or "auto"
    return kv_dtype, find_kv_element_bytes(kv_dtype, card, version)


def _drafts(speculation: Speculation | None) -> int:
    """Return the draft tokens of a sequence at most."""
    return speculation.tokens if speculation else 0


def _at_least_one(name: str, value: int | None) -> int:
    """Return a value of at least 1; 1 if it is not given."""
    if value is not None and value < 1:
        raise ConfigRefused(f"{name}: Input should be greater than or equal to 1")
    return value or 1


def _max_model_len(given: int | None, model: ModelShape, environment: Mapping[str, str]) -> int:
    derived = model.max_position_embeddings
    if given is None:
        return derived
    if given > derived and environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise ConfigRefused(
            f"User-specified max_model_len ({given}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived} or model_max_length=None in model's config.json). To allow overriding "
            "this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    return _at_least_one("max_model_len", given)


def _batch_limits(
    flags: Mapping[str, Any], card: HardwareProfile, version: tuple[int, ...], length: int
) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens (engine/arg_utils.py 0.15:1808, 0.25:2397, 0.32:2894)."""
    chunked = flags["enable_chunked_prefill"] is not False
    double = 2 if flags["performance_mode"] == "throughput" and version >= (0, 19) else 1
    tokens, seqs = flags["max_num_batched_tokens"], flags["max_num_seqs"]
    if tokens is None:
        tokens = double * int(vllm_default("max_num_batched_tokens", card, version))
        tokens = tokens if chunked else max(length, tokens)
        if seqs is not None:
            tokens = max(seqs, min(tokens, seqs * length))
    if seqs is None:
        seqs = min(double * int(vllm_default("max_num_seqs", card, version)), tokens)
    _at_least_one("max_num_seqs", seqs)
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


def _block_size(given: int | None, version: tuple[int, ...]) -> int:
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


def _memory_utilization(given: float | None, card: HardwareProfile, version: tuple[int, ...]) -> float:
    share = vllm_default("gpu_memory_utilization", card, version) if given is None else given
    if not 0 < share <= 1:
        raise ConfigRefused("gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1")
    return share


def _async_scheduling(given: bool | None, speculation: Speculation | None, version: tuple[int, ...]) -> bool:
    """Return whether scheduling is asynchronous; vLLM turns it off if the host makes the drafts."""
    if speculation is None or (speculation.method == "draft_model" and version >= (0, 25)):
        return given is not False
    if given:
        methods_by_release = {(0, 15): "EAGLE/MTP", (0, 25): "EAGLE/MTP/Draft Model/NGram GPU/DSpark"}
        methods = methods_by_release.get((version[0], version[1]), "EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash")
        raise ConfigRefused(
            f"Currently, async scheduling is only supported with {methods} kind of speculative decoding."
        )
    return False
