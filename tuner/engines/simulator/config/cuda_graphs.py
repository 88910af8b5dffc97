"""Which steps run as CUDA graphs, and at which size: vLLM's optimization levels, modes and capture sizes."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

LARGEST_DEFAULT_SIZE = 512
_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_PIECEWISE_MODES = ("PIECEWISE", "FULL_AND_PIECEWISE")


class LaunchMode(StrEnum):
    """How the kernels of a step are launched."""

    FULL = "full"
    """One graph for the whole step."""
    PIECEWISE = "piecewise"
    """A graph for what lies between two attentions; attention is launched by the host."""
    COMPILED = "compiled"
    """Fused kernels, each launched by the host."""
    EAGER = "eager"
    """Every kernel of the model as it is written, each launched by the host."""


@dataclass(frozen=True)
class CudaGraphs:
    """What is captured. `sizes` are tokens of a step, ascending; `compiled` says whether kernels are fused.

    `full_decode` and `full_mixed` say whether steps of decodes alone, and any steps, may be one graph; `piecewise`
    whether what is no full graph may be pieces. `uniform_tokens` is how many tokens a decode may bring into a full
    graph: 1, or more where the attention kernels can.
    """

    compiled: bool
    full_decode: bool
    full_mixed: bool
    piecewise: bool
    sizes: tuple[int, ...]

    def launch(self, tokens: int, decodes_only: bool) -> LaunchMode:
        """Return how a step of so many tokens is launched."""
        if tokens <= self.largest:
            if self.full_mixed or (self.full_decode and decodes_only):
                return LaunchMode.FULL
            if self.piecewise:
                return LaunchMode.PIECEWISE
        return LaunchMode.COMPILED if self.compiled else LaunchMode.EAGER

    @property
    def largest(self) -> int:
        """The largest step that is captured; 0 if none is."""
        return self.sizes[-1] if self.sizes else 0

    def padded(self, tokens: int) -> int:
        """Return the size at which a captured step of so many tokens runs."""
        return self.sizes[bisect.bisect_left(self.sizes, tokens)]

    @property
    def captured(self) -> int:
        """How many graphs are captured."""
        return len(self.sizes) * ((self.full_decode or self.full_mixed) + self.piecewise)


def default_sizes(largest: int) -> tuple[int, ...]:
    """Return vLLM's list: 1, 2, 4, every 8 below 256, every 16 up to `largest` (config/vllm.py 0.15:1076)."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def find_cuda_graphs(
    said: Mapping[str, Any], version: tuple[int, ...], backend: str, seqs: int, tokens: int, spec_tokens: int
) -> CudaGraphs:
    """Return the graphs of a configuration.

    Args:
        said: the flags, from `parse_flags`.
        version: vLLM's.
        backend: the attention backend.
        seqs: max_num_seqs.
        tokens: max_num_batched_tokens.
        spec_tokens: drafted tokens of a sequence; 0 without speculation.

    Raises:
        ValueError: with vLLM's words, for sizes or modes that it refuses.
    """
    config: dict[str, Any] = said["compilation_config"] or {}
    level = _level(said["optimization_level"])
    mode = config.get("cudagraph_mode")
    if mode is not None and str(mode).upper() not in _MODES:
        raise ValueError(f"cudagraph_mode: Input should be one of {', '.join(_MODES)}")
    compiled = level > 0 and config.get("mode") not in (0, "NONE") and not said["enforce_eager"]
    wanted = _mode(mode, level, compiled, bool(said["enforce_eager"]), version)
    if wanted == "FULL" and backend in ("FLASHINFER", "FLASH_ATTN_2"):
        wanted = "FULL_AND_PIECEWISE" if compiled else "FULL_DECODE_ONLY"
    one_token = backend == "FLASHINFER" and spec_tokens > 0
    sizes = () if wanted == "NONE" else _sizes(said, config, seqs, tokens, spec_tokens)
    return CudaGraphs(
        compiled=compiled,
        full_decode=wanted in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE") and not one_token,
        full_mixed=wanted == "FULL",
        piecewise=wanted in _PIECEWISE_MODES,
        sizes=sizes,
    )


def _level(level: int | None) -> int:
    if level is not None and not 0 <= level <= 3:
        raise ValueError("optimization_level: Input should be 0, 1, 2 or 3")
    return 2 if level is None else level


def _mode(mode: str | None, level: int, compiled: bool, eager: bool, version: tuple[int, ...]) -> str:
    """Return the mode in force: pieces need compilation, and up to 0.24 every graph does."""
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
    said: Mapping[str, Any], config: Mapping[str, Any], seqs: int, tokens: int, spec_tokens: int
) -> tuple[int, ...]:
    """Return the capture sizes; those above the token budget are dropped in silence, as vLLM does."""
    flag, key = said["cudagraph_capture_sizes"], config.get("cudagraph_capture_sizes")
    if flag and key:
        raise ValueError(
            "cudagraph_capture_sizes and compilation_config.cudagraph_capture_sizes are mutually exclusive"
        )
    largest = said["max_cudagraph_capture_size"] or config.get("max_cudagraph_capture_size")
    if said["max_cudagraph_capture_size"] == 0:
        largest = 0
    if largest is not None and largest < 1:
        raise ValueError("Maximum cudagraph size should be greater than or equal to 1 when using cuda graph.")
    given: Sequence[int] | None = flag or key
    if given:
        sizes = tuple(sorted({size for size in given if size <= tokens}))
        if largest is not None and sizes and largest != sizes[-1]:
            raise ValueError(
                f"customized max_cudagraph_capture_size(={largest}) should be consistent with the max value of "
                f"cudagraph_capture_sizes(={sizes[-1]})"
            )
        return sizes
    top = min(seqs * 2 * (1 + spec_tokens), LARGEST_DEFAULT_SIZE) if largest is None else largest
    sizes = default_sizes(min(top, tokens))
    if said["performance_mode"] == "interactivity":
        sizes = tuple(sorted({*sizes, *range(1, min(32, tokens) + 1)}))
    return sizes
