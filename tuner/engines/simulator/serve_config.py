"""Resolves the command line of `vllm serve` to a configuration: vLLM's defaults, rules and errors.

Covered are vLLM 0.15 to 0.32. The sources are vLLM's `engine/arg_utils.py` and `config/`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from search_spaces import HardwareProfile, ModelShape, SpaceError, known_model
from tuner.engines.simulator.cuda_graphs import CudaGraphs, find_cuda_graphs
from tuner.engines.simulator.flags import FlagError, UnknownFlagError, parse_flags, vllm_default
from tuner.engines.simulator.kv_cache import (
    CacheFormat,
    KvCache,
    caches_prefixes,
    find_kv_cache,
    keeps_every_state,
    with_state_format,
)
from tuner.engines.simulator.limits import (
    AUTO_LENGTH,
    Parallelism,
    ParallelismRefused,
    TooFewGpus,
    at_least_one,
    find_batch_limits,
    find_block_size,
    find_max_model_len,
    find_memory_utilization,
    find_parallelism,
    shard_of,
)
from tuner.engines.simulator.precision import (
    ConfigRefused,
    NotSimulated,
    attention_kernels,
    check_latent_backend,
    chooses_same_experts,
    find_backend,
    find_dtype,
    find_kv_dtype,
    find_kv_element_bytes,
    find_quantization,
    has_fast_blocks,
    latent_backend,
    require_simulated,
)
from tuner.hub import cached_config

_KEYS = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
}
_DEFAULT_LOOKUP = 5


@dataclass(frozen=True)
class Speculation:
    """How drafts are made.

    Attributes:
        method: `ngram` or `suffix`.
        tokens: draft tokens of a sequence in a step at most.
        lookup_min: ngram only: tokens of the shortest piece of text that is looked up.
        factor: suffix decoding only: draft tokens for each token that matched.
        min_probability: suffix decoding only: tokens that are rarer are not drafted.
    """

    method: str
    tokens: int
    lookup_min: int = _DEFAULT_LOOKUP
    factor: float = 1.0
    min_probability: float = 0.1


def find_speculation(
    given: Mapping[str, Any] | None, card: HardwareProfile, version: tuple[int, ...], packages: frozenset[str]
) -> Speculation | None:
    """Return the speculation of a configuration; None without any.

    Args:
        given: the value of `--speculative-config`.
        card: the GPU.
        version: vLLM's version.
        packages: the packages beside vLLM; suffix decoding needs `arctic_inference`.

    Raises:
        ValueError: with vLLM's message, for a value that vLLM refuses.
    """
    if not given:
        return None
    unknown = sorted({*given} - _KEYS)
    if unknown:
        raise NotSimulated(f"--speculative-config: {unknown[0]} is not simulated; measure that with the engine vllm")
    method = given.get("method") or ("draft_model" if given.get("model") else None)
    tokens = given.get("num_speculative_tokens")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ValueError("num_speculative_tokens: Input should be greater than 0")
    if method == "ngram":
        return _ngram(given, _required(tokens))
    if method == "suffix":
        if "arctic_inference" not in packages:
            raise ValueError(
                "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
            )
        return _suffix(given, tokens, card, version)
    raise NotSimulated(f"--speculative-config: method {method!r} is not simulated (ngram and suffix are)")


def _required(tokens: int | None) -> int:
    if tokens is None:
        raise ValueError(
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    return tokens


def _ngram(given: Mapping[str, Any], tokens: int) -> Speculation:
    longest, shortest = given.get("prompt_lookup_max"), given.get("prompt_lookup_min")
    longest = longest or shortest or _DEFAULT_LOOKUP
    shortest = shortest or longest
    if shortest > longest:
        raise ValueError(f"prompt_lookup_min={shortest} must be <= prompt_lookup_max={longest}")
    return Speculation("ngram", tokens, lookup_min=shortest)


def _suffix(
    given: Mapping[str, Any], tokens: int | None, card: HardwareProfile, version: tuple[int, ...]
) -> Speculation:
    def value(key: str, parameter: str) -> Any:
        return given.get(key, vllm_default(parameter, card, version))

    return Speculation(
        "suffix",
        tokens or value("suffix_decoding_max_tree_depth", "suffix_depth"),
        factor=float(value("suffix_decoding_max_spec_factor", "suffix_factor")),
        min_probability=float(value("suffix_decoding_min_token_prob", "suffix_probability")),
    )


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
        fits_length: whether the server lowers `max_model_len` to what its KV cache holds.
        max_num_seqs: sequences in a step at most.
        max_num_batched_tokens: tokens in a step at most.
        block_size: tokens of a KV cache block that are asked for; `kv_cache` has those of the blocks.
        keeps_windows: whether windowed layers hold their window only (vLLM's hybrid KV cache manager).
        keeps_every_state: whether Mamba's layers keep the state at the end of each block for other sequences.
        gpu_memory_utilization: share of the card's memory that the server may use.
        kv_cache_bytes: size of the KV cache; None to use all memory that is left.
        host_cache_gib: size of the KV cache in the host's memory, which the GPUs of a server share; 0 without.
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
        backend: attention backend; of latent attention, the one whose arithmetic stands for it.
        graphs: CUDA graphs.
        speculation: speculative decoding; None without.
        temperature: sampling temperature of a request that states none.
        parallel: how the server is split over GPUs.
        same_experts: whether the sequences of a step that decodes all choose the same experts; see
            `chooses_same_experts`.
        servers_per_gpu: equal servers that share a GPU; each has its part of the memory.
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
    fits_length: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    keeps_windows: bool
    keeps_every_state: bool
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    host_cache_gib: float
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
    parallel: Parallelism
    same_experts: bool = False
    servers_per_gpu: int = 1

    @property
    def backend_name(self) -> str:
        """The name of the attention backend in vLLM's log."""
        return latent_backend(self.card, self.kv_element_bytes) if self.model.has_latent_attention else self.backend

    @cached_property
    def shard(self) -> ModelShape:
        """The part of the model that the most loaded GPU computes; the model itself on one GPU."""
        return shard_of(self.model, self.parallel)

    @cached_property
    def kv_cache(self) -> KvCache:
        """The blocks of the KV cache on the most loaded GPU.

        Raises:
            ConfigRefused: with vLLM's message, if the layers cannot share blocks.
        """
        form = CacheFormat(
            self.block_size,
            self.kv_element_bytes,
            self.max_num_batched_tokens * self._planned_steps,
            self.kv_head_scales,
            self.prefix_caching,
            self.keeps_windows,
            self.keeps_every_state,
            _drafts(self.speculation),
            self.model.draft_layers if self.speculation is not None and self.speculation.method == "mtp" else 0,
        )
        return find_kv_cache(self.shard, form, self.version)

    @property
    def _planned_steps(self) -> int:
        """Steps that are planned at once; before vLLM 0.26, the KV cache counts one."""
        if self.version < (0, 26):
            return 1
        return 2 if self.async_scheduling and self.parallel.pipeline == 1 else self.parallel.pipeline


