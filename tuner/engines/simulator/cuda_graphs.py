"""The steps that run as CUDA graphs, and the sizes of the graphs: vLLM's optimization levels, graph modes and sizes.

The rules follow vLLM's `config/compilation.py` and `config/vllm.py` (0.15 to 0.32). A step of n tokens runs at the
smallest captured size that is at least n; a step above the largest size runs without a graph.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.engines.simulator.flags import key_integer
from tuner.engines.simulator.precision import NotSimulated

_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_COMPILATION_MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
_UNMODELLED = ("pass_config", "custom_ops", "dynamic_shapes_config")
_SINGLE_TOKENS = ("FLASHINFER", "CUTLASS_MLA", "TRITON_MLA")
_PIECEWISE_MODES = ("PIECEWISE", "FULL_AND_PIECEWISE")
CHUNKED_ATTENTION = "CHUNKED_LOCAL_ATTENTION"
"""Attention in chunks, which no graph holds (`chunked_local_attention.py`)."""


class LaunchMode(StrEnum):
    """How the kernels of a step are launched."""

    FULL = "full"
    """One graph holds the whole step."""
    PIECEWISE = "piecewise"
    """One graph holds the kernels between two attentions; the host launches attention."""
    COMPILED = "compiled"
    """The host launches each fused kernel."""
    EAGER = "eager"
    """The host launches each kernel of the uncompiled model."""


@dataclass(frozen=True)
class CudaGraphs:
    """The CUDA graphs of one configuration.

    Attributes:
        compiled: whether torch.compile fuses kernels.
        full_decode: whether a step that only decodes may run as one graph.
        full_mixed: whether any step may run as one graph.
        piecewise: whether a step that is no full graph may run as piecewise graphs.
        sizes: captured sizes in tokens of a step, ascending.
    """

    compiled: bool
    full_decode: bool
    full_mixed: bool
    piecewise: bool
    sizes: tuple[int, ...]

    def launch(self, tokens: int, decodes_only: bool) -> LaunchMode:
        """Return how a step of `tokens` tokens is launched."""
        if tokens <= self.largest:
            if self.full_mixed or (self.full_decode and decodes_only):
                return LaunchMode.FULL
            if self.piecewise:
                return LaunchMode.PIECEWISE
        return LaunchMode.COMPILED if self.compiled else LaunchMode.EAGER

    @property
    def largest(self) -> int:
        """The largest captured size in tokens; 0 if nothing is captured."""
        return self.sizes[-1] if self.sizes else 0

    def padded(self, tokens: int) -> int:
        """Return the captured size in tokens at which a step of `tokens` tokens runs."""
        return self.sizes[bisect.bisect_left(self.sizes, tokens)]

    @property
    def captured(self) -> int:
        """The number of captured graphs."""
        return len(self.sizes) * ((self.full_decode or self.full_mixed) + self.piecewise)


def default_sizes(largest: int) -> tuple[int, ...]:
    """Return vLLM's list: 1, 2, 4, every 8 below 256, every 16 up to `largest` (config/vllm.py 0.15:1076)."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def largest_default_size(version: tuple[int, ...], capability: tuple[int, int]) -> int:
    """Return the most tokens of a step that vLLM captures by default (config/vllm.py 0.27 and 0.28)."""
    return 1024 if version >= (0, 28) and capability[0] == 10 else 512


def find_cuda_graphs(
    flags: Mapping[str, Any],
    version: tuple[int, ...],
    kernels: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    draft_tokens: int,
    capability: tuple[int, int],
) -> CudaGraphs:
    """Return the graphs of a configuration.

    Args:
        flags: the command line, from `parse_flags`.
        version: vLLM's version.
        kernels: the attention kernels, from `attention_kernels`, a backend of latent attention, or `CHUNKED_ATTENTION`.
        max_num_seqs: sequences in a step at most.
        max_num_batched_tokens: tokens in a step at most.
        draft_tokens: draft tokens of a sequence at most; 0 without speculation.
        capability: CUDA compute capability of the card, which decides the largest default size with `version`.

    Raises:
        ValueError: with vLLM's message, for sizes or modes that vLLM refuses.
    """
    compilation: dict[str, Any] = flags["compilation_config"] or {}
    unmodelled = [key for key in _UNMODELLED if compilation.get(key)]
    if unmodelled:
        raise NotSimulated(f"--compilation-config: {unmodelled[0]} is not simulated; measure that with the engine vllm")
    level = _optimization_level(flags["optimization_level"])
    given_mode = _named("cudagraph_mode", compilation.get("cudagraph_mode"), _MODES)
    eager = bool(flags["enforce_eager"])
    compilation_mode = _named("mode", compilation.get("mode", compilation.get("level")), _COMPILATION_MODES)
    compiled = level > 0 and not eager and compilation_mode != "NONE"
    mode = _mode_in_force(given_mode, level, compiled, eager, version)
    if kernels == CHUNKED_ATTENTION and mode != "NONE":
        mode = _mode_without_attention(mode, compiled)
    if mode == "FULL" and (kernels in ("FLASHINFER", "FLASH_ATTN_2") or "MLA" in kernels):
        mode = "FULL_AND_PIECEWISE" if compiled else "FULL_DECODE_ONLY"
    # these backends' graphs hold decodes of one token only, and with speculation a decode has several
    drafts_exceed_graphs = kernels in _SINGLE_TOKENS and draft_tokens > 0
    top = min(max_num_seqs * 2 * (1 + draft_tokens), largest_default_size(version, capability))
    sizes = () if mode == "NONE" else _sizes(flags, compilation, max_num_batched_tokens, top)
    return CudaGraphs(
        compiled=compiled,
        full_decode=mode in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE") and not drafts_exceed_graphs,
        full_mixed=mode == "FULL",
        piecewise=mode in _PIECEWISE_MODES,
        sizes=sizes,
    )


