"""The GPUs and instances of a command line of vLLM or SGLang."""

from __future__ import annotations

import math
from collections.abc import Sequence

from search_spaces.rendering.words import one_spelling, value_after

TENSOR, PIPELINE, DATA = "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"
SIZES = (TENSOR, PIPELINE, DATA, "--prefill-context-parallel-size")
"""The flags whose product is the number of GPUs."""


def gpus_of(argv: Sequence[str]) -> int:
    """Return the GPUs that arguments need, for each instance: the product of the sizes of parallelism, 1 without these.

    The last value of a flag counts, as in the engines. A value that is no number above 0 counts as 1; the engines
    refuse it.
    """
    words = one_spelling(argv)
    return math.prod(_size(words, flag) for flag in SIZES)


def nodes_of(argv: Sequence[str], each: int, nodes: int) -> int:
    """Return over how many nodes a server spreads: the fewest that hold an equal part of its GPUs.

    If no number of nodes fits, it is `nodes`.

    Args:
        argv: its arguments.
        each: GPUs of one node.
        nodes: the largest number.
    """
    needed = gpus_of(argv)
    return next((n for n in range(1, nodes + 1) if needed % n == 0 and needed // n <= each), nodes)


def tensor_parallel_size(argv: Sequence[str]) -> int:
    """Return the GPUs that share each layer; 1 without the flag."""
    return _size(one_spelling(argv), TENSOR)


def data_parallel_size(argv: Sequence[str]) -> int:
    """Return the copies of the model; 1 without the flag."""
    return _size(one_spelling(argv), DATA)


INSTANCES = "--instances"
"""The flag of `tuner-vllm-instances` with the number of servers; `vllm` itself lacks it."""


def instances_of(argv: Sequence[str]) -> int:
    """Return how many servers a command line starts; 1 without the flag."""
    return _size(one_spelling(argv), INSTANCES)


def without_instances(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of each of the instances."""
    words = [word for word in argv if not word.startswith(f"{INSTANCES}=")]
    while INSTANCES in words:
        place = words.index(INSTANCES)
        del words[place : place + 2]
    return tuple(words)


def wrong_size(argv: Sequence[str]) -> str | None:
    """Return a size of parallelism that is no whole number above 0, such as `--tensor-parallel-size x`; else None."""
    words = one_spelling(argv)
    for flag in SIZES:
        text = (value_after(flag, words) or "") if flag in words else "1"
        if not text.isdecimal() or not int(text):
            return f"{flag} {text}".rstrip()
    return None


def _size(words: Sequence[str], flag: str) -> int:
    text = (value_after(flag, words) if flag in words else None) or ""
    return int(text) if text.isdecimal() and int(text) else 1
