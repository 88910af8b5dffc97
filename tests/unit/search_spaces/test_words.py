"""Other spellings of flags: what the study's own arguments fix, whichever name they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from search_spaces import Context, hardware_named, load_space
from search_spaces.argv import dotted_object, one_spelling, value_after
from search_spaces.expressions import UNKNOWN
from search_spaces.render import fixed_values
from search_spaces.schema import ParameterSpec


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-tp", "2", "--pp-size=3"], ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "3"]),
        (["--max_num_seqs=8"], ["--max-num-seqs", "8"]),
        (["-O3"], ["--optimization-level", "3"]),
        (["-O=2"], ["--optimization-level", "2"]),
        (["-O", "1"], ["--optimization-level", "1"]),
        (["-O.pass_config.fuse_norm=true"], ["--compilation-config.pass_config.fuse_norm", "true"]),
        (["-cc.cudagraph_mode", "NONE"], ["--compilation-config.cudagraph_mode", "NONE"]),
        (["--config.kv_cache_config.dtype", "fp8"], ["--config.kv_cache_config.dtype", "fp8"]),
        (
            ["--chunked-prefill-size", "-1", "--watermark", "-.5"],
            ["--chunked-prefill-size", "-1", "--watermark", "-.5"],
        ),
        (["--env", "a=b_c"], ["--env", "a=b_c"]),  # a value is left as it is
    ],
)
def test_flags_have_their_long_names_with_dashes(argv: list[str], words: list[str]) -> None:
    assert one_spelling(argv) == words


def test_the_last_value_of_a_flag_counts() -> None:
    assert value_after("--a", ["--a", "1", "--b", "--a", "2"]) == "2"
    assert value_after("--a", ["--a", "1", "--a"]) is None
    assert value_after("--a", ["--a", "--b"]) is None


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (["--c", "{}"], None),
        (["--c.a.b", "1", "--x", "--c.a.d", "text"], {"a": {"b": 1, "d": "text"}}),
        (["--c.ops+", "+a,-b", "--c.ops+", "none"], {"ops": ["+a", "-b", "none"]}),
        (["--c.a", "1", "--c.a.b", "2"], {"a": {"b": 2}}),
        (["--c.a"], {"a": ""}),
    ],
)
def test_keys_with_dots_are_one_object(words: list[str], content: dict[str, Any] | None) -> None:
    assert dotted_object("--c", words) == content


def specs_of(space: str) -> Mapping[str, ParameterSpec]:
    resolved = load_space(space).resolve(Context(hardware_named("h200"), None, engine=load_space(space).engine))
    return resolved.specs


VLLM = [
    (["-tp", "2"], {"tensor_parallel_size": 2}),
    (["--max_num_seqs", "64"], {"max_num_seqs": 64}),
    (["--max-num-seqs", "64", "--max-num-seqs", "32"], {"max_num_seqs": 32}),
    (["--device-memory-utilization=0.8"], {"gpu_memory_utilization": 0.8}),
    (["-q", "fp8"], {"quantization": "fp8"}),
    (["--no_enable_prefix_caching"], {"prefix_caching": False}),
    (["--no-enable-prefix-caching", "--enable-prefix-caching"], {"prefix_caching": True}),  # the last one counts
    (["--enforce-eager"], {"cudagraph_mode": "eager"}),
    (["--no-enforce-eager"], {"cudagraph_mode": None}),
    (["--enforce-eager", "--no-enforce-eager"], {"cudagraph_mode": None}),
    (["--no-enable-expert-parallel"], {"expert_parallel": None}),
    (["--cudagraph-capture-sizes", "1", "2"], {"capture_sizes": UNKNOWN}),
    (["--max-cudagraph-capture-size", "16"], {"capture_sizes": UNKNOWN, "capture_size_max": 16}),
    (["-ac.backend", "FLASH_ATTN"], {"attention_backend": "FLASH_ATTN"}),
    (["-tp", "x"], {"tensor_parallel_size": UNKNOWN}),
]
OTHERS = [
    ("sglang", ["--tp-size", "4"], {"tensor_parallel_size": 4}),
    ("sglang", ["--dp-size", "2"], {"data_parallel_size": 2}),
    ("sglang", ["--dp-size", "2", "--enable-dp-attention"], {"data_parallel_size": 1}),
    ("llama.cpp", ["-kvu"], {"kv_unified": True}),
    ("llama.cpp", ["-no-kvu"], {"kv_unified": False}),
    ("llama.cpp", ["-np", "x"], {"parallel": UNKNOWN}),
    ("llama.cpp", ["-np", "4", "-ub", "256", "-c", "8192"], {"parallel": 4, "ubatch_size": 256, "ctx_size": 8192}),
    ("tensorrt-llm", ["--max_batch_size", "64"], {"max_batch_size": 64}),
]


@pytest.mark.parametrize(("space", "argv", "fixed"), [*(("vllm", *each) for each in VLLM), *OTHERS])
def test_any_name_of_a_flag_fixes_its_parameter(space: str, argv: list[str], fixed: dict[str, Any]) -> None:
    assert fixed_values(specs_of(space), argv) == fixed


def test_a_part_of_a_json_object_fixes_all_that_the_space_has_of_it() -> None:
    """vLLM replaces the flag's own object by that of the parts, so that a trial's value would count for nothing."""
    specs = specs_of("vllm")
    fixed = fixed_values(specs, ["-sc.method", "ngram", "--speculative-config.num_speculative_tokens=4"])
    assert fixed["speculative"] == "ngram"
    assert set(fixed) == {
        name
        for name, spec in specs.items()
        if spec.json_target is not None and spec.json_target.flag == "--speculative-config"
    }
    assert fixed_values(specs, ["--speculative-config", "no json"])["speculative"] is UNKNOWN


def test_sizes_in_the_compilation_config_leave_no_others_to_choose() -> None:
    fixed = fixed_values(specs_of("vllm"), ["-cc.cudagraph_capture_sizes", "[1,2]", "-cc.cudagraph_mode=FULL"])
    assert (fixed["capture_sizes"], fixed["cudagraph_mode"]) == (UNKNOWN, "FULL")
    graphs = fixed_values(specs_of("vllm"), ["--no-enforce-eager", "-cc", '{"cudagraph_mode": "FULL"}'])
    assert graphs["cudagraph_mode"] == "FULL"


def test_a_fixed_parallelism_counts_in_the_rule_of_a_trial_s_gpus() -> None:
    for argv in (("-tp", "2"), ("--tensor_parallel_size=2",), ("--tensor-parallel-size", "2")):
        space = load_space("vllm").resolve(Context(hardware_named("h200"), "0.25.1", gpus=2, base_argv=argv))
        assert "tensor_parallel_size" not in [each.name for each in space.parameters]
        assert [each.rule for each in space.violations({"pipeline_parallel_size": 2})] == ["more-gpus-than-a-trial-has"]
