"""The flags of vLLM that a study gets by choice: their values, rules, reasons and rendered form."""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces import Context, ParameterValue, ResolvedSpace, load_space
from tests.contracts.space_contract import QWEN, generous, reason, recorded_flags, values

HOST = {"host_memory_gib": 160.0, "shm_gib": 64.0}
LARGE = replace(QWEN, heads=16, kv_heads=8, experts=6)


def extra(card: str = "h200", version: str = "0.32.0+cpu", **facts: Any) -> ResolvedSpace:
    context = generous(card, version)
    return load_space("vllm-extra").resolve(replace(context, **{**HOST, **facts}))


def broken(space: ResolvedSpace, config: dict[str, ParameterValue]) -> list[str]:
    return [violation.rule for violation in space.violations(config)]


def test_the_default_space_has_none_of_them() -> None:
    more = set(load_space("vllm-extra").parameter_names) - set(load_space("vllm").parameter_names)
    assert {"kv_offloading_size", "fuse_norm_quant", "max_num_queued_reqs", "calculate_kv_scales"} <= more
    assert len(more) == 25


def test_offloading_fits_the_host_and_its_shared_memory() -> None:
    """80 % of 160 GiB are 128; in 0.32 the blocks are in /dev/shm, of 64 GiB."""
    assert values(extra(), "kv_offloading_size") == (None, 8, 16, 32, 64)
    assert values(extra(version="0.25.1"), "kv_offloading_size") == (None, 8, 16, 32, 64, 128)
    assert "which has 64.0 GiB here, and 128 are more" in reason(extra(), "kv_offloading_size", 128)
    assert "256 GiB are more than 80 % of the host's 160.0 GiB" in reason(extra(), "kv_offloading_size", 256)
    assert values(extra(host_memory_gib=None, shm_gib=None), "kv_offloading_size") == (None, 8, 16, 32, 64, 128, 256)
    assert "vLLM refuses it on a CPU" in reason(extra("cpu"), "kv_offloading_size")


def test_offloading_renders_with_its_backend() -> None:
    space = extra(version="0.15.1", packages=frozenset({"lmcache"}))
    assert space.render({"kv_offloading_size": 32, "kv_offloading_backend": "lmcache"}).argv == (
        *("--kv-offloading-size", "32"),
        *("--kv-offloading-backend", "lmcache"),
    )
    assert space.render({"kv_offloading_backend": "lmcache"}).argv == ()
    newer = extra(packages=frozenset({"lmcache"}))
    assert "server of LMCache on port 5555" in reason(newer, "kv_offloading_backend", "lmcache")


def test_copies_of_the_model_share_the_host() -> None:
    """Two engines with 64 GiB each need 128 of 160 GiB, which is 80 %; three instances need 192."""
    space = extra("l4", gpus=4, packages=frozenset({"haproxy"}), flags=None)
    assert broken(space, {"kv_offloading_size": 64, "data_parallel_size": 2}) == []
    assert broken(space, {"kv_offloading_size": 64, "data_parallel_size": 4}) == ["offloaded-blocks-above-host-memory"]
    assert broken(space, {"kv_offloading_size": 64, "instances": 4}) == ["offloaded-blocks-above-host-memory"]


@pytest.mark.parametrize(
    ("gpus", "config", "least"),
    [
        (1, {}, 128),
        (1, {"gpu_memory_utilization": 0.6}, 128),
        (1, {"instances": 2}, 64),
        (2, {"tensor_parallel_size": 2}, 256),
        (2, {"instances": 2}, 128),
    ],
)
def test_the_host_holds_more_than_the_gpu(gpus: int, config: dict[str, ParameterValue], least: int) -> None:
    """85 % of an H200's 140 GiB times 0.92, less 1 GiB of weights, are 109 GiB; times 0.6, 71 GiB; halves, 54 GiB."""
    space = extra(version="0.25.1", host_memory_gib=1000.0, gpus=gpus, packages=frozenset({"haproxy"}), flags=None)
    rules = {size: broken(space, {"kv_offloading_size": size, **config}) for size in (32, 64, 128, 256)}
    kept = [size for size, found in rules.items() if "offloaded-blocks-that-the-gpu-holds" not in found]
    assert min(kept) == least


def test_passes_and_kernels_make_one_object_with_the_graphs() -> None:
    config: dict[str, ParameterValue] = {
        "quantization": "fp8",
        "cudagraph_mode": "FULL",
        "fuse_norm_quant": True,
        "fuse_act_quant": False,
        "activation_kernel": "+silu_and_mul",
        "quantization_kernel": "+quant_fp8",
        "capture_sizes": "exact",
        "max_num_seqs": 8,
    }
    assert extra().render(config).argv == (
        *("--max-num-seqs", "8", "--quantization", "fp8"),
        *("--cudagraph-capture-sizes", "1", "2", "4", "8"),
        "--compilation-config",
        '{"cudagraph_mode":"FULL","custom_ops":["+silu_and_mul","+quant_fp8"],'
        '"pass_config":{"fuse_act_quant":false,"fuse_norm_quant":true}}',
    )
    assert extra().render({"fuse_norm_quant": True}).argv == ()
    assert extra().render({"cudagraph_mode": "eager", "activation_kernel": "+silu_and_mul"}).argv == (
        "--enforce-eager",
    )


