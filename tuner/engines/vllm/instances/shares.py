"""What each of several instances gets of a machine: GPUs or a part of their memory, or cores."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search_spaces.rendering.shape import gpus_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY = "--gpu-memory-utilization"
DEFAULT_MEMORY = 0.9
"""vLLM's default share of a GPU's memory, up to 0.19; later versions take 0.92."""

CPU_MEMORY, CPU_CORES = "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"
DEFAULT_CPU_GIB = 4.0


@dataclass(frozen=True)
class Share:
    """One instance: the arguments of `vllm`, its variables, and whether it starts before the next one does."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    alone: bool = False


def shares_of(count: int, words: Sequence[str], environment: Mapping[str, str]) -> list[Share]:
    """Return what each of `count` instances gets.

    Args:
        count: of the instances.
        words: arguments of `vllm`.
        environment: CUDA_VISIBLE_DEVICES names the GPUs; without it there are none.
    """
    gpus = [each for each in environment.get(VISIBLE, "").split(",") if each]
    if count == 1:
        return [Share(tuple(words))]
    if not gpus:
        return [_on_cpu(index, count, words, environment) for index in range(count)]
    size = gpus_of(words)
    groups = [gpus[first : first + size] for first in range(0, len(gpus) - size + 1, size)] or [gpus]
    found = []
    for index in range(count):
        place = index % len(groups)
        sharing = len(range(place, count, len(groups)))
        own = {VISIBLE: ",".join(groups[place])}
        found.append(Share(_with_memory(words, sharing), own, alone=sharing > 1))
    return found


def _with_memory(words: Sequence[str], sharing: int) -> tuple[str, ...]:
    """Return the arguments with an equal part of the GPU's memory."""
    if sharing == 1:
        return tuple(words)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument(MEMORY, "--" + MEMORY[2:].replace("-", "_"), type=float, default=DEFAULT_MEMORY)
    given, rest = parser.parse_known_args(words)
    return (*rest, MEMORY, f"{given.gpu_memory_utilization / sharing:.4g}")


def _on_cpu(index: int, count: int, words: Sequence[str], environment: Mapping[str, str]) -> Share:
    gib = float(environment.get(CPU_MEMORY) or DEFAULT_CPU_GIB) / count
    own = {CPU_MEMORY: str(max(round(gib), 1))}
    cores = sorted(os.sched_getaffinity(0))
    if CPU_CORES not in environment and len(cores) >= count:
        part = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
        own[CPU_CORES] = ",".join(str(core) for core in part)
    return Share(tuple(words), own)
