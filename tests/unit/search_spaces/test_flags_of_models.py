"""Flags of vLLM that only some models have: who is offered them, what vLLM refuses, and how they render.

Expected values were read in the sources of vLLM 0.15.1, 0.25.1 and 0.32.0.
"""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import Context, ModelShape, ParameterValue, ResolvedSpace, hardware_named, load_space
from search_spaces.catalogue.layers import Attention, Experts, LatentAttention, LayerGroup, Mlp, Recurrent
from tests.contracts.space_contract import QWEN, generous, reason, recorded_flags, values

VERSIONS = ("0.15.1", "0.25.1", "0.32.0+cpu")
PACKAGES = frozenset({"flashinfer", "deep_gemm", "deep_ep"})


def shape(group: LayerGroup | None = None, **changes: Any) -> ModelShape:
    """Return Qwen2.5-0.5B's shape with changed fields, and with layers of another kind."""
    return replace(QWEN, decoder=None if group is None else (group,), **changes)


DENSE = shape(hidden=3584, intermediate=18944, layers=28, heads=28, kv_heads=4, head_dim=128, tied=False)
ATTENTION, MLP = Attention(14, 2, 64), Mlp(4864)
EXPERTS = shape(LayerGroup(24, ATTENTION, Experts(128, 8, 768)), experts=128, hidden=2048, heads=32, kv_heads=4)
FP8_EXPERTS = replace(EXPERTS, quantization="fp8", weight_bits=8, weight_type="float", weight_blocks=True)
LATENT = shape(LayerGroup(24, LatentAttention(16, None, 512, 128, 64, 128), MLP), heads=16, kv_heads=16)
STATES = LayerGroup(12, Recurrent("mamba2", 10_000, 1_000, 30), MLP)
HYBRID = replace(DENSE, decoder=(LayerGroup(12, ATTENTION, MLP), STATES))
IMAGES = shape(beside=1_000_000)
ALL_KINDS = replace(
    EXPERTS,
    beside=1_000_000,
    decoder=(
        LayerGroup(12, LatentAttention(16, None, 512, 128, 64, 128), Experts(128, 8, 768)),
        STATES,
    ),
)


def space(model: ModelShape, card: str = "h200", version: str = "0.32.0+cpu", **facts: Any) -> ResolvedSpace:
    context = replace(generous(card, version), model=model, packages=PACKAGES, checkpoints={}, draft_model=None)
    name, wanted = facts.pop("name", "vllm"), facts.pop("wanted", ())
    return load_space(name).resolve(replace(context, **facts), wanted=dict.fromkeys(wanted))


def broken(resolved: ResolvedSpace, **config: ParameterValue) -> list[str]:
    return [each.rule for each in resolved.violations(config) if each.rule != "memory"]


OF_A_CARD = [
    *("performance_mode", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "prefix_caching", "block_size"),
    *("gpu_memory_utilization", "cudagraph_mode", "optimization_level", "capture_sizes", "capture_size_max"),
    *("attention_backend", "dtype", "quantization", "kv_cache_dtype", "speculative", "ngram_tokens", "ngram_max"),
    *(
        "ngram_min",
        "async_scheduling",
        "scheduling_policy",
        "stream_interval",
        "api_server_count",
        "flashinfer_sampler",
    ),
]
"""What one card offered a dense model before flags for other models came."""


@pytest.mark.parametrize(
    ("card", "version", "model", "missing"),
    [
        ("t4", "0.15.1", QWEN, {"performance_mode", "dtype", "kv_cache_dtype", "flashinfer_sampler"}),
        ("t4", "0.25.1", QWEN, {"dtype", "flashinfer_sampler"}),
        ("h200", "0.25.1", DENSE, set()),
        ("h200", "0.32.0+cpu", DENSE, set()),
    ],
)
def test_a_dense_model_has_the_space_that_it_had(card: str, version: str, model: ModelShape, missing: set[str]) -> None:
    resolved = space(model, card, version)
    assert [each.name for each in resolved.parameters] == [name for name in OF_A_CARD if name not in missing]
    kernels = {"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"}
    assert {*values(resolved, "attention_backend")} <= {None, *kernels}
    assert {*values(resolved, "kv_cache_dtype")} <= {None, "fp8", "int8_per_token_head"}
    assert resolved.known_defaults()["prefix_caching"] is True