def test_kernels_that_change_nothing_are_dropped() -> None:
    """From 0.25 on, `+rms_norm` runs the same code as without; on a CPU, so does `+silu_and_mul` in each version."""
    config: dict[str, ParameterValue] = {"norm_kernel": "+rms_norm"}
    assert extra(version="0.15.1").render(config).argv == ("--compilation-config", '{"custom_ops":["+rms_norm"]}')
    for version in ("0.25.1", "0.32.0+cpu"):
        why = reason(extra(version=version), "norm_kernel")
        assert why.startswith(f"vLLM {version.removesuffix('+cpu')} chooses the kernel of a norm by --kernel-config")
    cpu = extra("cpu")
    assert "no kernel of its own" in reason(cpu, "activation_kernel")
    assert cpu.render({"rotary_kernel": "+rotary_embedding"}).argv == (
        "--compilation-config",
        '{"custom_ops":["+rotary_embedding"]}',
    )
    assert "kernels-of-vllm" in extra().named


def test_passes_that_the_card_or_the_gpus_lack_are_dropped() -> None:
    assert "which exchanges nothing" in reason(extra(), "fuse_allreduce_norm")
    assert values(extra(gpus=2), "fuse_allreduce_norm") == (None, False)
    assert "needs compute capability 9.0, NVIDIA L4 has 8.9" in reason(extra("l4", gpus=2), "fuse_allreduce_norm")
    assert "does not model compile passes" in reason(extra(simulated=True), "fuse_norm_quant")


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        ({"max_num_active_seqs": 128, "max_num_seqs": 64}, ["active-above-seqs"]),
        ({"max_num_active_seqs": 64, "max_num_seqs": 64}, []),
        ({"long_prefill_token_threshold": 8192, "max_model_len": 4096}, ["long-prefill-above-length"]),
        ({"long_prefill_token_threshold": 4096, "max_model_len": 4096}, []),
        ({"max_num_queued_reqs": 32}, ["queue-below-seqs"]),
        ({"max_num_queued_reqs": 64}, []),
        ({"max_num_queued_reqs": 32, "max_num_seqs": 32}, []),
        ({"flash_attn_version": 2, "kv_cache_dtype": "fp8"}, ["flash-attn-2-fp8-kv"]),
    ],
)
def test_rules(config: dict[str, ParameterValue], rules: list[str]) -> None:
    """50 requests are in flight."""
    assert broken(extra(), config) == rules


def test_a_prompt_must_fit_the_queue() -> None:
    assert broken(extra(input_len=20_000), {"max_num_queued_tokens": 16_384}) == ["prompt-above-queued-tokens"]
    assert broken(extra(), {"max_num_queued_tokens": 16_384}) == []


def test_admission_and_attention_render() -> None:
    config: dict[str, ParameterValue] = {
        "max_num_active_seqs": 32,
        "long_prefill_token_threshold": 1024,
        "adaptive_prefill_threshold": True,
        "reserve_whole_prompt": False,
        "watermark": 0.02,
        "flash_attn_version": 2,
    }
    assert extra().render(config).argv == (
        *("--max-num-active-seqs", "32", "--long-prefill-token-threshold", "1024"),
        *("--long-prefill-token-threshold-adaptive", "--no-scheduler-reserve-full-isl", "--watermark", "0.02"),
        *("--attention-config", '{"flash_attn_version":2}'),
    )


@pytest.mark.parametrize(
    ("version", "dropped"),
    [
        ("0.15.1", {"max_num_active_seqs", "reserve_whole_prompt", "watermark", "ngram_on_gpu"}),
        ("0.25.1", {"max_num_active_seqs", "max_num_queued_reqs", "max_num_queued_tokens"}),
        ("0.32.0+cpu", {"calculate_kv_scales"}),
    ],
)
def test_versions_lack_some(version: str, dropped: set[str]) -> None:
    assert dropped <= {each.parameter for each in extra(version=version).dropped if each.value is None}


def test_scales_and_ngrams_on_the_gpu() -> None:
    space = extra(version="0.25.1")
    assert space.render({"kv_cache_dtype": "fp8", "calculate_kv_scales": True}).argv == (
        *("--kv-cache-dtype", "fp8"),
        "--calculate-kv-scales",
    )
    assert space.render({"speculative": "ngram", "ngram_tokens": 3, "ngram_on_gpu": True}).argv == (
        "--speculative-config",
        '{"method":"ngram_gpu","num_speculative_tokens":3}',
    )
    assert "phi4-5-scales" in space.named
    assert "phi4-5-scales" not in extra().named


