"""How values become flags: capture sizes, keys of a flag's JSON object, and other spellings of flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from search_spaces import Context, ParameterValue, ResolvedSpace, SpaceError, hardware_named, load_space
from search_spaces.argv import conflicting_keys, dotted_object, one_spelling, value_after, value_at
from search_spaces.expressions import UNKNOWN
from search_spaces.render import fixed_values, reachable_sizes
from search_spaces.schema import ParameterSpec


@pytest.mark.parametrize(
    ("sequences", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (10, (1, 2, 4, 8, 10)),
        (12, (1, 2, 4, 8, 12)),
        (18, (1, 2, 4, 8, 18)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (50, (1, 2, 4, 8, 16, 24, 32, 40, 50)),
        (52, (1, 2, 4, 8, 16, 24, 32, 40, 48, 52)),
    ],
)
def test_decoding(sequences: int, sizes: tuple[int, ...]) -> None:
    assert reachable_sizes(sequences) == sizes


def test_speculation_adds_multiples() -> None:
    assert reachable_sizes(8, tokens_per_sequence=5) == (1, 2, 4, 5, 8, 10, 20, 40)


def test_sizes_stop_at_the_largest() -> None:
    assert reachable_sizes(50, tokens_per_sequence=17, largest=128) == (1, 2, 4, 8, 16, 17, 24, 32, 34, 40, 50, 68)


@pytest.mark.parametrize(("sequences", "tokens"), [(0, 1), (1, 0)])
def test_numbers_start_at_one(sequences: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        reachable_sizes(sequences, tokens)


TEXT = """\
parameters:
  graphs:
    description: graphs
    type: categorical
    choices: [null, NONE, FULL]
    json: {flag: --compilation-config, key: cudagraph_mode}
  norm:
    description: a pass
    type: categorical
    choices: [null, true, false]
    json: {flag: --compilation-config, key: pass_config.fuse_norm_quant}
  act:
    description: another pass
    type: categorical
    choices: [null, true, {value: both, json: {pass_config.fuse_act_quant: true, "custom_ops[]": +quant_fp8}}]
    json: {flag: --compilation-config, key: pass_config.fuse_act_quant}
  ops:
    description: a kernel
    type: categorical
    choices: [null, +rms_norm, +quant_fp8]
    json: {flag: --compilation-config, key: "custom_ops[]"}
  sizes:
    description: sizes
    type: categorical
    choices: [null, {value: few, args: [--cudagraph-capture-sizes, "1", "2"]}]
"""


def space(tmp_path: Path, *base: str, text: str = TEXT) -> ResolvedSpace:
    file = tmp_path / "nested.yaml"
    file.write_text(text)
    return load_space(file).resolve(Context(hardware_named("h200"), base_argv=base))


@pytest.mark.parametrize(
    ("config", "content"),
    [
        ({"graphs": "NONE"}, '{"cudagraph_mode":"NONE"}'),
        ({"norm": False}, '{"pass_config":{"fuse_norm_quant":false}}'),
        (
            {"graphs": "FULL", "norm": True, "act": True, "ops": "+rms_norm"},
            '{"cudagraph_mode":"FULL","custom_ops":["+rms_norm"],'
            '"pass_config":{"fuse_act_quant":true,"fuse_norm_quant":true}}',
        ),
        (
            {"act": "both", "ops": "+rms_norm"},
            '{"custom_ops":["+quant_fp8","+rms_norm"],"pass_config":{"fuse_act_quant":true}}',
        ),
        ({"act": "both", "ops": "+quant_fp8"}, '{"custom_ops":["+quant_fp8"],"pass_config":{"fuse_act_quant":true}}'),
    ],
)
def test_keys_of_one_flag_make_one_object(tmp_path: Path, config: dict[str, ParameterValue], content: str) -> None:
    assert space(tmp_path).render(config).argv == ("--compilation-config", content)


def test_capture_sizes_stand_beside_the_object(tmp_path: Path) -> None:
    assert space(tmp_path).render({"norm": True, "sizes": "few"}).argv == (
        *("--cudagraph-capture-sizes", "1", "2"),
        *("--compilation-config", '{"pass_config":{"fuse_norm_quant":true}}'),
    )


def test_the_study_s_own_object_sets_nested_keys(tmp_path: Path) -> None:
    given = '{"pass_config": {"fuse_norm_quant": true}, "custom_ops": ["none", "+quant_fp8"]}'
    fixed = space(tmp_path, "--compilation-config", given).fixed
    assert fixed == {"graphs": None, "norm": True, "act": None, "ops": "+quant_fp8"}
    assert space(tmp_path, "--compilation-config", '{"custom_ops": "none", "pass_config": 1}').fixed == {
        "graphs": None,
        "norm": None,
        "act": None,
        "ops": None,
    }


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "pass_config",
            "keys 'pass_config' and 'pass_config.fuse_norm_quant' of --compilation-config exclude each other",
        ),
        ("custom_ops", "keys 'custom_ops' and 'custom_ops[]' of --compilation-config exclude each other"),
        ("pass_config.", "String should match pattern"),
        ("[]", "String should match pattern"),
        ("a[].b", "String should match pattern"),
    ],
)
def test_keys_that_exclude_each_other_are_refused(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        space(tmp_path, text=TEXT.replace("key: cudagraph_mode", f'key: "{key}"'))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_helpers() -> None:
    assert conflicting_keys(["a.b", "a.c", "ab", "d[]"]) is None
    assert conflicting_keys(["a.b.c", "a.b"]) == ("a.b", "a.b.c")
    assert conflicting_keys(["a[]", "a.b"]) == ("a[]", "a.b")
    assert value_at({"a": {"b": 1}}, "a.b") == 1
    assert value_at({"a": 1}, "a.b") is None
    assert value_at({"a": [1]}, "a[]") == [1]
    assert value_at({"a": 1}, "a[]") is None


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
    (["--max-num-batched-tokens", "16k"], {"max_num_batched_tokens": 16_000}),
    (["--max-num-batched-tokens", "1G"], {"max_num_batched_tokens": 2**30}),
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