def test_two_gpus_give_a_dense_model_their_sizes_only() -> None:
    more = {each.name for each in space(DENSE, gpus=2).parameters} - {*OF_A_CARD}
    assert more == {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}


@pytest.mark.parametrize(
    ("model", "version", "gpus", "more"),
    [
        (EXPERTS, "0.25.1", 1, {"moe_backend"}),
        (EXPERTS, "0.15.1", 1, set()),
        (FP8_EXPERTS, "0.15.1", 1, {"deep_gemm"}),
        (FP8_EXPERTS, "0.32.0+cpu", 1, {"moe_backend", "deep_gemm"}),
        (
            *(EXPERTS, "0.32.0+cpu", 2),
            {"moe_backend", "expert_parallel", "all2all_backend", "dbo", "dbo_decode_tokens", "dbo_prefill_tokens"},
        ),
        (LATENT, "0.32.0+cpu", 1, set()),
        (LATENT, "0.32.0+cpu", 2, {"decode_context_parallel_size"}),
        (HYBRID, "0.25.1", 1, {"mamba_cache_mode", "mamba_ssm_cache_dtype"}),
        (HYBRID, "0.32.0+cpu", 1, {"mamba_ssm_cache_dtype"}),
        (IMAGES, "0.32.0+cpu", 1, set()),
    ],
)
def test_a_model_gets_the_flags_of_its_kind(model: ModelShape, version: str, gpus: int, more: set[str]) -> None:
    offered = {each.name for each in space(model, version=version, gpus=gpus).parameters}
    plain = {each.name for each in space(DENSE, version=version, gpus=gpus).parameters}
    assert offered - plain == more
    without = {id(HYBRID): {"block_size"}, id(FP8_EXPERTS): {"quantization"}}
    assert plain - offered == without.get(id(model), set())


def test_a_model_that_is_not_known_gets_none_of_them() -> None:
    resolved = load_space("vllm").resolve(Context(hardware_named("h200"), "0.32.0", gpus=8))
    assert reason(resolved, "moe_backend") == "the model's experts are not known"
    assert reason(resolved, "decode_context_parallel_size") == "the model's attention is not known"
    assert reason(resolved, "mamba_ssm_cache_dtype") == "the model's layers are not known"
    assert "as far as is known" in reason(resolved, "attention_backend", "FLASHMLA")
    assert "TRITON_ATTN" in values(resolved, "attention_backend")


@pytest.mark.parametrize(
    ("card", "model", "kernels"),
    [
        ("h200", EXPERTS, (None, "triton", "marlin", "flashinfer_cutlass", "deep_gemm")),
        (
            "h200",
            replace(EXPERTS, quantization="mxfp4", weight_bits=4, weight_type="float"),
            (None, "triton", "marlin"),
        ),
        ("l4", EXPERTS, (None, "triton", "marlin")),
        ("a100", EXPERTS, ()),
        ("h200", replace(EXPERTS, quantization="awq", weight_bits=4, weight_type="int"), ()),
    ],
)
def test_kernels_of_experts_by_card_and_format(
    card: str, model: ModelShape, kernels: tuple[ParameterValue, ...]
) -> None:
    found = values(space(model, card), "moe_backend")
    assert found[: len(kernels)] == kernels
    assert bool(found) is bool(kernels)