@pytest.mark.parametrize(
    ("facts", "offered", "config", "content"),
    [
        ({"draft_kind": "model"}, {"draft"}, "draft", '"method":"draft_model","model":"a/draft"'),
        ({"draft_kind": "eagle3"}, {"eagle3"}, "eagle3", '"method":"eagle3","model":"a/draft"'),
        ({"draft_kind": "mtp"}, {"mtp-draft"}, "mtp-draft", '"method":"mtp","model":"a/draft"'),
        ({"draft_model": None, "model": replace(QWEN, draft_layers=1)}, {"mtp"}, "mtp", '"method":"mtp"'),
        ({"draft_kind": "eagle"}, set(), None, ""),
    ],
)
def test_a_draft_checkpoint_is_used_as_what_it_is(
    facts: dict[str, Any], offered: set[str], config: str | None, content: str
) -> None:
    space = load_space("vllm").resolve(replace(generous("h200", "0.32.0+cpu"), **facts))
    assert set(values(space, "speculative")) == {"off", "ngram", "suffix"} | offered
    if config is not None:
        argv = space.render({"speculative": config, "draft_tokens": 2}).argv
        assert argv == ("--speculative-config", f'{{{content},"num_speculative_tokens":2}}')


def test_experts_are_spread_over_the_gpus_of_one_model() -> None:
    def space(gpus: int, **facts: Any) -> ResolvedSpace:
        return load_space("vllm").resolve(replace(generous("h200", "0.32.0+cpu"), gpus=gpus, model=LARGE, **facts))

    assert space(4).render({"tensor_parallel_size": 2, "expert_parallel": True}).argv == (
        *("--tensor-parallel-size", "2"),
        "--enable-expert-parallel",
    )
    assert space(4).render({"expert_parallel": True}).argv == ()
    assert broken(space(8), {"tensor_parallel_size": 8, "expert_parallel": True}) == [
        "more-experts-parallel-than-experts"
    ]
    assert broken(space(8), {"tensor_parallel_size": 4, "expert_parallel": True}) == []
    dense = load_space("vllm").resolve(replace(generous("h200", "0.32.0+cpu"), gpus=2))
    assert reason(dense, "expert_parallel") == "the model has no experts, and vLLM refuses the flag"
    assert "--gpus-per-trial" in reason(space(1), "expert_parallel")


def test_a_rare_value_is_offered_to_a_study_that_asks() -> None:
    context: Context = generous("h200", "0.32.0+cpu")
    vllm = load_space("vllm")
    assert "fp8_per_channel" not in values(vllm.resolve(context), "quantization")
    assert "one scale for each output channel" in reason(vllm.resolve(context), "quantization", "fp8_per_channel")
    asked = vllm.resolve(context, wanted={"quantization": None})
    assert asked.render({"quantization": "fp8_per_channel"}).argv == ("--quantization", "fp8_per_channel")
    assert "fp8_per_channel" in values(vllm.resolve(context, only=("quantization",)), "quantization")


@pytest.mark.parametrize("version", ["0.15.1", "0.25.1", "0.32.0+cpu"])
def test_vllm_s_own_parser_takes_every_value(version: str) -> None:
    """Conditions are met by values of other parameters, which are rendered with them."""
    flags = recorded_flags(version.removesuffix("+cpu"))
    space = extra(version=version, gpus=2, model=LARGE, draft_kind="model", packages=frozenset({"arctic_inference"}))
    others: dict[str, dict[str, ParameterValue]] = {
        "suffix": {"speculative": "suffix"},
        "ngram": {"speculative": "ngram"},
        "draft": {"speculative": "draft"},
        "calculate": {"kv_cache_dtype": "fp8"},
        "fuse": {"quantization": "fp8", "tensor_parallel_size": 2},
        "quantization_kernel": {"quantization": "fp8"},
        "adaptive": {"long_prefill_token_threshold": 512},
        "expert": {"tensor_parallel_size": 2},
        "prefill": {"data_parallel_size": 2},
        "capture_size_max": {"capture_sizes": "up_to"},
        "kv_offloading_backend": {"kv_offloading_size": 8},
    }
    tried = 0
    for parameter in space.parameters:
        parents = next((each for prefix, each in others.items() if parameter.name.startswith(prefix)), {})
        for value in parameter.values or (parameter.spec.low,):
            rendered = space.render({**parents, parameter.name: value}).argv
            assert flags.problem(rendered) is None, rendered
            tried += bool(rendered)
    assert tried > 70
