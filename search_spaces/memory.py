"""A lower bound on the memory of a configuration; only configurations that are certain to fail are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from search_spaces.argv import one_spelling
from search_spaces.catalogue.models import ModelShape
from search_spaces.expressions import VLLM_NAME, Context
from search_spaces.parameter import Names
from search_spaces.render import reachable_sizes
from search_spaces.schema import ParameterSpec
from search_spaces.units import GIB

_FULL_BITS = 16
_LOWEST_BITS = 4
_LOGIT_BYTES = 4
_ACTIVATION_BYTES = 2
_GRAPH_BYTES_PER_SIZE = 2**20
_FLAGS_WITHOUT_ESTIMATE = (
    *("--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--tensor-parallel-size", "--pipeline-parallel-size"),
    *("--cpu-offload-gb", "--offload-backend", "--offload-group-size", "--hf-overrides"),
)


@dataclass(frozen=True)
class MemoryNeed:
    """The parts of the lower bound, in bytes."""

    weights: int
    kv_cache: int
    activations: int
    graphs: int

    @property
    def total_gib(self) -> float:
        """The sum of the parts, in GiB."""
        return (self.weights + self.kv_cache + self.activations + self.graphs) / GIB


def memory_need(
    model: ModelShape,
    *,
    weight_bits: int,
    kv_bits: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    captured_sizes: int,
    shards: int = 1,
) -> MemoryNeed:
    """Return a lower bound of the memory that a server needs on each of its devices.

        weights                 (`ModelShape.weight_bytes`; none if they are not known)
        + KV cache              of one sequence of `max_model_len` tokens (`ModelShape.least_kv_bytes`); vLLM does not
                                start with less
        + max(MLP, logits)      MLP = max_num_batched_tokens × (2 × intermediate + hidden) × 2 bytes
                                logits = min(max_num_seqs, max_num_batched_tokens) × vocab × 4 bytes
                                (the MLP's only if the weights are known)
        + graphs                1 MiB for each captured size

    The `shards`, devices that share a model, divide all but the graphs. A server needs more than this: workspaces,
    fragmentation, libraries, graph pools, and what each of several devices has a copy of are left out.
    """
    known = model.has_known_weights
    mlp = max_num_batched_tokens * (2 * model.intermediate + model.hidden) * _ACTIVATION_BYTES if known else 0
    logits = min(max_num_seqs, max_num_batched_tokens) * model.vocab * _LOGIT_BYTES
    return MemoryNeed(
        weights=model.weight_bytes(weight_bits) // shards if known else 0,
        kv_cache=model.least_kv_bytes(max_model_len, kv_bits / 8) // shards,
        activations=max(mlp, logits) // shards,
        graphs=captured_sizes * _GRAPH_BYTES_PER_SIZE,
    )


def memory_shortfall(context: Context, names: Names, specs: Mapping[str, ParameterSpec]) -> str | None:
    """Return why a configuration cannot fit on the device; None if it may fit, or if facts are missing.

    Weights have the `weight_bits` of the chosen values and KV cache elements the `kv_bits`; without these, both have 16
    (vLLM casts wider checkpoints). A quantized checkpoint has the bits of its config.json, and 4 where it states none.
    Of a model that is not read, only the parts count that are certain. There is no estimate for a CPU,
    if the study's own arguments split the model or set the size of the KV cache, or for another engine than vLLM:
    llama.cpp leaves layers that do not fit on the CPU.
    """
    model, total = context.model, context.hardware.memory_gib
    if model is None or total is None or context.hardware.vendor == "cpu":
        return None
    if context.engine != VLLM_NAME:
        return None
    if any(word in _FLAGS_WITHOUT_ESTIMATE for word in one_spelling(context.base_argv)):
        return None
    shards = _size(names, "tensor_parallel_size") * _size(names, "pipeline_parallel_size")
    need = memory_need(
        model,
        weight_bits=_bits("weight_bits", names, specs, model.stored_bits, context.checkpoint_shapes),
        kv_bits=_bits("kv_bits", names, specs, model.cache_bits or _FULL_BITS),
        max_model_len=_size(names, "max_model_len"),
        max_num_batched_tokens=_size(names, "max_num_batched_tokens"),
        max_num_seqs=_size(names, "max_num_seqs"),
        captured_sizes=_captured_sizes(names),
        shards=shards,
    )
    share = names.effective("gpu_memory_utilization")
    budget = total * (share if isinstance(share, int | float) else 1.0)
    if need.total_gib <= budget:
        return None
    return (
        f"at least {need.total_gib:.2f} GiB are needed (weights {need.weights / GIB:.2f}, KV cache of one sequence "
        f"{need.kv_cache / GIB:.2f}, activations {need.activations / GIB:.2f}, graphs {need.graphs / GIB:.2f}), and "
        f"{budget:.2f} of {total:.2f} GiB are available; lower max_model_len or max_num_batched_tokens, or quantize"
    )


def _size(names: Names, parameter: str) -> int:
    value = names.effective(parameter)
    return value if isinstance(value, int) and value > 0 else 1


def _bits(
    attribute: str,
    names: Names,
    specs: Mapping[str, ParameterSpec],
    default: int,
    checkpoints: Mapping[str, ModelShape] = MappingProxyType({}),
) -> int:
    """Return the fewest bits of the chosen values: those of a choice's checkpoint, else the declared ones."""
    bits = [default]
    for name, spec in specs.items():
        if not any(getattr(choice, attribute) is not None for choice in spec.choices):
            continue
        declared = {choice.value: getattr(choice, attribute) for choice in spec.choices}
        shapes = {choice.value: checkpoints.get(choice.checkpoint or "") for choice in spec.choices}
        value = names.lookup(name)
        if value is None:
            continue
        given = declared.get(value) if isinstance(value, str) else None
        shape = shapes.get(value) if isinstance(value, str) else None
        bits.append(shape.stored_bits if shape is not None else _LOWEST_BITS if given is None else given)
    return min(bits)


def _captured_sizes(names: Names) -> int:
    """Return the least number of graph sizes that the configuration captures."""
    if names.lookup("cudagraph_mode") in ("eager", "NONE") or names.lookup("optimization_level") == 0:
        return 0
    if names.lookup("enforce_eager") or names.lookup("capture_sizes") not in (None, "exact"):
        return 0
    sequences = names.effective("max_num_seqs")
    concurrency = names.lookup("workload.concurrency")
    limits = [n for n in (sequences, concurrency) if isinstance(n, int)]
    return len(reachable_sizes(min(limits))) if limits else 0