@pytest.mark.parametrize(
    ("model", "config", "rules"),
    [
        (EXPERTS, {"moe_backend": "flashinfer_cutlass"}, []),
        (EXPERTS, {"moe_backend": "marlin"}, ["kernels-of-16-bit-experts"]),
        (EXPERTS, {"moe_backend": "triton"}, ["default-kernels-of-experts"]),
        (EXPERTS, {"moe_backend": "triton", "quantization": "fp8"}, ["default-kernels-of-experts"]),
        (EXPERTS, {"moe_backend": "marlin", "quantization": "fp8"}, []),
        (EXPERTS, {"moe_backend": "flashinfer_cutlass", "quantization": "fp8"}, ["flashinfer-needs-static-scales"]),
        (EXPERTS, {"moe_backend": "flashinfer_cutlass", "quantization": "fp8_per_block"}, []),
        (EXPERTS, {"moe_backend": "deep_gemm", "quantization": "fp8_per_block"}, []),
        (EXPERTS, {"moe_backend": "deep_gemm", "quantization": "fp8"}, ["deep-gemm-needs-blocks"]),
        (FP8_EXPERTS, {"moe_backend": "deep_gemm"}, []),
        (replace(FP8_EXPERTS, weight_blocks=False), {"moe_backend": "deep_gemm"}, ["deep-gemm-needs-blocks"]),
    ],
)
def test_kernels_go_with_number_formats(model: ModelShape, config: dict[str, ParameterValue], rules: list[str]) -> None:
    assert broken(space(model), **config) == rules


def test_experts_over_engines() -> None:
    """8 GPUs hold 128 experts and 8 or 16 copies evenly; 6 GPUs do not."""
    resolved = space(EXPERTS, gpus=8, wanted=("eplb", "eplb_redundant_experts", "eplb_step_interval"))
    spread: dict[str, ParameterValue] = {"data_parallel_size": 8, "expert_parallel": True}
    low: dict[str, ParameterValue] = {
        **spread,
        "all2all_backend": "deepep_low_latency",
        "dbo": True,
        "dbo_decode_tokens": 8,
    }
    assert resolved.render(low).argv == (
        *("--data-parallel-size", "8", "--enable-expert-parallel", "--all2all-backend", "deepep_low_latency"),
        *("--enable-dbo", "--dbo-decode-token-threshold", "8"),
    )
    assert resolved.render(
        {"tensor_parallel_size": 8, "expert_parallel": True, "all2all_backend": "deepep_low_latency"}
    ).argv == (*("--tensor-parallel-size", "8", "--enable-expert-parallel"),)
    assert not resolved.contains({**spread, "dbo": True})
    assert broken(resolved, **low, moe_backend="marlin", quantization="fp8") == ["deep-ep-without-kernels"]
    balanced: dict[str, ParameterValue] = {
        **spread,
        "eplb": True,
        "eplb_redundant_experts": 16,
        "eplb_step_interval": 300,
    }
    assert resolved.render(balanced).argv == (
        *("--data-parallel-size", "8", "--enable-expert-parallel", "--enable-eplb"),
        *("--eplb-config", '{"num_redundant_experts":16,"step_interval":300}'),
    )
    assert broken(resolved, **balanced) == []
    odd = space(replace(EXPERTS, experts=60), gpus=8, wanted=("eplb", "eplb_redundant_experts"))
    assert broken(odd, **spread, eplb=True) == ["balanced-experts-divide"]
    assert broken(odd, data_parallel_size=4, expert_parallel=True, eplb=True) == []


def test_load_balancing_is_offered_on_request_only() -> None:
    resolved = space(EXPERTS, gpus=2)
    assert "750 steps" in reason(resolved, "eplb", value=True)
    assert "no offered value makes that true" in reason(resolved, "eplb_redundant_experts")
    assert "DeepSeek" in reason(resolved, "expert_placement", "round_robin")
    assert reason(space(EXPERTS, gpus=2, packages=frozenset()), "all2all_backend") == (
        "DeepEP is not installed in vLLM's environment"
    )
    odd = space(replace(EXPERTS, hidden=2880), gpus=2)
    assert values(odd, "all2all_backend") == (None, "deepep_high_throughput")