def resolve_serve_config(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
    gpus: int = 1,
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
    require_simulated(model)
    try:
        return _resolve(_checked_flags(arguments, version), environment, model, card, version, packages, gpus)
    except UnknownFlagError as error:
        raise NotSimulated(str(error)) from None
    except FlagError as error:
        raise ConfigRefused(f"vllm serve: error: {error}") from None
    except ConfigRefused:
        raise
    except ValueError as error:
        raise ConfigRefused(str(error)) from None


def placed_config(config: ServeConfig, instances: int, gpus: int) -> ServeConfig:
    """Return the configuration of each of several equal servers on the GPUs of one machine.

    Servers on one GPU each share a GPU if there are fewer GPUs than servers.

    Raises:
        TooFewGpus: if servers of several GPUs would have to share.
    """
    needed = instances * config.parallel.gpus
    if needed <= gpus:
        return config
    if config.parallel.gpus > 1:
        raise TooFewGpus(
            f"{instances} servers of {config.parallel.gpus} GPUs need {needed} GPUs, and there are {gpus}", needed
        )
    return replace(config, servers_per_gpu=-(-instances // gpus))


def refusal_of_every_trial(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    model: ModelShape,
    card: HardwareProfile,
    version: tuple[int, ...],
    packages: frozenset[str],
    gpus: int = 1,
) -> str | None:
    """Return why no configuration with these arguments can be simulated; None if some may be.

    vLLM's other refusals do not count: values of the search space may avoid them. See `resolve_serve_config` for the
    arguments.
    """
    try:
        _resolve(_checked_flags(arguments, version), environment, model, card, version, packages, gpus)
    except (FlagError, NotSimulated, ParallelismRefused) as error:
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
    gpus: int = 1,
) -> ServeConfig:
    model = with_state_format(model, flags["mamba_ssm_cache_dtype"], version)
    speculation = find_speculation(flags["speculative_config"], card, version, packages)
    length = find_max_model_len(flags["max_model_len"], model, version, environment)
    seqs, tokens = find_batch_limits(flags, card, version, length)
    dtype, quantization, weight_bits = _weight_format(flags, model, card, version)
    kv_dtype, kv_element_bytes = _kv_cache_format(flags, model, card, version)
    backend = find_backend(_plain_backend(flags, model, card, kv_element_bytes), card, version, kv_dtype, packages)
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
        fits_length=flags["max_model_len"] == AUTO_LENGTH,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        **_blocks(flags, model, version),
        gpu_memory_utilization=find_memory_utilization(flags["gpu_memory_utilization"], card, version),
        chunked_prefill=flags["enable_chunked_prefill"] is not False,
        long_prefill_threshold=flags["long_prefill_token_threshold"] or 0,
        reserve_full=version >= (0, 25) and flags["scheduler_reserve_full_isl"] is not False,
        watermark=flags["watermark"] or 0.0,
        priority_scheduling=flags["scheduling_policy"] == "priority",
        async_scheduling=_async_scheduling(flags["async_scheduling"], speculation, version),
        **_admission(flags),
        stream_interval=at_least_one("stream_interval", flags["stream_interval"]),
        api_servers=at_least_one("api_server_count", _api_servers(flags)),
        backend=backend,
        graphs=find_cuda_graphs(flags, version, attention_kernels(backend, card), seqs, tokens, _drafts(speculation)),
        speculation=speculation,
        temperature=float((flags["override_generation_config"] or {}).get("temperature", 1.0)),
        parallel=find_parallelism(flags, model, gpus),
        same_experts=chooses_same_experts(flags["load_format"], quantization, model),
    )


def _plain_backend(
    flags: Mapping[str, Any], model: ModelShape, card: HardwareProfile, kv_element_bytes: float
) -> str | None:
    """Return `--attention-backend`; None for latent attention, whose backends are others and are checked here."""
    given: str | None = flags["attention_backend"]
    if not model.has_latent_attention:
        return given
    check_latent_backend(given, latent_backend(card, kv_element_bytes))
    return None


def _blocks(flags: Mapping[str, Any], model: ModelShape, version: tuple[int, ...]) -> dict[str, Any]:
    """Return the sizes of the KV cache where they are given, and how it is divided and reused."""
    prefix_caching = caches_prefixes(flags["enable_prefix_caching"], model, version)
    return {
        "kv_cache_bytes": flags["kv_cache_memory_bytes"],
        "host_cache_gib": _host_cache(flags, model, version),
        "block_size": find_block_size(flags["block_size"], version),
        "keeps_windows": not flags["disable_hybrid_kv_cache_manager"],
        "keeps_every_state": keeps_every_state(flags["mamba_cache_mode"], prefix_caching, version),
        "prefix_caching": prefix_caching,
    }


def _host_cache(flags: Mapping[str, Any], model: ModelShape, version: tuple[int, ...]) -> float:
    """Return the GiB of KV cache in the host's memory.

    Raises:
        ConfigRefused: for a size that is no number.
        NotSimulated: where no run of it is recorded, or the model's layers hold different tokens.
    """
    size: float = flags["kv_offloading_size"] or 0.0
    if not size:
        return 0.0
    if not math.isfinite(size):
        raise ConfigRefused("kv_offloading_size: Input should be a finite number")
    reason = None
    if (flags["kv_offloading_backend"] or "native") != "native":
        reason = f"--kv-offloading-backend {flags['kv_offloading_backend']}"
    elif not (0, 25) <= version < (0, 32):
        reason = f"--kv-offloading-size of vLLM {'.'.join(map(str, version))}"
    elif model.has_windows or model.has_recurrent_layers:
        reason = "--kv-offloading-size with windows or states"
    if reason is not None:
        rest = "not simulated, because no run of it is recorded; measure that with the engine vllm"
        raise NotSimulated(f"{reason}: {rest}")
    return size


def _admission(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of running and waiting requests."""
    return {
        "max_active": flags["max_num_active_seqs"],
        "max_queued_requests": flags["max_num_queued_reqs"],
        "max_queued_tokens": flags["max_num_queued_tokens"],
    }


def _checked_flags(arguments: Sequence[str], version: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the parsed flags, if the simulator supports them."""
    flags = parse_flags(arguments)
    if flags["performance_mode"] and version < (0, 19):
        raise ConfigRefused("unrecognized arguments: --performance-mode")
    if flags["cpu_offload_gb"]:
        raise NotSimulated("--cpu-offload-gb is not simulated; measure that with the engine vllm")
    return flags


def _weight_format(
    flags: Mapping[str, Any], model: ModelShape, card: HardwareProfile, version: tuple[int, ...]
) -> tuple[str, str | None, int]:
    """Return the 16-bit format, the quantization method and the bits of a weight."""
    dtype = find_dtype(flags["dtype"], model, card)
    return dtype, *find_quantization(flags["quantization"], model, card, version, dtype)


def _kv_cache_format(
    flags: Mapping[str, Any], model: ModelShape, card: HardwareProfile, version: tuple[int, ...]
) -> tuple[str, float]:
    """Return the format of the KV cache and the bytes of a number in it."""
    kv_dtype = find_kv_dtype(flags["kv_cache_dtype"], model, card)
    return kv_dtype, find_kv_element_bytes(kv_dtype, card, version)


def _drafts(speculation: Speculation | None) -> int:
    """Return the draft tokens of a sequence at most."""
    return speculation.tokens if speculation else 0


def _api_servers(flags: Mapping[str, Any]) -> int | None:
    """Return the number of API servers; vLLM starts one for each copy of the model (`entrypoints/cli/serve.py`)."""
    given: int | None = flags["api_server_count"]
    return (flags["data_parallel_size"] or 1) if given is None else given


def _async_scheduling(given: bool | None, speculation: Speculation | None, version: tuple[int, ...]) -> bool:
    """Return whether scheduling is asynchronous; vLLM turns it off if the host makes the drafts."""
    if speculation is None:
        return given is not False
    if given:
        methods_by_release = {(0, 15): "EAGLE/MTP", (0, 25): "EAGLE/MTP/Draft Model/NGram GPU/DSpark"}
        methods = methods_by_release.get((version[0], version[1]), "EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash")
        raise ConfigRefused(
            f"Currently, async scheduling is only supported with {methods} kind of speculative decoding."
        )
    return False


def find_shape(name: str) -> ModelShape:
    """Return the shape of a model by its hub name or its folder.

    The sources are, in this order: the list of known models, the folder's `config.json`, and the `config.json` in the
    local cache of the Hugging Face hub.

    Raises:
        NotSimulated: if none of them has the model, or its config.json cannot be read.
    """
    shape = known_model(name)
    if shape is not None:
        return shape
    folder = Path(os.path.expanduser(name))
    file = (None if folder.is_dir() else cached_config(name)) or folder / "config.json"
    try:
        return ModelShape.from_file(file)
    except SpaceError as error:
        raise NotSimulated(f"{name!r}: no shape of that model is known ({' '.join(str(error).split())})") from None
