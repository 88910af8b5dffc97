"""The space `vllm` on known cards: what it offers, what it drops and why, and how it renders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks.search.problems.trials import NumberRange, ValueTrial
from search_spaces import (
    Context,
    ParameterValue,
    ResolvedSpace,
    SpaceError,
    hardware_named,
    load_space,
)
from tests.contracts.space_contract import COMMON_FLAGS, QWEN, generous, reason, values

VERSIONS = ("0.15.1", "0.25.1", "0.32.0+cpu")


class GivenTrial(ValueTrial):
    """A trial that suggests given values, and the first choice or the lowest number for all others."""

    def __init__(self, given: Mapping[str, ParameterValue]) -> None:
        self._given = given

    def choose(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        return self._given.get(name, choices[0])

    def choose_number(self, name: str, numbers: NumberRange) -> float:
        value = self._given.get(name, numbers.low)
        assert isinstance(value, int | float)
        return value


def resolved(hardware: str, version: str = "0.25.1") -> ResolvedSpace:
    return load_space("vllm").resolve(generous(hardware, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_t4_drops_what_it_does_not_support(version: str) -> None:
    space = resolved("t4", version)
    assert "needs compute capability 8.9 (native FP8), Tesla T4 has 7.5" in reason(space, "kv_cache_dtype", "fp8")
    assert reason(space, "dtype", "bfloat16") == "bfloat16 needs compute capability 8.0, Tesla T4 has 7.5"
    assert "FlashAttention needs compute capability 8.0" in reason(space, "attention_backend", "FLASH_ATTN")
    assert "needs compute capability 8.9" in reason(space, "marlin_input_dtype", "fp8")
    assert "sampler needs compute capability 8.0" in reason(space, "flashinfer_sampler")


@pytest.mark.parametrize(
    ("version", "backends", "quantization", "kv"),
    [
        ("0.15.1", (None, "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"), {"fp8", "bitsandbytes"}, None),
        ("0.25.1", (None, "TRITON_ATTN", "FLEX_ATTENTION"), {"fp8", "fp8_per_block", "bitsandbytes"}, "int8"),
        ("0.32.0+cpu", (None, "TRITON_ATTN", "FLEX_ATTENTION"), {"fp8", "fp8_per_block"}, "int8"),
    ],
)
def test_choices_on_a_t4(version: str, backends: tuple[str, ...], quantization: set[str], kv: str | None) -> None:
    space = resolved("t4", version)
    assert values(space, "attention_backend") == backends
    assert set(values(space, "quantization")) == {None, "awq", "gptq", "compressed-tensors"} | quantization
    assert values(space, "marlin_input_dtype") == (None, "int8")
    if kv is None:
        assert reason(space, "kv_cache_dtype") == "only the engine's default is left"
    else:
        assert values(space, "kv_cache_dtype") == (None, "int8_per_token_head")


@pytest.mark.parametrize("words", [("--load-format", "dummy"), ("--load_format=auto", "--load-format=dummy")])
def test_bitsandbytes_needs_real_weights(words: tuple[str, ...]) -> None:
    space = load_space("vllm").resolve(replace(generous("t4", "0.25.1"), base_argv=words))
    assert "from a checkpoint, also with --load-format dummy" in reason(space, "quantization", "bitsandbytes")


def test_versions_have_their_reasons() -> None:
    assert "int8_per_token_head needs vLLM 0.25" in reason(
        resolved("t4", "0.15.1"), "kv_cache_dtype", "int8_per_token_head"
    )
    assert "vLLM dropped bitsandbytes in 0.28" in reason(resolved("t4", "0.32.0+cpu"), "quantization", "bitsandbytes")
    assert "broken on Turing, and vLLM 0.25.1" in reason(resolved("t4"), "attention_backend", "FLASHINFER")
    assert reason(resolved("h200", "0.15.1"), "performance_mode") == "vLLM 0.15.1 has no flag --performance-mode"


def test_an_h200_drops_almost_nothing() -> None:
    space = resolved("h200")
    assert values(space, "kv_cache_dtype") == (None, "fp8", "int8_per_token_head")
    assert values(space, "attention_backend") == (None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
    assert values(space, "speculative") == ("off", "ngram", "suffix", "draft")
    assert values(space, "dtype") == (None, "float16")
    assert values(space, "flashinfer_sampler") == (None, 0)
    assert values(resolved("h200", "0.15.1"), "flashinfer_sampler") == (None, 1)


def test_an_a100_drops_the_fp8_kv_cache() -> None:
    assert "NVIDIA A100-SXM4-80GB has 8.0" in reason(resolved("a100"), "kv_cache_dtype", "fp8")
    assert "fp8" in values(resolved("l4"), "kv_cache_dtype")


def test_unknown_facts_exclude_nothing() -> None:
    unknown = replace(hardware_named("h200"), compute_capability=None, memory_gib=None)
    space = load_space("vllm").resolve(Context(unknown))
    assert "fp8" in values(space, "kv_cache_dtype")
    assert set(values(space, "attention_backend")) >= {"FLASH_ATTN", "FLASHINFER"}
    assert reason(space, "quantization", "awq") == "it needs a checkpoint quantized with awq, and none is given"
    assert reason(space, "speculative", "draft") == "it needs a draft model, and none is given"


def test_lengths_must_hold_the_workload_and_fit_the_model() -> None:
    context = replace(generous("t4", "0.25.1"), input_len=600, model=replace(QWEN, max_position_embeddings=4096))
    space = load_space("vllm").resolve(context, wanted={"max_model_len": None})
    assert values(space, "max_model_len") == (None, 1152, 1536, 2048, 4096)
    assert reason(space, "max_model_len", 1024) == "a request of 600 + 512 tokens does not fit into 1024"
    assert reason(space, "max_model_len", 8192) == "the model has 4096 positions only"


@pytest.mark.parametrize(
    ("hardware", "version", "expected"),
    [
        ("t4", "0.15.1", {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9}),
        ("t4", "0.25.1", {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.92}),
        ("a100", "0.25.1", {"max_num_seqs": 256, "max_num_batched_tokens": 2048}),
        ("h200", "0.25.1", {"max_num_seqs": 1024, "max_num_batched_tokens": 8192, "speculative": "off"}),
        ("cpu", "0.32.0+cpu", {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "block_size": 128}),
    ],
)
def test_the_engine_s_defaults(hardware: str, version: str, expected: dict[str, ParameterValue]) -> None:
    defaults = resolved(hardware, version).engine_defaults()
    assert {name: defaults.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"dtype": "float16"}, {"dtype": "float16", "prefix_caching": True, "gpu_memory_utilization": 0.92}, True),
        ({"dtype": "float16"}, {"dtype": "float16", "prefix_caching": False}, False),
        ({"block_size": 16}, {}, False),  # the default block size of 0.25.1 is unknown
        ({"max_num_seqs": 1024}, {}, True),
    ],
)
def test_values_that_are_the_defaults_make_no_other_server(
    one: dict[str, ParameterValue], other: dict[str, ParameterValue], same: bool
) -> None:
    assert resolved("h200").same_server(one, other) is same


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, ["tokens-below-seqs"]),
        ({"max_num_seqs": 256, "max_num_batched_tokens": 256}, []),
        ({"max_num_batched_tokens": 512}, []),
        ({"chunked_prefill": False, "max_num_batched_tokens": 16384}, ["unchunked-tokens-below-length"]),
        ({"chunked_prefill": False}, []),
        ({"chunked_prefill": False, "max_num_batched_tokens": 4096, "max_model_len": 4096}, []),
        ({"capture_sizes": "up_to", "capture_size_max": 512, "max_num_batched_tokens": 256}, ["capture-above-tokens"]),
        ({"ngram_min": 4, "ngram_max": 2}, ["ngram-window"]),
        ({"kv_cache_dtype": "fp8", "attention_backend": "FLASH_ATTN"}, ["flash-attn-fp8-kv"]),
        ({"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, []),
        ({"kv_cache_dtype": "fp8", "attention_backend": "FLEX_ATTENTION"}, ["flex-quantized-kv"]),
        ({"kv_cache_dtype": "int8_per_token_head", "attention_backend": "FLASHINFER"}, ["int8-kv-needs-triton"]),
    ],
)
def test_rules_across_parameters(config: dict[str, ParameterValue], rules: list[str]) -> None:
    assert [violation.rule for violation in resolved("l4").violations(config)] == rules


def test_steps_that_read_prompts_are_captured_from_hopper_on() -> None:
    spaces = {card: resolved(card).parameters for card in ("l4", "h200")}
    (l4,), (h200,) = ([p.values for p in each if p.name == "capture_size_max"] for each in spaces.values())
    assert (l4, h200) == ((16, 32, 64, 128, 256, 512), (16, 32, 64, 128, 256, 512, 1024, 2048))


def test_flash_attention_reads_fp8_kv_on_hopper() -> None:
    assert resolved("h200").violations({"kv_cache_dtype": "fp8", "attention_backend": "FLASH_ATTN"}) == []


@pytest.mark.parametrize(
    ("own", "config", "refused"),
    [
        ("bfloat16", {"dtype": "float16"}, True),
        ("bfloat16", {"dtype": "float16", "attention_backend": "FLASH_ATTN"}, True),
        ("bfloat16", {"dtype": "float16", "attention_backend": "TRITON_ATTN"}, False),
        ("bfloat16", {}, False),
        ("float16", {}, True),
        ("float16", {"dtype": "bfloat16"}, False),
    ],
)
def test_hopper_serves_an_fp8_kv_cache_in_bfloat16_only(
    own: str, config: dict[str, ParameterValue], refused: bool
) -> None:
    """It failed one trial in each of three measured studies (docs/reports/2026-11-24-h200-qwen-7b.md)."""
    for card, expected in (("h200", refused), ("l4", False)):
        context = generous(card, "0.25.1")
        assert context.model is not None
        space = load_space("vllm").resolve(replace(context, model=replace(context.model, dtype=own)))
        broken = [each.rule for each in space.violations({"kv_cache_dtype": "fp8", **config})]
        assert ("flash-attn-3-fp8-kv-float16" in broken) is expected


def test_a_rule_uses_the_effective_value() -> None:
    (violation,) = resolved("t4").violations({"max_num_seqs": 3000})
    assert "max_num_batched_tokens (2048) must be at least max_num_seqs (3000)" in violation.message


def test_an_explicit_async_flag_forbids_suffix() -> None:
    context = replace(generous("h200", "0.25.1"), base_argv=("--async-scheduling",))
    space = load_space("vllm").resolve(context)
    assert [v.rule for v in space.violations({"speculative": "suffix"})] == ["async-with-speculation"]
    assert space.violations({"speculative": "draft", "draft_tokens": 3}) == []
    assert resolved("h200").violations({"speculative": "suffix"}) == []


def test_drafts_need_their_number_where_vllm_has_no_default() -> None:
    for space in (resolved("h200"), load_space("cpu").resolve(generous("cpu", "0.32.0+cpu"))):
        (violation,) = space.violations({"speculative": "ngram"})
        assert violation.rule == "drafts-without-a-number"
        assert "the method ngram needs a number of draft tokens" in violation.message
        assert space.violations({"speculative": "ngram", "ngram_tokens": 2}) == []


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({"prefix_caching": False, "max_num_seqs": 64}, "--max-num-seqs 64 --no-enable-prefix-caching"),
        ({"cudagraph_mode": "eager"}, "--enforce-eager"),
        ({"cudagraph_mode": "FULL"}, '--compilation-config {"cudagraph_mode":"FULL"}'),
        ({"capture_sizes": "exact"}, "--cudagraph-capture-sizes 1 2 4 8 16 24 32 40 50"),
        ({"capture_sizes": "exact", "max_num_seqs": 20}, "--max-num-seqs 20 --cudagraph-capture-sizes 1 2 4 8 16 20"),
        ({"capture_sizes": "up_to", "capture_size_max": 64}, "--max-cudagraph-capture-size 64"),
        (
            {"capture_sizes": "exact", "max_num_seqs": 8, "speculative": "ngram", "ngram_tokens": 2},
            "--max-num-seqs 8 --cudagraph-capture-sizes 1 2 3 4 6 8 12 24 "
            '--speculative-config {"method":"ngram","num_speculative_tokens":2}',
        ),
        (
            {
                "speculative": "suffix",
                "suffix_tokens": 16,
                "suffix_depth": 32,
                "suffix_factor": 2.0,
                "suffix_probability": 0.15,
            },
            '--speculative-config {"method":"suffix","num_speculative_tokens":16,"suffix_decoding_max_spec_factor":2.0,'
            '"suffix_decoding_max_tree_depth":32,"suffix_decoding_min_token_prob":0.15}',
        ),
        (
            {"speculative": "draft", "draft_tokens": 3},
            '--speculative-config {"method":"draft_model","model":"a/draft","num_speculative_tokens":3}',
        ),
        ({"quantization": "fp8"}, "--quantization fp8"),
        ({"gpu_memory_utilization": 0.7 + 0.005 * 45}, "--gpu-memory-utilization 0.925"),
    ],
)
def test_rendering(config: dict[str, ParameterValue], argv: str) -> None:
    assert " ".join(resolved("h200").render(config).argv) == argv


def test_a_quantized_checkpoint_replaces_the_model() -> None:
    rendered = resolved("t4").render({"quantization": "awq", "marlin_input_dtype": "int8"})
    assert rendered.argv == ()
    assert rendered.environment == {"VLLM_MARLIN_INPUT_DTYPE": "int8"}
    assert rendered.model == "quantized/awq"


def test_a_value_without_its_condition_is_not_rendered() -> None:
    assert resolved("t4").render({"quantization": "fp8", "marlin_input_dtype": "int8"}).environment == {}


def test_completing_a_value_without_its_condition_is_an_error() -> None:
    with pytest.raises(SpaceError, match='suffix_tokens counts only when speculative == "suffix"; set that as well'):
        resolved("t4").complete({"suffix_tokens": 16})


def test_errors_have_the_reason() -> None:
    space = resolved("t4", "0.15.1")
    with pytest.raises(SpaceError, match=r"kv_cache_dtype is not offered here: an FP8 KV cache needs .* leave it out"):
        space.complete({"kv_cache_dtype": "fp8"})
    with pytest.raises(SpaceError, match=r"attention_backend cannot be 'FLASH_ATTN': FlashAttention needs"):
        space.complete({"attention_backend": "FLASH_ATTN"})
    with pytest.raises(SpaceError, match=r"block_size cannot be 8; it takes 16, 32, 64, 128"):
        space.complete({"block_size": 8})


def test_keep_answers() -> None:
    space = load_space("vllm").resolve(generous("h200", "0.25.1"), keep_answers=True)
    gone = {
        d.parameter for d in space.dropped if d.reason == "it may change the model's answers, which the study excludes"
    }
    assert gone == {
        *("quantization", "marlin_input_dtype", "kv_cache_dtype"),
        *("mamba_ssm_cache_dtype", "mamba_cache_dtype"),
    }
    assert "speculative" in {p.name for p in space.parameters}
    assert "fp8-weights" not in space.named


def test_only_some_parameters() -> None:
    space = load_space("vllm").resolve(generous("h200", "0.25.1"), only={"max_num_seqs", "block_size"})
    assert [p.name for p in space.parameters] == ["max_num_seqs", "block_size"]
    assert space.cardinality() == (1024 - 8 + 1) * 4
    with pytest.raises(SpaceError, match="has no parameter 'seqs'"):
        load_space("vllm").resolve(generous("h200", "0.25.1"), only={"seqs"})
    with pytest.raises(SpaceError, match="add speculative to the selection"):
        load_space("vllm").resolve(generous("h200", "0.25.1"), only={"suffix_tokens"})


def test_missing_flags_drop_their_parameters() -> None:
    context = replace(generous("h200", "0.25.1"), flags=COMMON_FLAGS - {"--enforce-eager", "--block-size"})
    space = load_space("vllm").resolve(context)
    assert reason(space, "block_size") == "vLLM 0.25.1 has no flag --block-size"
    assert reason(space, "cudagraph_mode", "eager") == "vLLM 0.25.1 has no flag --enforce-eager"
    assert "eager" not in space.named


def test_parameters_of_the_server_arguments_are_dropped() -> None:
    argv = (
        "--max-model-len=2K",
        "--enforce-eager",
        "--speculative-config",
        '{"method":"suffix"}',
        "--no-enable-prefix-caching",
    )
    space = load_space("vllm").resolve(replace(generous("h200", "0.25.1"), base_argv=argv))
    assert space.fixed["max_model_len"] == 2048
    assert space.fixed["cudagraph_mode"] == "eager"
    assert space.fixed["prefix_caching"] is False
    assert space.fixed["speculative"] == "suffix"
    assert space.fixed["suffix_depth"] is None
    assert {"max_model_len", "cudagraph_mode", "speculative", "suffix_tokens"}.isdisjoint(
        p.name for p in space.parameters
    )


@pytest.mark.parametrize(
    ("gpu", "length", "offered"), [("t4", 32768, False), ("t4", 524288, True), ("h200", 524288, False)]
)
def test_a_length_is_offered_where_memory_may_not_hold_the_model_s_own(gpu: str, length: int, offered: bool) -> None:
    # a T4: 0.7 x 14.56 = 10.2 GiB for 0.92 GiB of weights and twice the cache, 12 KiB a token: up to 405,000 tokens
    context = replace(generous(gpu, "0.25.1"), model=replace(QWEN, max_position_embeddings=length))
    space = load_space("vllm").resolve(context)
    assert ("max_model_len" in {parameter.name for parameter in space.parameters}) is offered
    if not offered:
        assert reason(space, "max_model_len").startswith(f"the KV cache holds the model's own {length} tokens")


def test_a_small_share_of_memory_keeps_the_length() -> None:
    context = replace(generous("t4", "0.25.1"), base_argv=("--gpu-memory-utilization", "0.2"))
    assert "max_model_len" in {each.name for each in load_space("vllm").resolve(context).parameters}


@pytest.mark.parametrize(("priorities", "offered"), [(None, True), (False, False), (True, True)])
def test_a_scheduling_policy_needs_priorities(priorities: bool | None, offered: bool) -> None:
    space = load_space("vllm").resolve(replace(generous("t4", "0.25.1"), priorities=priorities))
    assert ("scheduling_policy" in {each.name for each in space.parameters}) is offered
    if not offered:
        assert "no different priorities" in reason(space, "scheduling_policy")
        wanted = load_space("vllm").resolve(space.context, wanted={"scheduling_policy": None})
        assert wanted.contains({"scheduling_policy": "priority"})


def test_bunched_tokens_are_offered_on_request_only() -> None:
    vllm, context = load_space("vllm"), generous("h200", "0.25.1")
    kept = vllm.resolve(context, keep_stream=True)
    assert "changes how tokens arrive at a user" in reason(kept, "stream_interval")
    assert "stream-8" in kept.named
    assert vllm.resolve(context, keep_stream=True, wanted={"stream_interval": None}).contains({"stream_interval": 8})
    assert vllm.resolve(context).contains({"stream_interval": 8})


@pytest.mark.parametrize(
    ("repetitive", "temperature", "offered"),
    [(False, None, False), (False, 0.7, False), (False, 0.0, True), (True, 0.7, True), (None, None, True)],
)
def test_drafts_from_the_text_are_offered_where_it_may_repeat(
    repetitive: bool | None, temperature: float | None, offered: bool
) -> None:
    context = replace(generous("t4", "0.15.1"), repetitive=repetitive, temperature=temperature)
    space = load_space("vllm").resolve(context)
    assert ("ngram" in values(space, "speculative")) == ("suffix" in values(space, "speculative")) == offered
    assert "draft" in values(space, "speculative")
    assert any(parameter.name == "ngram_tokens" for parameter in space.parameters) == offered
    wanted = load_space("vllm").resolve(context, wanted=dict.fromkeys(("speculative", "ngram_tokens")))
    assert "ngram" in values(wanted, "speculative")


@pytest.mark.parametrize(
    ("prefix", "repetitive", "offered"), [(0, False, False), (64, False, True), (0, True, True), (0, None, True)]
)
def test_a_prefix_cache_is_offered_where_prompts_may_share_a_prefix(
    prefix: int, repetitive: bool | None, offered: bool
) -> None:
    context = replace(generous("h200", "0.25.1"), prefix_len=prefix, repetitive=repetitive)
    space = load_space("vllm").resolve(context)
    assert any(parameter.name == "prefix_caching" for parameter in space.parameters) == offered


@pytest.mark.parametrize(
    ("rate", "concurrency", "offered"), [(8.0, 256, False), (20.0, 256, True), (None, 50, True), (None, 16, False)]
)
def test_api_servers_are_offered_where_there_is_work_for_them(
    rate: float | None, concurrency: int, offered: bool
) -> None:
    context = replace(generous("h200", "0.25.1"), request_rate=rate, concurrency=concurrency)  # 512 tokens an answer
    space = load_space("vllm").resolve(context)
    assert any(parameter.name == "api_server_count" for parameter in space.parameters) == offered


def test_a_suggestion_leaves_out_the_engine_s_defaults() -> None:
    space = resolved("t4", "0.15.1")
    said = {"block_size": 16, "api_server_count": 1, "gpu_memory_utilization": 0.9, "max_num_seqs": 64}
    config = space.suggest(GivenTrial(said))
    assert {name: value for name, value in config.items() if name in said} == {"max_num_seqs": 64}


def test_the_default_number_of_api_servers_is_that_of_the_engines() -> None:
    space = load_space("vllm").resolve(replace(generous("h200", "0.25.1"), gpus=2))
    assert space.names({}).default("api_server_count") == 1
    assert space.names({"data_parallel_size": 2}).default("api_server_count") == 2
