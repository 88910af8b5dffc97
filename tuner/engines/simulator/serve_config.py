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
from search_spaces.catalogue.layers import LatentAttention
from tuner.engines.simulator.cuda_graphs import CHUNKED_ATTENTION, CudaGraphs, find_cuda_graphs
from tuner.engines.simulator.flags import FlagError, UnknownFlagError, check_keys, flags_without, parse_flags
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
    Site,
    attention_kernels,
    block_multiple,
    chooses_same_experts,
    find_backend,
    find_dtype,
    find_kv_dtype,
    find_kv_element_bytes,
    find_latent_backend,
    find_quantization,
    has_fast_blocks,
    require_simulated,
)
from tuner.engines.simulator.speculation import Speculation, find_speculation
from tuner.hub import cached_config


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
        random_weights: whether all weights are random (`--load-format dummy`).
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
    random_weights: bool = False
    same_experts: bool = False
    servers_per_gpu: int = 1

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
        copies = 1 if self.speculation is None else self.speculation.copies
        form = CacheFormat(
            self.block_size,
            self.kv_element_bytes,
            self.max_num_batched_tokens * self._planned_steps,
            self.kv_head_scales,
            self.prefix_caching,
            self.keeps_windows,
            self.keeps_every_state,
            _drafts(self.speculation),
            () if self.draft is None else tuple(group.times(copies) for group in self.draft.shard.groups),
        )
        return find_kv_cache(self.shard, form, self.version)

    @cached_property
    def draft(self) -> ServeConfig | None:
        """What computes a draft token, as a server on the same GPUs; None without drafts that are computed.

        vLLM takes the most likely token as a draft, and launches a draft's passes by piece.
        """
        made = self.speculation
        if made is None or made.draft is None:
            return None
        own: dict[str, Any] = {}
        if made.has_own_weights:
            method, bits = find_quantization(None, made.draft, Site(self.card, self.version), self.dtype)
            own = {"quantization": method, "weight_bits": bits}
        return replace(
            self,
            model=made.draft,
            speculation=None,
            temperature=0.0,
            parallel=replace(self.parallel, pipeline=1),
            graphs=replace(self.graphs, full_decode=False, full_mixed=False),
            **own,
        )

    @property
    def scheduled_tokens(self) -> int:
        """Tokens that the scheduler gives to a step at most.

        A draft model's first pass has a token more of each sequence; before 0.32, vLLM keeps their places free.
        """
        has_model = self.speculation is not None and self.speculation.method == "draft_model"
        kept = self.max_num_seqs if has_model and (0, 25) <= self.version < (0, 32) else 0
        return self.max_num_batched_tokens - kept

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
    """Return the configuration of a command line of `vllm serve`; see `CommandLine`.

    Raises:
        ConfigRefused: with vLLM's message, for a configuration that vLLM refuses.
    """
    require_simulated(model)
    try:
        made = CommandLine(arguments, environment, model, card, version, packages, gpus).resolved()
    except UnknownFlagError as error:
        raise NotSimulated(str(error)) from None
    except FlagError as error:
        raise ConfigRefused(f"vllm serve: error: {error}") from None
    except ConfigRefused:
        raise
    except ValueError as error:
        raise ConfigRefused(str(error)) from None
    if made.scheduled_tokens <= 0:
        tokens = made.max_num_batched_tokens
        raise ConfigRefused(
            "VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings. "
            f"Got max_num_batched_tokens={tokens} and scheduled_token_delta={tokens - made.scheduled_tokens}."
        )
    return made


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


