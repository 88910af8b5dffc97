"""What one `vllm serve` was told, with vLLM's defaults and refusals: versions 0.15 to 0.32, one GPU, dense models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces import HardwareProfile, ModelShape
from tuner.engines.simulator.config.cuda_graphs import CudaGraphs, find_cuda_graphs
from tuner.engines.simulator.config.flags import FlagError, parse_flags
from tuner.engines.simulator.config.precision import (
    ConfigRefused,
    find_backend,
    find_dtype,
    find_kv_element_bytes,
    find_quantization,
    kernels_named,
)
from tuner.engines.simulator.config.speculative_config import Speculation, find_speculation

_LARGE_GIB = 70
_HUGE_GIB = 160
_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class ServeConfig:
    """One server. Lengths and sizes in tokens, `kv_cache_bytes` None where the memory that is left decides.

    `quantization` is the method of the weights, `weight_bits` what it stores a linear layer's weight in;
    `kv_element_bytes` the bytes of one number in the KV cache. `temperature` is what the server samples at where a
    request does not say. `max_active` and `max_queued_*` admit no more than that; None admits all.
    """

    version: tuple[int, ...]
    model: ModelShape
    card: HardwareProfile
    dtype: str
    quantization: str | None
    weight_bits: int
    kv_element_bytes: float
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
    words: Sequence[str],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
) -> ServeConfig:
    """Return the configuration of a command line.

    Args:
        words: the flags after `vllm serve MODEL`.
        environment: variables that the server gets.
        model: its shape.
        card: the GPU.
        version: the vLLM that is simulated.
        packages: what is installed beside it (`arctic_inference`, `flashinfer`).

    Raises:
        ConfigRefused: in vLLM's words, for what vLLM refuses.
    """
    try:
        said = parse_flags(words)
        return _resolved(said, environment, model, card, version, packages)
    except FlagError as error:
        raise ConfigRefused(f"vllm serve: error: {error}") from None
    except ValueError as error:
        raise ConfigRefused(str(error)) from None


def _resolved(
    said: Mapping[str, Any],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
) -> ServeConfig:
    _refuse_what_is_not_simulated(said)
    speculation = find_speculation(said["speculative_config"], version, packages)
    length = _max_model_len(said["max_model_len"], model, environment)
    seqs, tokens = _batch(said, card, version, length)
    dtype = find_dtype(said["dtype"], model, card)
    quantization, bits = find_quantization(said["quantization"], model, card, version, dtype)
    kv_bytes = find_kv_element_bytes(said["kv_cache_dtype"] or "auto", card, version)
    backend = find_backend(said["attention_backend"], card, version, said["kv_cache_dtype"] or "auto", packages)
    graphs = find_cuda_graphs(said, version, kernels_named(backend, card), seqs, tokens, _most_drafted(speculation))
    return ServeConfig(
        version=version,
        model=model,
        card=card,
        dtype=dtype,
        quantization=quantization,
        weight_bits=bits,
        kv_element_bytes=kv_bytes,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        block_size=_block_size(said["block_size"], version),
        gpu_memory_utilization=_utilization(said["gpu_memory_utilization"], version),
        kv_cache_bytes=said["kv_cache_memory_bytes"],
        prefix_caching=said["enable_prefix_caching"] is not False,
        chunked_prefill=said["enable_chunked_prefill"] is not False,
        long_prefill_threshold=said["long_prefill_token_threshold"] or 0,
        reserve_full=version >= (0, 25) and said["scheduler_reserve_full_isl"] is not False,
        watermark=said["watermark"] or 0.0,
        async_scheduling=_async(said["async_scheduling"], speculation, version),
        max_active=said["max_num_active_seqs"],
        max_queued_requests=said["max_num_queued_reqs"],
        max_queued_tokens=said["max_num_queued_tokens"],
        stream_interval=_at_least_one("stream_interval", said["stream_interval"]),
        api_servers=_at_least_one("api_server_count", said["api_server_count"]),
        backend=backend,
        graphs=graphs,
        speculation=speculation,
        temperature=float((said["override_generation_config"] or {}).get("temperature", 1.0)),
    )


def _refuse_what_is_not_simulated(said: Mapping[str, Any]) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if said[name] not in (None, 1):
            flag = "--" + name.replace("_", "-")
            raise ConfigRefused(f"{flag} {said[name]}: one GPU is simulated; measure that with --engine vllm")
    if said["cpu_offload_gb"]:
        raise ConfigRefused("--cpu-offload-gb is not simulated; measure that with --engine vllm")


def _at_least_one(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise ConfigRefused(f"{name}: Input should be greater than or equal to 1")
    return value or 1


def _max_model_len(said: int | None, model: ModelShape, environment: Mapping[str, str]) -> int:
    derived = model.max_position_embeddings
    if said is None:
        return derived
    if said > derived and environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise ConfigRefused(
            f"User-specified max_model_len ({said}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived} or model_max_length=None in model's config.json). To allow overriding "
            "this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    return _at_least_one("max_model_len", said)


def _batch(said: Mapping[str, Any], card: HardwareProfile, version: tuple[int, ...], length: int) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens (engine/arg_utils.py 0.15:1808, 0.25:2397, 0.32:2894)."""
    chunked = said["enable_chunked_prefill"] is not False
    large = (card.memory_gib or 0) >= _LARGE_GIB and card.key != "a100"
    double = 2 if said["performance_mode"] == "throughput" and version >= (0, 19) else 1
    tokens, seqs = said["max_num_batched_tokens"], said["max_num_seqs"]
    if tokens is None:
        huge = (card.memory_gib or 0) >= _HUGE_GIB and version >= (0, 32)
        tokens = double * (16384 if huge else 8192 if large else 2048)
        tokens = tokens if chunked else max(length, tokens)
        if seqs is not None:
            tokens = max(seqs, min(tokens, seqs * length))
    if seqs is None:
        seqs = min(double * (1024 if large else 256), tokens)
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
    active = said["max_num_active_seqs"]
    if active is not None and active > seqs:
        raise ConfigRefused(f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs}).")
    return seqs, tokens


def _block_size(said: int | None, version: tuple[int, ...]) -> int:
    if said is None:
        return 16
    if version < (0, 25) and said not in _BLOCK_SIZES:
        raise ConfigRefused(f"argument --block-size: invalid choice: {said} (choose from {_BLOCK_SIZES})")
    if said < 1 or said % 16:
        raise ConfigRefused(
            f"No common block size for {said}."
            if version < (0, 25)
            else f"No valid attention backend found for cuda with AttentionSelectorConfig(block_size={said})."
        )
    return said


def _utilization(said: float | None, version: tuple[int, ...]) -> float:
    share = (0.92 if version >= (0, 20) else 0.9) if said is None else said
    if not 0 < share <= 1:
        raise ConfigRefused("gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1")
    return share


def _async(said: bool | None, speculation: Speculation | None, version: tuple[int, ...]) -> bool:
    """Return whether scheduling overlaps the step before: on, unless drafts come from the host."""
    if speculation is None or (speculation.method == "draft_model" and version >= (0, 25)):
        return said is not False
    if said:
        kinds = {(0, 15): "EAGLE/MTP", (0, 25): "EAGLE/MTP/Draft Model/NGram GPU/DSpark"}
        kind = kinds.get((version[0], version[1]), "EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash")
        raise ConfigRefused(f"Currently, async scheduling is only supported with {kind} kind of speculative decoding.")
    return False


def _most_drafted(speculation: Speculation | None) -> int:
    return 0 if speculation is None else speculation.tokens