def _named(key: str, value: object, names: Sequence[str]) -> str | None:
    """Return the name that a key has as a text or as its number; None if it has none."""
    name = names[value] if isinstance(value, int) and 0 <= value < len(names) else str(value).upper()
    if value is not None and name not in names:
        raise ValueError(f"{key}: Input should be one of {', '.join(names)}")
    return None if value is None else name


def _sizes_of(value: object) -> list[int]:
    """Return the sizes that a key has; none if it is not given."""
    if value is not None and not isinstance(value, list):
        raise ValueError("cudagraph_capture_sizes: Input should be a valid list")
    return [size for each in value or () if (size := key_integer("cudagraph_capture_sizes", each)) is not None]


def _mode_without_attention(mode: str, compiled: bool) -> str:
    """Return the mode that vLLM uses where no graph may hold attention."""
    if mode == "FULL":
        raise ValueError(
            "CUDAGraphMode.FULL is not supported with ChunkedLocalAttention backend (support: "
            "AttentionCGSupport.NEVER); please try cudagraph_mode=PIECEWISE, and make sure compilation mode is "
            "VLLM_COMPILE"
        )
    return "PIECEWISE" if compiled else "NONE"


def _optimization_level(level: int | None) -> int:
    if level is not None and not 0 <= level <= 3:
        raise ValueError("optimization_level: Input should be 0, 1, 2 or 3")
    return 2 if level is None else level


def _mode_in_force(mode: str | None, level: int, compiled: bool, eager: bool, version: tuple[int, ...]) -> str:
    """Return the mode that vLLM uses: piecewise graphs need compilation, and before 0.25 every graph needs it."""
    if eager:
        return "NONE"
    if mode is None:
        mode = ("NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE")[level]
        if level > 0 and not compiled:
            mode = "FULL_DECODE_ONLY" if version >= (0, 25) else "NONE"
    mode = str(mode).upper()
    if compiled or mode == "NONE":
        return mode
    return mode if mode in ("FULL", "FULL_DECODE_ONLY") and version >= (0, 25) else "NONE"


def _sizes(
    flags: Mapping[str, Any], compilation: Mapping[str, Any], max_num_batched_tokens: int, default: int
) -> tuple[int, ...]:
    """Return the capture sizes up to the given or `default` size.

    Like vLLM, drop sizes above the token budget without a message.
    """
    flag_sizes, key_sizes = flags["cudagraph_capture_sizes"], _sizes_of(compilation.get("cudagraph_capture_sizes"))
    if flag_sizes and key_sizes:
        raise ValueError(
            "cudagraph_capture_sizes and compilation_config.cudagraph_capture_sizes are mutually exclusive"
        )
    key_largest = key_integer("max_cudagraph_capture_size", compilation.get("max_cudagraph_capture_size"))
    largest = flags["max_cudagraph_capture_size"] or key_largest
    if flags["max_cudagraph_capture_size"] == 0:
        largest = 0
    if largest is not None and largest < 1:
        raise ValueError("Maximum cudagraph size should be greater than or equal to 1 when using cuda graph.")
    given: Sequence[int] | None = flag_sizes or key_sizes
    if given:
        sizes = tuple(sorted({size for size in given if size <= max_num_batched_tokens}))
        if largest is not None and sizes and largest != sizes[-1]:
            raise ValueError(
                f"customized max_cudagraph_capture_size(={largest}) should be consistent with the max value of "
                f"cudagraph_capture_sizes(={sizes[-1]})"
            )
        return sizes
    sizes = default_sizes(min(default if largest is None else largest, max_num_batched_tokens))
    if flags["performance_mode"] == "interactivity":
        sizes = tuple(sorted({*sizes, *range(1, min(32, max_num_batched_tokens) + 1)}))
    return sizes
