"""A lower bound on the memory of a configuration; only configurations that are certain to fail are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search_spaces.argv import one_spelling
from search_spaces.catalogue.layers import LatentAttention, Mlp
from search_spaces.catalogue.models import ModelShape
from search_spaces.expressions import VLLM_NAME, Context
from search_spaces.parameter import Names
from search_spaces.render import reachable_sizes
from search_spaces.schema import ParameterSpec
from search_spaces.units import GIB

_FULL_BITS = 16
_LOWEST_BITS = 4
_SPARSE_BITS = 8
_LOGIT_BYTES = 4
_ACTIVATION_BYTES = 2
_GRAPH_BYTES_PER_SIZE = 2**20
_FLAGS_WITHOUT_ESTIMATE = (
    *("--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--tensor-parallel-size", "--pipeline-parallel-size"),
    *("--cpu-offload-gb", "--offload-backend", "--offload-group-size", "--hf-overrides"),
    *("--decode-context-parallel-size", "--prefill-context-parallel-size"),
    *("--mamba-cache-dtype", "--mamba-ssm-cache-dtype"),
)
_VALUES_WITHOUT_ESTIMATE = (
    *("kv_cache_memory_gib", "decode_context_parallel_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype"),
)
"""Parameters of a space that set what such a flag sets."""
_WITHOUT_ENCODERS = ("--language-model-only", "--limit-mm-per-prompt", "--mm-encoder-only")
"""Flags with which vLLM may leave encoders out."""


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
    weight_bits: float | None = None,
    kv_bits: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    captured_sizes: int,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
) -> MemoryNeed:
    """Return a lower bound of the memory that a server needs on each of its devices.

        weights                 (`ModelShape.weight_bytes`; `weight_bits` None: as stored)
        + KV cache              of one sequence of `max_model_len` tokens (`ModelShape.least_kv_bytes`); vLLM does not
                                start with less
        + max(MLP, logits)      MLP = max_num_batched_tokens × (2 × intermediate + hidden) × 2 bytes, of the widest
                                layer with a dense MLP
                                logits = min(max_num_seqs, max_num_batched_tokens) × vocab × 4 bytes
        + graphs                1 MiB for each captured size

    Devices that share a model divide all but the graphs. Latent vectors of a cache are not divided by `tensor`, and
    experts are divided by `data` too, in vLLM with and without expert parallelism. A server needs more than this:
    workspaces, fragmentation, libraries, graph pools, and what each of several devices has a copy of are left out. So
    are layers and formats that are not understood.
    """
    shards = tensor * pipeline
    experts = model.expert_bytes(weight_bits)
    weights = (model.weight_bytes(weight_bits) - experts + experts // data) // shards if model.has_known_weights else 0
    widths = [group.mlp.intermediate for group in model.groups if isinstance(group.mlp, Mlp)]
    mlp = (
        max_num_batched_tokens * (2 * max(widths, default=0) + model.hidden) * _ACTIVATION_BYTES if model.groups else 0
    )
    logits = min(max_num_seqs, max_num_batched_tokens) * model.vocab * _LOGIT_BYTES
    return MemoryNeed(
        weights=weights,
        kv_cache=model.least_kv_bytes(max_model_len, kv_bits / 8, tensor) // pipeline,
        activations=max(mlp, logits) // shards,
        graphs=captured_sizes * _GRAPH_BYTES_PER_SIZE,
    )


def memory_shortfall(context: Context, names: Names, specs: Mapping[str, ParameterSpec]) -> str | None:
    """Return why a configuration cannot fit on the device; None if it may fit, or if facts are missing.

    Weights have the `weight_bits` of the chosen values and KV cache elements the `kv_bits`; without these, both have 16
    (vLLM casts wider checkpoints). A quantized checkpoint has the bits of its config.json, and 4 where it states none.
    There is no estimate for a CPU, if the study's own arguments split the model, if these or a chosen value set the
    KV cache's size, its split over GPUs or the format of states, if the quantization is not understood, or for another
    engine than vLLM: llama.cpp leaves layers that do not fit on the CPU.
    """
    model, total = context.model, context.hardware.memory_gib
    if model is None or total is None or context.hardware.vendor == "cpu":
        return None
    if context.engine != VLLM_NAME:
        return None
    if any(word in _FLAGS_WITHOUT_ESTIMATE for word in one_spelling(context.base_argv)):
        return None
    if any(names.lookup(name) is not None for name in _VALUES_WITHOUT_ESTIMATE):
        return None
    without_encoders = any(word in _WITHOUT_ENCODERS for word in one_spelling(context.base_argv))
    parallel = {name: _size(names, f"{name}_parallel_size") for name in ("tensor", "pipeline", "data")}
    needs = [
        memory_need(
            replace(shape, beside=0) if without_encoders else shape,
            weight_bits=bits,
            kv_bits=min([_least_cache_bits(shape), *_chosen_bits("kv_bits", names, specs)]),
            max_model_len=_size(names, "max_model_len"),
            max_num_batched_tokens=_size(names, "max_num_batched_tokens"),
            max_num_seqs=_size(names, "max_num_seqs"),
            captured_sizes=_captured_sizes(names),
            **parallel,
        )
        for shape, bits in _served(model, names, specs, context.checkpoint_shapes)
    ]
    need = min(needs, key=lambda each: each.total_gib)
    share = names.effective("gpu_memory_utilization")
    budget = total * (share if isinstance(share, int | float) else 1.0)
    if need.total_gib <= budget:
        return None
    return (
        f"at least {need.total_gib:.2f} GiB are needed (weights {need.weights / GIB:.2f}, KV cache of one sequence "
        f"{need.kv_cache / GIB:.2f}, activations {need.activations / GIB:.2f}, graphs {need.graphs / GIB:.2f}), and "
        f"{budget:.2f} of {total:.2f} GiB are available; lower max_model_len or max_num_batched_tokens, or quantize"
    )


def _least_cache_bits(shape: ModelShape) -> int:
    """Return the bits of a number in the KV cache without a flag; vLLM may choose 8 itself for sparse attention."""
    sparse = any(isinstance(group.mixer, LatentAttention) and group.mixer.top for group in shape.groups)
    return shape.cache_bits or (_SPARSE_BITS if sparse else _FULL_BITS)


def _size(names: Names, parameter: str) -> int:
    value = names.effective(parameter)
    return value if isinstance(value, int) and value > 0 else 1


def _served(
    model: ModelShape, names: Names, specs: Mapping[str, ParameterSpec], checkpoints: Mapping[str, ModelShape]
) -> list[tuple[ModelShape, float | None]]:
    """Return the models that the chosen values may serve, each with the bits of its weights; None: as stored."""
    found: list[tuple[ModelShape, float | None]] = [(model, None)]
    for name, spec in specs.items():
        value = names.lookup(name)
        for choice in spec.choices:
            shape = checkpoints.get(choice.checkpoint or "") if choice.value == value else None
            if shape is not None:
                found.append((shape, None))
    if len(found) == 1:
        found += [(model, bits) for bits in _chosen_bits("weight_bits", names, specs)]
    return found


def _chosen_bits(attribute: str, names: Names, specs: Mapping[str, ParameterSpec]) -> list[int]:
    """Return the bits that the chosen values declare; the lowest ones for a value that declares none."""
    bits = []
    for name, spec in specs.items():
        value = names.lookup(name)
        if value is None or not any(getattr(choice, attribute) is not None for choice in spec.choices):
            continue
        declared = {choice.value: getattr(choice, attribute) for choice in spec.choices}
        given = declared.get(value) if isinstance(value, str) else None
        bits.append(_LOWEST_BITS if given is None else given)
    return bits


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
