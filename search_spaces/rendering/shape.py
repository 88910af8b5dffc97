"""The GPUs and instances of a command line of vLLM."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SIZES = {
    "--tensor-parallel-size": "-tp",
    "--pipeline-parallel-size": "-pp",
    "--data-parallel-size": "-dp",
}
"""The flags whose product is the number of GPUs, with their short forms."""


def gpus_of(argv: Sequence[str]) -> int:
    """Return the GPUs that a server's arguments need: tensor × pipeline × data parallelism, 1 without such flags.

    The last value of a flag counts, as in vLLM. A value that is no number above 0 counts as 1; vLLM refuses it.
    """
    return math.prod(_size(argv, (flag, short)) for flag, short in _SIZES.items())


def nodes_of(argv: Sequence[str], each: int, nodes: int) -> int:
    """Return over how many nodes a server spreads: the fewest that hold an equal part of its GPUs; `nodes` if none do.

    Args:
        argv: its arguments.
        each: GPUs of one node.
        nodes: most of them.
    """
    needed = gpus_of(argv)
    return next((n for n in range(1, nodes + 1) if needed % n == 0 and needed // n <= each), nodes)


def tensor_parallel_size(argv: Sequence[str]) -> int:
    """Return the GPUs that share each layer; 1 without the flag."""
    return _size(argv, ("--tensor-parallel-size", _SIZES["--tensor-parallel-size"]))


def data_parallel_size(argv: Sequence[str]) -> int:
    """Return the copies of the model; 1 without the flag."""
    return _size(argv, ("--data-parallel-size", _SIZES["--data-parallel-size"]))


INSTANCES = "--instances"
"""The flag of `tuner-vllm-instances` with the number of servers; `vllm` itself lacks it."""


def instances_of(argv: Sequence[str]) -> int:
    """Return how many servers a command line starts; 1 without the flag."""
    return _size(argv, (INSTANCES, INSTANCES))


def without_instances(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of each of the instances."""
    words = list(argv)
    while INSTANCES in words:
        place = words.index(INSTANCES)
        del words[place : place + 2]
    return tuple(words)


def _size(argv: Sequence[str], names: tuple[str, str]) -> int:
    size = 1
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") not in names:
            continue
        text = value if equals else next(iter(argv[index + 1 : index + 2]), "")
        size = int(text) if text.isdecimal() and int(text) else 1
    return size