def test_latent_attention_has_kernels_of_its_own() -> None:
    resolved = space(LATENT)
    assert values(resolved, "attention_backend") == (None, "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
    assert values(resolved, "kv_cache_dtype") == (None, "fp8")
    assert not resolved.contains({"attention_backend": "FLASH_ATTN_MLA", "kv_cache_dtype": "fp8"})
    assert resolved.contains({"attention_backend": "FLASHMLA", "kv_cache_dtype": "fp8"})
    old = space(LATENT, "l4", "0.15.1")
    assert values(old, "attention_backend") == (None, "TRITON_MLA")
    assert broken(old, attention_backend="TRITON_MLA", kv_cache_dtype="fp8") == ["triton-mla-fp8-kv"]
    simulated = space(LATENT, simulated=True)
    assert values(simulated, "attention_backend") == values(resolved, "attention_backend")
    assert broken(resolved, attention_backend="FLASHMLA", block_size=32) == ["mla-block-size"]
    assert broken(resolved, attention_backend="FLASHMLA", block_size=128) == []


@pytest.mark.parametrize(
    ("heads", "kv_heads", "config", "rules"),
    [
        (16, 16, {"tensor_parallel_size": 8, "decode_context_parallel_size": 4}, []),
        (
            *(16, 16, {"tensor_parallel_size": 4, "decode_context_parallel_size": 8}),
            ["context-parallel-divides-tensor-parallel"],
        ),
    ],
)
def test_latent_caches_are_shared(
    heads: int, kv_heads: int, config: dict[str, ParameterValue], rules: list[str]
) -> None:
    resolved = space(replace(LATENT, heads=heads, kv_heads=kv_heads), gpus=8)
    assert broken(resolved, **config) == rules


def test_other_caches_are_shared_by_the_gpus_that_have_the_same_heads() -> None:
    """With 2 key-value heads, 8 GPUs hold each 4 times, and up to 4 share its tokens; 2 do not divide 7 query heads."""
    wanted = ("decode_context_parallel_size",)
    two = space(replace(DENSE, heads=32, kv_heads=2), gpus=8, wanted=wanted)
    assert broken(two, tensor_parallel_size=8, decode_context_parallel_size=4) == []
    assert broken(two, tensor_parallel_size=8, decode_context_parallel_size=8) == ["context-parallel-heads"]
    assert broken(two, tensor_parallel_size=4, decode_context_parallel_size=4) == ["context-parallel-heads"]
    attention: dict[str, ParameterValue] = {
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 2,
        "attention_backend": "TRITON_ATTN",
    }
    assert broken(two, **attention) == ["context-parallel-attention"]
    seven = space(replace(DENSE, heads=28, kv_heads=4), gpus=8, wanted=wanted)
    assert broken(seven, tensor_parallel_size=8, decode_context_parallel_size=2) == ["context-parallel-heads"]
    none = space(replace(DENSE, kv_heads=8), gpus=8, wanted=wanted)
    assert reason(none, "decode_context_parallel_size").startswith("each GPU has key-value heads of its own")
    windowed = space(shape(LayerGroup(24, Attention(14, 2, 64, window=128), MLP)), gpus=8, wanted=wanted)
    assert "sliding windows" in reason(windowed, "decode_context_parallel_size")


def test_layers_with_a_state() -> None:
    old, new = space(HYBRID, version="0.25.1"), space(HYBRID)
    assert old.known_defaults()["prefix_caching"] is False
    assert new.known_defaults()["prefix_caching"] is True
    assert values(old, "mamba_cache_mode") == (None, "all", "align")
    assert reason(new, "mamba_cache_mode") == "vLLM 0.32.0 has the mode align only"
    assert not old.contains({"mamba_cache_mode": "align"})  # without prefix caching
    assert old.render({"prefix_caching": True, "mamba_cache_mode": "align"}).argv == (
        *("--enable-prefix-caching", "--mamba-cache-mode", "align"),
    )
    assert broken(new, chunked_prefill=False, max_num_batched_tokens=32768) == ["unchunked-states"]
    assert broken(old, chunked_prefill=False, max_num_batched_tokens=32768) == []
    assert values(space(HYBRID, version="0.15.1"), "mamba_ssm_cache_dtype") == (None, "float32", "float16")
    ancient = space(HYBRID, version="0.15.1")
    assert broken(ancient, prefix_caching=True, speculative="ngram", ngram_tokens=4) == ["prefix-states-with-drafts"]
    assert broken(ancient, speculative="ngram", ngram_tokens=4) == []


def test_images_are_on_request() -> None:
    assert reason(space(IMAGES), "mm_processor_cache_gb", 8).startswith("the load sends no images")
    wanted = ("mm_processor_cache_gb", "mm_processor_cache_type")
    resolved = space(IMAGES, shm_gib=2.0, wanted=wanted)
    assert resolved.render({"mm_processor_cache_gb": 0}).argv == ("--mm-processor-cache-gb", "0")
    assert broken(resolved, mm_processor_cache_type="shm") == ["images-in-shared-memory"]
    assert reason(space(DENSE), "mm_processor_cache_gb") == "the model takes no images"


def test_rare_flags_of_vllm_extra() -> None:
    resolved = space(FP8_EXPERTS, gpus=2, name="vllm-extra")
    assert resolved.render({"tensor_parallel_size": 2, "custom_all_reduce": False}).argv == (
        *("--tensor-parallel-size", "2", "--disable-custom-all-reduce"),
    )
    assert values(resolved, "linear_backend") == (
        *(None, "cutlass", "flashinfer_cutlass", "deep_gemm", "marlin", "triton", "torch"),
    )
    assert resolved.render({"kv_cache_memory_gib": 16}).argv == ("--kv-cache-memory-bytes", str(16 * 2**30))
    assert not resolved.contains({"kv_cache_memory_gib": 16, "gpu_memory_utilization": 0.9})
    set_by_the_study = space(DENSE, name="vllm-extra", base_argv=("--disable-custom-all-reduce",), gpus=2)
    assert reason(set_by_the_study, "custom_all_reduce") == "the study's own server arguments set it"
    dense = space(DENSE, name="vllm-extra")
    assert dense.render({"linear_backend": "machete"}).argv == ()  # no layer is quantized
    assert broken(dense, linear_backend="machete", quantization="fp8") == ["linear-kernels-without-the-format"]
    # 28 layers × 4 heads × 128 × 2 × 2 bytes × 131,072 tokens = 7 GiB
    long = space(replace(DENSE, max_position_embeddings=131072), name="vllm-extra")
    assert broken(long, kv_cache_memory_gib=4) == ["kv-cache-below-one-request"]
    assert broken(long, kv_cache_memory_gib=8) == []


PARENTS: dict[str, dict[str, ParameterValue]] = {
    "all2all_backend": {"data_parallel_size": 2, "expert_parallel": True},
    "dbo": {"data_parallel_size": 2, "expert_parallel": True, "all2all_backend": "deepep_low_latency", "dbo": True},
    "eplb": {"tensor_parallel_size": 2, "expert_parallel": True, "eplb": True},
    "expert_placement": {"tensor_parallel_size": 2, "expert_parallel": True},
    "decode_context": {"tensor_parallel_size": 2},
    "custom_all_reduce": {"tensor_parallel_size": 2},
    "mamba_cache_mode": {"prefix_caching": True},
    "mamba_block_size": {"prefix_caching": True, "mamba_cache_mode": "all"},
}


@pytest.mark.parametrize(("version", "least"), [("0.15.1", 50), ("0.25.1", 60), ("0.32.0+cpu", 55)])
def test_vllm_s_own_parser_takes_every_value(version: str, least: int) -> None:
    flags = recorded_flags(version.removesuffix("+cpu"))
    new = ("_backend", "deep_gemm", "dbo", "eplb", "expert", "decode_context", "mamba", "mm_", "custom", "kv_cache")
    names = [name for name in load_space("vllm-extra").parameter_names if any(part in name for part in new)]
    tried = 0
    for model in (ALL_KINDS, FP8_EXPERTS):
        resolved = space(model, version=version, gpus=8, name="vllm-extra", wanted=names, shm_gib=64.0)
        for parameter in (each for each in resolved.parameters if each.name in names):
            parents = next((each for prefix, each in PARENTS.items() if parameter.name.startswith(prefix)), {})
            for value in parameter.values:
                rendered = resolved.render({**parents, parameter.name: value})
                assert flags.problem(rendered.argv) is None, rendered.argv
                tried += bool(rendered.argv or rendered.environment)
    assert tried > least