@dataclass(frozen=True)
class CommandLine:
    """A command line of `vllm serve` and where it runs.

    Attributes:
        arguments: those after `vllm serve MODEL`.
        environment: environment variables of the server.
        model: the shape of the model.
        card: the GPU.
        version: the simulated version of vLLM.
        packages: packages installed beside vLLM (`arctic_inference`, `flashinfer`).
        gpus: of the machine.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    model: ModelShape
    card: HardwareProfile
    version: tuple[int, ...]
    packages: frozenset[str]
    gpus: int = 1

    @property
    def site(self) -> Site:
        """Where the server runs."""
        return Site(self.card, self.version, self.packages)

    @cached_property
    def flags(self) -> Mapping[str, Any]:
        """The parsed flags, if the simulator supports them."""
        flags = parse_flags(self.arguments)
        for name in sorted(flags_without(self.version)):
            if flags.get(name) is not None:
                raise ConfigRefused(f"unrecognized arguments: --{name.replace('_', '-')}")
        check_keys(flags, self.version)
        if flags["cpu_offload_gb"]:
            raise NotSimulated("--cpu-offload-gb is not simulated; measure that with the engine vllm")
        return flags

    @cached_property
    def shape(self) -> ModelShape:
        """The model with the format of states that the flags ask for."""
        return with_state_format(self.model, self.flags["mamba_ssm_cache_dtype"], self.version)

    def refusal_of_every_trial(self) -> str | None:
        """Return why no configuration with these arguments can be simulated; None if some may be.

        vLLM's other refusals do not count: values of the search space may avoid them.
        """
        try:
            self.resolved()
        except (FlagError, NotSimulated, ParallelismRefused) as error:
            return str(error)
        except ValueError:
            return None
        return None

    def resolved(self) -> ServeConfig:
        """Return the configuration.

        Raises:
            ValueError: of several types, see `resolve_serve_config`.
        """
        flags, model, card, version, site = self.flags, self.shape, self.card, self.version, self.site
        speculation = self._speculation()
        length = find_max_model_len(flags["max_model_len"], model, version, self.environment)
        seqs, tokens = find_batch_limits(flags, site, length)
        dtype = find_dtype(flags["dtype"], model, card)
        quantization, weight_bits = find_quantization(flags["quantization"], model, site, dtype)
        kv_dtype = find_kv_dtype(flags["kv_cache_dtype"], model, card)
        kv_element_bytes = find_kv_element_bytes(kv_dtype, site)
        backend = self._backend(kv_dtype)
        return ServeConfig(
            version=version,
            model=model,
            card=card,
            dtype=dtype,
            quantization=quantization,
            weight_bits=weight_bits,
            fast_blocks=has_fast_blocks(site, dtype),
            kv_element_bytes=kv_element_bytes,
            kv_head_scales=kv_dtype.endswith("_per_token_head"),
            max_model_len=length,
            fits_length=flags["max_model_len"] == AUTO_LENGTH,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            **self._blocks(block_multiple(backend), speculation),
            gpu_memory_utilization=find_memory_utilization(flags["gpu_memory_utilization"], site),
            **_scheduling(flags, version, speculation),
            stream_interval=at_least_one("stream_interval", flags["stream_interval"]),
            api_servers=at_least_one("api_server_count", _api_servers(flags)),
            backend=backend,
            graphs=self._graphs(backend, seqs, tokens, _drafts(speculation)),
            speculation=speculation,
            temperature=float((flags["override_generation_config"] or {}).get("temperature", 1.0)),
            parallel=find_parallelism(flags, model, self.gpus),
            random_weights=self._has_random_weights,
            same_experts=chooses_same_experts(flags["load_format"], quantization, model),
        )

    @property
    def _has_random_weights(self) -> bool:
        return bool(self.flags["load_format"] == "dummy")

    def _speculation(self) -> Speculation | None:
        given, random_weights = self.flags["speculative_config"], self._has_random_weights
        return find_speculation(given, self.shape, self.site, find_shape, random_weights)

    def _graphs(self, backend: str, seqs: int, tokens: int, drafts: int) -> CudaGraphs:
        """Return the CUDA graphs; the kernels of attention decide which steps they may hold."""
        kernels = backend if "MLA" in backend else attention_kernels(backend, self.card)
        chosen = CHUNKED_ATTENTION if self.shape.has_chunks else kernels
        capability = self.card.compute_capability or (0, 0)
        return find_cuda_graphs(self.flags, self.version, chosen, seqs, tokens, drafts, capability)

    def _backend(self, kv_dtype: str) -> str:
        """Return the attention backend; models whose cache holds latent vectors have backends of their own."""
        given, model = self.flags["attention_backend"], self.shape
        if any(isinstance(group.mixer, LatentAttention) and not group.mixer.per_head for group in model.groups):
            return find_latent_backend(given, model, self.site, kv_dtype, self.flags["block_size"])
        return find_backend(given, self.site, kv_dtype)

    def _blocks(self, multiple: int, speculation: Speculation | None) -> dict[str, Any]:
        """Return the sizes of the KV cache where they are given, and how it is divided and reused."""
        flags, version, has_chunks = self.flags, self.version, self.shape.has_chunks
        # vLLM keeps every token of attention in chunks beside such drafts (`config/vllm.py`)
        keeps_chunks = speculation is None or not speculation.follows_states
        prefix_caching = caches_prefixes(flags["enable_prefix_caching"], self.shape, version)
        return {
            "kv_cache_bytes": flags["kv_cache_memory_bytes"],
            "host_cache_gib": self._host_cache_gib(),
            "block_size": -(-find_block_size(flags["block_size"], version) // multiple) * multiple,
            "keeps_windows": not flags["disable_hybrid_kv_cache_manager"] and (keeps_chunks or not has_chunks),
            "keeps_every_state": keeps_every_state(flags["mamba_cache_mode"], prefix_caching, version),
            "prefix_caching": prefix_caching,
        }

    def _host_cache_gib(self) -> float:
        """Return the GiB of KV cache in the host's memory.

        Raises:
            ConfigRefused: for a size that is no number.
            NotSimulated: where no run of it is recorded, or the model's layers hold different tokens.
        """
        size: float = self.flags["kv_offloading_size"] or 0.0
        if not size:
            return 0.0
        if not math.isfinite(size):
            raise ConfigRefused("kv_offloading_size: Input should be a finite number")
        reason, backend = None, self.flags["kv_offloading_backend"] or "native"
        if backend != "native":
            reason = f"--kv-offloading-backend {backend}"
        elif not (0, 25) <= self.version < (0, 32):
            reason = f"--kv-offloading-size of vLLM {'.'.join(map(str, self.version))}"
        elif self.shape.has_windows or self.shape.has_recurrent_layers:
            reason = "--kv-offloading-size with windows or states"
        if reason is not None:
            rest = "not simulated, because no run of it is recorded; measure that with the engine vllm"
            raise NotSimulated(f"{reason}: {rest}")
        return size


def _scheduling(flags: Mapping[str, Any], version: tuple[int, ...], speculation: Speculation | None) -> dict[str, Any]:
    """Return how steps are planned, and the limits of running and waiting requests."""
    return {
        "chunked_prefill": flags["enable_chunked_prefill"] is not False,
        "long_prefill_threshold": flags["long_prefill_token_threshold"] or 0,
        "reserve_full": version >= (0, 25) and flags["scheduler_reserve_full_isl"] is not False,
        "watermark": flags["watermark"] or 0.0,
        "priority_scheduling": flags["scheduling_policy"] == "priority",
        "async_scheduling": _async_scheduling(flags["async_scheduling"], speculation, version),
        "max_active": flags["max_num_active_seqs"],
        "max_queued_requests": flags["max_num_queued_reqs"],
        "max_queued_tokens": flags["max_num_queued_tokens"],
    }


def _drafts(speculation: Speculation | None) -> int:
    """Return the draft tokens of a sequence at most."""
    return speculation.tokens if speculation else 0


def _api_servers(flags: Mapping[str, Any]) -> int | None:
    """Return the number of API servers; vLLM starts one for each copy of the model (`entrypoints/cli/serve.py`)."""
    given: int | None = flags["api_server_count"]
    return (flags["data_parallel_size"] or 1) if given is None else given


def _async_scheduling(given: bool | None, speculation: Speculation | None, version: tuple[int, ...]) -> bool:
    """Return whether scheduling is asynchronous; vLLM turns it off if the host makes the drafts."""
    if speculation is None or not (
        speculation.is_looked_up or (speculation.method == "draft_model" and version < (0, 25))
    ):
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
