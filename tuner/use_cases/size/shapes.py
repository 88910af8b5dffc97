"""The shapes of a server on one machine: how its GPUs share the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from search_spaces import ModelShape

_TENSOR, _DATA, _EXPERTS = "--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel"
SHAPE_PARAMETERS = frozenset(
    {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel", "instances"}
)
"""Parameters of the search space that would change a shape."""


@dataclass(frozen=True)
class Shape:
    """A server of `gpus` GPUs, and the flags that make it so."""

    name: str
    gpus: int
    arguments: tuple[str, ...] = ()


ONE_GPU = Shape("one GPU", 1)


def shapes_of(model: ModelShape, most_gpus: int) -> Iterator[Shape]:
    """Yield the shapes for a model, of at most so many GPUs.

    A dense model has data parallelism over two GPUs only, which shows what a common queue brings: more copies are more
    servers. With experts, copies share them, and each number of GPUs is a shape of its own.
    """
    yield ONE_GPU
    for gpus in (2**power for power in range(1, most_gpus.bit_length())):
        tensor, data = (_TENSOR, str(gpus)), (_DATA, str(gpus))
        yield Shape(f"tensor parallel {gpus}", gpus, tensor)
        if model.is_mixture_of_experts:
            yield Shape(f"tensor and expert parallel {gpus}", gpus, (*tensor, _EXPERTS))
            yield Shape(f"data and expert parallel {gpus}", gpus, (*data, _EXPERTS))
        elif gpus == 2:
            yield Shape(f"data parallel {gpus}", gpus, data)
