"""The numbers of a configuration that limit lengths, batches and memory: vLLM's defaults, rules and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces import HardwareProfile, ModelShape
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.config.vllm_defaults import vllm_default

_BLOCK_SIZES_BEFORE_0_25 = (1, 8, 16, 32, 64, 128, 256)
_DEFAULT_BLOCK_SIZE = 16
AUTO_LENGTH = -1
"""The value of `--max-model-len` for the longest context that the KV cache holds."""


def at_least_one(name: str, value: int | None) -> int:
    """Return a value of at least 1; 1 if it is not given."""
    if value is not None and value < 1:
        raise ConfigRefused(f"{name}: Input should be greater than or equal to 1")
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


def find_batch_limits(
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


def find_memory_utilization(given: float | None, card: HardwareProfile, version: tuple[int, ...]) -> float:
    """Return the share of the card's memory that a server may use, for `--gpu-memory-utilization`."""
    share = vllm_default("gpu_memory_utilization", card, version) if given is None else given
    if not 0 < share <= 1:
        raise ConfigRefused("gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1")
    return share
