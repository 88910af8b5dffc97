"""How a server is split over GPUs: vLLM's tensor, pipeline and data parallelism, and its refusals.

A server needs tensor × pipeline × data GPUs. With tensor parallelism t, pipeline parallelism p, n query heads, k
key-value heads, intermediate size f, vocabulary V and L layers, the most loaded GPU holds (vLLM's
`model_executor/layers` and `distributed/utils.py`):

    n / t heads,  max(1, k / t) key-value heads,  f / t of the MLP,  V / t of the embedding and of the head
    L / p layers, rounded up; norms are whole on every GPU
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from search_spaces import ModelShape
from tuner.engines.simulator.config.precision import ConfigRefused

_VOCABULARY_PADDING = 64
"""vLLM pads a vocabulary to a multiple of so many tokens before it splits it (`vocab_parallel_embedding.py`)."""

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class ParallelismRefused(ConfigRefused):
    """A server that cannot be split so, or not over the GPUs of the machine, whatever its other flags are."""


class TooFewGpus(ParallelismRefused):
    """Servers that need more GPUs than the machine has.

    Attributes:
        needed: the GPUs that they need.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Parallelism:
    """The degrees of parallelism of one server.

    Attributes:
        tensor: GPUs that share each layer.
        pipeline: groups of layers, each on its own GPUs.
        data: copies of the whole model, each with its own queue and KV cache.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def replica_gpus(self) -> int:
        """The GPUs of one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def gpus(self) -> int:
        """The GPUs of the server."""
        return self.replica_gpus * self.data


def find_parallelism(flags: Mapping[str, Any], model: ModelShape, gpus: int) -> Parallelism:
    """Return the parallelism of a command line.

    Args:
        flags: the command line, from `parse_flags`.
        model: the shape of the model.
        gpus: of the machine.

    Raises:
        ParallelismRefused: with vLLM's message if it has one, for a degree below 1, heads that cannot be divided, fewer
            layers than groups of layers, and more GPUs than the machine has.
    """
    tensor, pipeline, data = (_degree(name, flags[name]) for name in _DEGREES)
    if model.heads % tensor:
        raise ParallelismRefused(
            f"Total number of attention heads ({model.heads}) must be divisible by tensor parallel size ({tensor})."
        )
    if model.layers < pipeline:
        raise ParallelismRefused(
            f"pipeline_parallel_size ({pipeline}) is larger than the number of layers ({model.layers}); lower it"
        )
    parallel = Parallelism(tensor, pipeline, data)
    if parallel.replica_gpus > gpus:
        raise TooFewGpus(
            f"World size ({parallel.replica_gpus}) is larger than the number of available GPUs ({gpus}) in this node",
            parallel.gpus,
        )
    if parallel.gpus > gpus:
        raise TooFewGpus(
            f"DP adjusted local rank {gpus} is out of bounds for {gpus} devices ({data} copies of the model need "
            f"{parallel.gpus} GPUs)",
            parallel.gpus,
        )
    return parallel


def _degree(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise ParallelismRefused(f"{name}: Input should be greater than or equal to 1")
    return value or 1


def shard_of(model: ModelShape, parallel: Parallelism) -> ModelShape:
    """Return the shape of the most loaded GPU's part of a model; the model itself on one GPU."""
    if parallel.replica_gpus == 1:
        return model
    tensor = parallel.tensor
    padded = -(-model.vocab // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    return replace(
        model,
        layers=-(-model.layers // parallel.pipeline),
        intermediate=-(-model.intermediate // tensor),
        heads=model.heads // tensor,
        kv_heads=max(1, model.kv_heads // tensor),
        vocab=-(-padded // tensor) if tensor > 1 else model.vocab,
        # the first group of layers has the embedding and the last one the head, so that no GPU has both
        tied=model.tied or parallel.pipeline > 1,
    )


def uneven_part(model: ModelShape, tensor: int) -> str | None:
    """Return the line with which vLLM's workers end if a part of the model cannot be split evenly; None if all can."""
    if model.intermediate % tensor:
        return f"AssertionError: {model.intermediate} is not divisible by {tensor}"
    if max(model.kv_heads, tensor) % min(model.kv_heads, tensor):
        return f"AssertionError: of {model.kv_heads} key-value heads and {tensor} GPUs, neither divides the other"
    return None
